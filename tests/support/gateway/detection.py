"""An engine host without a gateway: a store in a file, a clock that tests set, no sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from penstock.cep.event_binding import Packet
from penstock.cep.program import Program
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.events.program import compile_program
from penstock.gateway.detection.engine_host import EngineHost
from penstock.gateway.detection.persistence import restore
from penstock.gateway.event_loop import Clock
from penstock.gateway.publications import (
    NO_LEADER,
    Fingerprint,
    PublishRequest,
    PublishResult,
    SubmissionId,
)
from penstock.store.database import Database
from penstock.store.detection.journal import DetectedTransition, DetectionStore
from penstock.store.detection.tables import Request, situations_table, transitions_table
from tests.support.gateway.ward import WARD

START: Final = 1_800_000_000.0
LEASE: Final = 60.0


@cache
def ward_program(window: str = "2s", situation: str = "Alert") -> Program:
    """Compile the ward; `situation` is what its alert is called."""
    text = WARD.replace("WINDOW", window)
    text = text.replace("id: Alert", f"id: {situation}").replace(": Alert", f": {situation}")
    return compile_program(DefinitionSet.build(read_text(text).documents).definitions)


class Listener:
    """Decides nothing and notes what detection leads to."""

    epoch = 7

    def __init__(self) -> None:
        self.transitions: list[tuple[str, str, str | None, str | None, str]] = []
        self.calls: list[str] = []

    def decide(self, request: PublishRequest, submission: SubmissionId) -> PublishResult:
        self.calls.append(f"decide {request.topic} {submission.number}")
        return NO_LEADER

    def carry_out_actions(self) -> None:
        self.calls.append("carry out")

    def resume_actions(self) -> None:
        self.calls.append("resume")

    def record_transition(self, step: DetectedTransition, request: Request | None) -> None:
        del request
        self.transitions.append((step.scenario, step.subject, step.source, step.target, step.cause))

    def retry_deliveries(self) -> None:
        self.calls.append("retry")


class Detecting:
    """One host, its store and its time."""

    def __init__(self, database: Database, program: Program, *, snapshot_bytes: int) -> None:
        self.database = database
        self.time = START
        self.store = DetectionStore(database, "here", seconds=LEASE)
        self.listener = Listener()
        self.threads: list[str] = []
        """The functions that ran in a thread, or would."""
        self.host = EngineHost(
            self.store,
            Clock(lambda: self.time, lambda: self.time),
            lease=LEASE,
            snapshot_bytes=snapshot_bytes,
            replication=None,
            decider=self.listener,
            listener=self.listener,
            run_in_thread=self.run_in_thread,
        )
        self.host.follow(program)

    async def run_in_thread(self, function: Callable[..., Any], *given: Any) -> Any:
        self.threads.append(function.__name__)
        await asyncio.sleep(0)
        return function(*given)

    async def lead(self) -> None:
        """Acquire the lease and start, as the leader election does."""
        assert await self.host.lease.acquire() is None
        self.host.start(*restore(self.store, self.host.program))

    def offer(
        self,
        topic: str,
        value: float = 0.0,
        submission: SubmissionId | None = None,
        fingerprint: Fingerprint | None = None,
    ) -> int:
        """Let a message on `ward/<patient>/…` take effect; return its ticket."""
        host = self.host
        now = host.clock.now()
        host.catch_up(now)
        assert host.engine is not None
        message = {"topic": topic, "payload": {"value": value}}
        e = {"time": datetime.fromtimestamp(now / 1000, UTC)}
        packet = Packet(topic, message, {}, {"patientId": topic.split("/")[1]}, e)
        prepared = host.engine.prepare(packet, now)
        return host.commit(prepared, prepared.record(), submission, fingerprint)

    def stored(self) -> list[tuple[str, str]]:
        """Return the situations in the store's table."""
        held = situations_table.c
        with self.database.read() as connection:
            rows = connection.execute(sa.select(held.subject, held.situation)).all()
        return sorted((row.subject, row.situation) for row in rows)

    def history(self) -> list[tuple[str, str | None, str]]:
        """Return subject, target and cause of the transitions on record, in order."""
        past = transitions_table.c
        query = sa.select(past.subject, past.target, past.cause).order_by(past.number)
        with self.database.read() as connection:
            return [(row.subject, row.target, row.cause) for row in connection.execute(query)]


@asynccontextmanager
async def detecting(
    folder: Path, program: Program | None = None, *, snapshot_bytes: int = 1 << 30
) -> AsyncIterator[Detecting]:
    """Run a host that leads; what it has added is written when the block ends."""
    with Database.open(f"sqlite:///{folder}/penstock.db") as database:
        made = Detecting(database, program or ward_program(), snapshot_bytes=snapshot_bytes)
        await made.lead()
        try:
            yield made
        finally:
            made.host.timer.cancel()
            await made.host.reload.finish()
            await made.host.writer.finish(LEASE)
            await made.host.journal.finish()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(main())
