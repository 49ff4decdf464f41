from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cep.program import Program
from penstock.gateway.detection.leadership import LeaderElection
from penstock.store.database import Database
from tests.support.gateway.detection import Detecting, run, ward_program


class Candidate:
    """A gateway that takes part in the election."""

    def __init__(self, database: Database, program: Program) -> None:
        self.detection = Detecting(database, program, snapshot_bytes=1 << 30)
        self.host = self.detection.host
        self.election = LeaderElection(
            self.host, self.detection.store, self.detection.run_in_thread
        )
        self.task = asyncio.ensure_future(self.election.run())

    async def stop(self) -> None:
        await self.election.stop()
        self.host.changed.set()
        await self.task


async def until(holds: Callable[[], object]) -> None:
    while not holds():  # noqa: ASYNC110 - anything may be waited for here
        await asyncio.sleep(0.005)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database.open(f"sqlite:///{tmp_path}/penstock.db")


def test_one_of_two_leads_and_the_other_takes_over_at_its_end(database: Database) -> None:
    async def work() -> None:
        first = Candidate(database, ward_program())
        await first.election.wait_started(60)
        assert first.host.is_alive()
        first.detection.offer("ward/p/pulse", 120)
        second = Candidate(database, ward_program())
        await second.election.wait_started(60)
        # It has no address where it could be followed.
        assert not second.host.is_alive()
        assert second.host.trouble == "another gateway detects: here"
        await first.stop()
        await until(second.host.is_alive)
        assert second.host.trouble == ""
        assert second.host.board.current("alert", "p") == "Alert"
        # The last snapshot has everything: there was nothing to replay.
        assert second.detection.store.load()[2] == []
        await second.stop()

    with database:
        run(work)


def test_with_nothing_to_detect_nobody_leads(database: Database) -> None:
    async def work() -> None:
        gateway = Candidate(database, Program())
        await gateway.election.wait_started(60)
        assert gateway.host.engine is None
        assert gateway.host.trouble == ""
        assert gateway.host.board.current("alert", "p") is None
        gateway.host.follow(ward_program())
        await until(gateway.host.is_alive)
        gateway.detection.offer("ward/p/pulse", 120)
        gateway.host.follow(Program())
        await until(lambda: gateway.host.engine is None)
        await until(lambda: gateway.detection.stored() == [])
        assert gateway.host.trouble == ""
        # The lease is released: another gateway may lead at once.
        held = gateway.detection.store.find()
        assert held is not None
        assert gateway.detection.store.is_free(held)
        await gateway.stop()

    with database:
        run(work)


def test_a_crashed_engine_is_restored_and_leads_again(database: Database) -> None:
    async def work() -> None:
        gateway = Candidate(database, ward_program())
        await gateway.election.wait_started(60)
        gateway.detection.offer("ward/p/pulse", 120)
        await gateway.host.journal.finish()
        before = gateway.host.engine
        gateway.host.crash(RuntimeError("broken on purpose"))
        assert not gateway.host.is_alive()
        await until(gateway.host.is_alive)
        assert gateway.host.engine is not before
        assert gateway.host.board.current("alert", "p") == "Alert"
        await gateway.stop()

    with database:
        run(work)


def test_a_state_that_cannot_be_restored_is_tried_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        gateway = Candidate(database, ward_program())
        load = gateway.detection.store.load
        failures = [ValueError("damaged")]

        def fail_once() -> tuple[bytes | None, int, list[bytes]]:
            if failures:
                raise failures.pop()
            return load()

        monkeypatch.setattr(gateway.detection.store, "load", fail_once)
        await gateway.election.wait_started(60)
        assert gateway.host.trouble == "its state cannot be taken up"
        await until(gateway.host.is_alive)
        await gateway.stop()

    with database:
        run(work)
