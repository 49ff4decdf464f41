from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from penstock.clock import boot_clock
from penstock.errors import UnavailableError
from penstock.gateway.detection import persistence
from penstock.gateway.publications import Fingerprint, SubmissionId
from penstock.policy.access.emergencies import SituationsUnknownError
from penstock.store.detection.journal import DetectionStore
from tests.support.gateway.detection import LEASE, Detecting, detecting, run, ward_program


def current(detection: Detecting, subject: str, scenario: str = "alert") -> str | None:
    return detection.host.board.current(scenario, subject)


def is_unknown(detection: Detecting) -> bool:
    try:
        current(detection, "p")
    except SituationsUnknownError:
        return True
    return False


def test_a_step_is_on_the_board_at_once_and_on_record_when_its_ticket_is_durable(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with detecting(tmp_path) as detection:
            journal = detection.host.journal
            first = detection.offer("ward/p/pulse", 60)
            assert detection.listener.transitions == []
            ticket = detection.offer("ward/p/pulse", 120)
            assert ticket == first + 1
            assert current(detection, "p") == "Alert"
            assert detection.listener.transitions == [("alert", "p", None, "Alert", "detected")]
            assert detection.listener.calls == ["resume", "carry out"]
            assert [it.topic for it in detection.host.outbox.waiting.values()] == ["ward/p/calls"]
            assert (detection.stored(), journal.durable) == ([], 0)
            assert await journal.reach(ticket)
            assert detection.stored() == [("p", "Alert")]
            assert detection.history() == [("p", "Alert", "detected")]
            # Both steps went into one transaction.
            assert journal.number == 1

    run(work)


def test_what_is_durable_is_restored_after_a_restart(tmp_path: Path) -> None:
    fingerprint = Fingerprint("sender", "content", dup=True)
    submission = SubmissionId("follower", 3, 1)

    async def work() -> None:
        async with detecting(tmp_path) as detection:
            detection.offer("ward/p/pulse", 120, fingerprint=fingerprint)
            detection.offer("ward/q/knock", submission=submission)
            await detection.host.journal.finish()
            saved = detection.host.state()
            assert saved is not None
            number = detection.host.journal.number
            await detection.host.lease.release()
        async with detecting(tmp_path) as again:
            assert again.store.holder != detection.store.holder
            state = again.host.state()
            assert state is not None
            assert state.engine.save() == saved.engine.save()
            assert state.outbox.waiting == saved.outbox.waiting
            assert state.duplicates.has(fingerprint)
            assert state.applied_submissions.has(submission)
            assert again.host.journal.number == number
            assert current(again, "p") == "Alert"
            # The first knock counts: the second one is the event.
            again.offer("ward/q/knock")
            assert current(again, "q", "knocking") == "Knocked"

    run(work)


def test_a_due_timer_fires_before_whatever_is_decided_later(tmp_path: Path) -> None:
    async def work() -> None:
        async with detecting(tmp_path, ward_program("2s")) as detection:
            host = detection.host
            detection.offer("ward/p/warmth", 120)
            detection.time += 1
            detection.offer("ward/p/warmth", 80)
            assert current(detection, "p") == "Alert"
            assert host.deadline == host.clock.now() + 1000
            detection.time += 0.5
            host.catch_up(host.clock.now())
            assert current(detection, "p") == "Alert"
            detection.time += 0.5
            host.catch_up(host.clock.now())
            assert current(detection, "p") is None
            assert detection.listener.transitions[-1] == ("alert", "p", "Alert", None, "detected")
            await host.journal.finish()
            assert detection.stored() == []

    run(work)


def test_an_engine_that_raised_an_error_is_discarded_and_restored(tmp_path: Path) -> None:
    def fail(*given: object) -> NoReturn:
        raise RuntimeError("broken on purpose")

    async def work() -> None:
        async with detecting(tmp_path) as detection:
            host = detection.host
            detection.offer("ward/p/pulse", 120)
            await host.journal.finish()
            engine = host.engine
            assert engine is not None
            engine.apply = fail  # type: ignore[method-assign, assignment]
            with pytest.raises(UnavailableError):
                detection.offer("ward/q/pulse", 120)
            assert (host.engine, host.is_alive(), host.state()) == (None, False, None)
            assert is_unknown(detection)
            assert host.trouble == "an event could not be processed"
            await detection.lead()
            assert host.trouble == ""
            assert (current(detection, "p"), current(detection, "q")) == ("Alert", None)

    run(work)


def test_a_lease_that_is_over_ends_detection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with detecting(tmp_path) as detection:
            host = detection.host
            detection.offer("ward/p/pulse", 120)
            await host.journal.finish()
            assert host.is_alive()
            assert host.check() is None
            now = boot_clock() + LEASE + 1
            with monkeypatch.context() as patch:
                patch.setattr(persistence, "boot_clock", lambda: now)
                # Readiness tells it although no message has come that would notice it.
                assert (host.engine is None, host.trouble) == (False, "")
                assert "lease" in (host.check() or "")
                assert not host.is_alive()
            assert host.check() == host.trouble
            assert is_unknown(detection)
            assert host.engine is None
            assert "lease" in host.trouble

    run(work)


def test_a_lease_that_another_has_got_drops_what_is_not_durable(tmp_path: Path) -> None:
    async def work() -> None:
        async with detecting(tmp_path) as detection:
            host = detection.host
            other = DetectionStore(detection.database, "there", seconds=LEASE)
            detection.store.release()
            assert other.acquire().holder == other.holder
            ticket = detection.offer("ward/p/pulse", 120)
            assert not await host.journal.reach(ticket)
            assert host.trouble == "another gateway detects"
            assert is_unknown(detection)
            assert detection.stored() == []

    run(work)


def test_a_journal_that_has_grown_is_cut_by_a_forked_snapshot(tmp_path: Path) -> None:
    async def work() -> None:
        async with detecting(tmp_path, snapshot_bytes=2_000) as detection:
            for number in range(20):
                detection.offer(f"ward/p{number}/pulse", 120)
                await detection.host.journal.finish()
                await detection.host.writer.finish(LEASE)
            data, last, batches = detection.store.load()
            assert data is not None
            assert last == 20
            assert len(batches) < 15
            assert "read" in detection.threads
            state = detection.host.state()
            assert state is not None
            saved = state.engine.save()
            await detection.host.lease.release()
        async with detecting(tmp_path) as again:
            state = again.host.state()
            assert state is not None
            assert state.engine.save() == saved
            assert detection.stored() == sorted((f"p{it}", "Alert") for it in range(20))

    run(work)


def test_followers_get_situations_and_deadlines_only_while_they_are_known(tmp_path: Path) -> None:
    async def work() -> None:
        async with detecting(tmp_path, ward_program("2s")) as detection:
            host = detection.host
            detection.offer("ward/p/warmth", 120)
            assert (host.is_known(), host.accepts_submissions()) == (True, True)
            assert host.situations() == [("alert", "p", "Alert")]
            due = host.next_deadline()
            assert due is not None
            assert 0 < due - boot_clock() <= 2
            host.invalidate("store", "the store does not answer")
            assert (host.is_known(), host.accepts_submissions()) == (False, False)
            assert (host.situations(), host.next_deadline()) == ([], None)

    run(work)


def test_without_definitions_nothing_is_needed(tmp_path: Path) -> None:
    async def work() -> None:
        async with detecting(tmp_path) as detection:
            assert detection.host.is_needed
            assert detection.host.epoch == 7
            detection.host.follow(type(detection.host.program)())
            assert not detection.host.is_needed

    run(work)
