from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.gateway.detection.engine_reload import EngineReload
from penstock.policy.access.emergencies import SituationsUnknownError
from penstock.store.detection.journal import LeaseLostError
from tests.support.gateway.detection import Detecting, detecting, run, ward_program


def current(detection: Detecting, subject: str, scenario: str = "alert") -> str | None:
    return detection.host.board.current(scenario, subject)


def test_state_and_situations_outlive_changed_definitions(tmp_path: Path) -> None:
    async def work() -> None:
        async with detecting(tmp_path, ward_program("2s")) as detection:
            host = detection.host
            detection.offer("ward/p/pulse", 120)
            detection.offer("ward/q/knock")
            changed = ward_program("1h")
            host.follow(changed)
            assert not host.accepts_submissions()
            waiting = asyncio.ensure_future(host.reload.wait())
            await asyncio.sleep(0)
            assert not waiting.done()
            # Deliveries go on, under the situations that the new definitions have, too.
            assert current(detection, "p") == "Alert"
            await waiting
            assert host.accepts_submissions()
            assert host.engine is not None
            assert host.engine.program is changed
            assert current(detection, "p") == "Alert"
            detection.offer("ward/q/knock")
            assert current(detection, "q", "knocking") == "Knocked"
            # It is stored under the new definitions, before anything goes on.
            assert "keep" in detection.threads

    run(work)


def test_a_situation_that_is_no_longer_defined_ends_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with detecting(tmp_path) as detection:
            host = detection.host
            detection.offer("ward/p/pulse", 120)
            host.follow(ward_program(situation="Alarm"))
            assert current(detection, "p") is None
            await host.reload.finish()
            assert detection.listener.transitions[-1] == (
                "alert",
                "p",
                "Alert",
                None,
                "definitions",
            )
            await host.journal.finish()
            assert detection.history()[-1] == ("p", None, "definitions")
            detection.offer("ward/p/pulse", 120)
            assert current(detection, "p") == "Alarm"

    run(work)


def test_a_timer_that_is_due_meanwhile_leaves_no_situation_known(tmp_path: Path) -> None:
    async def work() -> None:
        async with detecting(tmp_path, ward_program("2s")) as detection:
            host = detection.host
            detection.offer("ward/p/pulse", 120)
            detection.offer("ward/q/warmth", 120)
            detection.offer("ward/q/warmth", 80)
            host.follow(ward_program("3s"))
            detection.time += 2.0
            host.catch_up(host.clock.now())
            assert not host.is_known()
            with pytest.raises(SituationsUnknownError):
                current(detection, "p")
            await host.reload.finish()
            assert host.is_known()
            assert current(detection, "p") == "Alert"

    run(work)


def test_definitions_that_change_once_more_are_reloaded_before_anything_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    make = EngineReload._make

    async def note(reload: EngineReload, engine: Any, program: Any) -> Any:
        made.append(program)
        return await make(reload, engine, program)

    async def work() -> None:
        async with detecting(tmp_path) as detection:
            first, second = ward_program("1h"), ward_program("2h")
            detection.host.follow(first)
            while not made:  # noqa: ASYNC110 - the reload has no event for this
                await asyncio.sleep(0)
            detection.host.follow(second)
            await detection.host.reload.wait()
            assert made == [first, second]
            assert detection.host.engine is not None
            assert detection.host.engine.program is second

    monkeypatch.setattr(EngineReload, "_make", note)
    run(work)


def test_a_state_that_cannot_be_loaded_ends_detection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*given: object) -> Any:
        raise RuntimeError("broken on purpose")

    async def work() -> None:
        async with detecting(tmp_path) as detection:
            detection.offer("ward/p/pulse", 120)
            monkeypatch.setattr(EngineReload, "_make", fail)
            detection.host.follow(ward_program("1h"))
            await detection.host.reload.wait()
            assert detection.host.engine is None
            assert detection.host.trouble == "an event could not be processed"

    run(work)


def test_a_lease_that_is_lost_during_a_reload_ends_detection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with detecting(tmp_path) as detection:
            host = detection.host
            detection.offer("ward/p/pulse", 120)
            await host.journal.finish()

            def fail(*given: object) -> None:
                raise LeaseLostError("gone")

            with monkeypatch.context() as patch:
                patch.setattr(detection.store, "keep", fail)
                host.follow(ward_program("1h"))
                await host.reload.finish()
            # Another gateway has the lease: nothing is detected here any more.
            assert host.engine is None
            assert host.trouble == "another gateway detects"
            assert host.journal.snapshot_due

    run(work)
