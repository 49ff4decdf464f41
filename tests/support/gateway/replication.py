"""A detector that is only a list, for gateways that share it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.clock import boot_clock
from penstock.gateway.publications import (
    NO_LEADER,
    AppliedSubmissions,
    PublishOutcome,
    PublishRequest,
    PublishResult,
    SubmissionId,
)
from penstock.gateway.replication.follower import ReplicationFollower
from penstock.gateway.replication.leader import ReplicationLeader
from penstock.gateway.replication.link import ReplicationTerms
from penstock.gateway.replication.protocol import SituationRow, derive_secret
from penstock.policy.access.emergencies import SituationBoard
from tests.support.gateway.memory_network import memory_network

TERMS: Final = ReplicationTerms(
    derive_secret(b"k" * 32), largest=1 << 20, lease=30.0, patience=60.0
)
LONG: Final = 60.0


class Record:
    """What would be in the store: who takes over knows it, and nothing else."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []
        self.applied_submissions = AppliedSubmissions()


class Detector:
    """Detects by noting what it is asked; a step is durable when it is told to be."""

    def __init__(self, record: Record, terms: ReplicationTerms = TERMS) -> None:
        self.record = record
        self.board = SituationBoard()
        self.alive = True
        self.steps = list(record.steps)
        self.applied_submissions = AppliedSubmissions(record.applied_submissions.as_data())
        self.durable = 0
        self.added = 0
        self.ends: dict[str, float] = {}
        """When time alone ends the situations of somebody, by `boot_clock`."""
        self._waiting: list[tuple[int, Callable[[bool], None]]] = []
        self.epoch = 0
        self.announced: list[float] = []
        self.leader = ReplicationLeader(self, self, terms, self._announce)
        self.port = 0

    async def start(self) -> None:
        self.port = await self.leader.listen("127.0.0.1", 0)

    async def _announce(self, seconds: float) -> None:
        self.announced.append(seconds)

    def is_known(self) -> bool:
        return self.alive

    def accepts_submissions(self) -> bool:
        return self.alive

    def situations(self) -> list[SituationRow]:
        last: dict[str, str] = dict(self.steps)
        return [("s", who, what) for who, what in last.items() if what != "none"]

    def decide(self, request: PublishRequest, submission: SubmissionId) -> PublishResult:
        if not self.alive:
            return NO_LEADER
        if self.applied_submissions.has(submission):
            return PublishResult(journal=self, ticket=self.added)
        if request.topic == "denied":
            return PublishResult(PublishOutcome.DENIED, "a rule")
        self.applied_submissions.put(submission)
        self.steps.append((request.client, request.topic))
        self.added += 1
        target = None if request.topic == "none" else request.topic
        self.board.move("s", request.client, target)
        self.leader.replicate([("s", request.client, target)], self.deadline)
        return PublishResult(journal=self, ticket=self.added)

    def next_deadline(self) -> float | None:
        return min(self.ends.values(), default=None)

    @property
    def deadline(self) -> int | None:
        ends = self.next_deadline()
        return None if ends is None else int(ends * 1000)

    def foresee_end(self, who: str, seconds: float) -> None:
        """Let time end somebody's situation."""
        self.ends[who] = boot_clock() + seconds
        self.leader.replicate([], self.deadline)

    def ring(self) -> None:
        """Let all end whose time has come."""
        due = [who for who, at in self.ends.items() if at <= boot_clock()]
        for who in due:
            del self.ends[who]
            self.steps.append((who, "none"))
        if due:
            self.leader.replicate([("s", who, None) for who in due], self.deadline)

    def wait(self, ticket: int, settled: Callable[[bool], None]) -> None:
        if ticket <= self.durable:
            settled(True)  # noqa: FBT003
        else:
            self._waiting.append((ticket, settled))

    async def flush(self) -> None:
        """Make all durable, as the journal does: when all know of it."""
        added, steps = self.added, list(self.steps)
        receipts = self.applied_submissions.as_data()
        if not await self.leader.wait_replicated() or not self.alive:
            return
        self.record.steps, self.record.applied_submissions = steps, AppliedSubmissions(receipts)
        self.durable = added
        due = [it for it in self._waiting if it[0] <= added]
        self._waiting = [it for it in self._waiting if it[0] > added]
        for _, settled in due:
            settled(True)  # noqa: FBT003

    def kill(self) -> None:
        """End without a word, as a killed process does."""
        self.alive = False
        self.leader.close()


class Follows:
    """Decides nothing: events are never detected here."""

    epoch = 0

    def decide(self, request: PublishRequest, submission: SubmissionId) -> PublishResult:
        raise AssertionError((request, submission))


def ask(client: str, topic: str) -> PublishRequest:
    return PublishRequest(None, client, topic, b"{}", {})


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(LONG):
        while not holds():  # noqa: ASYNC110 - anything may be waited for here
            await asyncio.sleep(0.005)


def make_follower(
    terms: ReplicationTerms = TERMS, on_current: Callable[[], None] = lambda: None
) -> tuple[ReplicationFollower, SituationBoard, list[str]]:
    board, lost = SituationBoard(), list[str]()
    board.invalidate("not yet")
    follower = ReplicationFollower(
        board, Follows(), terms, on_lost=lost.append, on_current=on_current
    )
    return follower, board, lost


def run(work: Callable[[], Awaitable[None]], *, sockets: bool = False) -> None:
    """Run a test; connections stay within its loop, or with `sockets` go through the system."""

    async def main() -> None:
        with contextlib.nullcontext() if sockets else memory_network():
            async with asyncio.timeout(2 * LONG):
                await work()

    asyncio.run(main())
