"""What time alone ends at the gateway that detects has ended everywhere else by then."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest

from penstock.clock import boot_clock
from penstock.gateway.replication.follower import ReplicationFollower
from penstock.gateway.replication.leader import ReplicationLeader
from penstock.gateway.replication.link import ReplicationTerms
from penstock.gateway.replication.protocol import Message, StateUpdate
from penstock.policy.access.emergencies import SituationBoard, SituationsUnknownError
from tests.support.gateway.replication import (
    LONG,
    TERMS,
    Detector,
    Record,
    make_follower,
    run,
    until,
)
from tests.support.scale import scaled


def look(follower: ReplicationFollower, board: SituationBoard, who: str) -> str | None:
    """Say what a decision would go by now."""
    follower.check_deadline()
    try:
        return board.current("s", who)
    except SituationsUnknownError:
        return "unknown"


async def join(
    detector: Detector, terms: ReplicationTerms = TERMS
) -> tuple[ReplicationFollower, SituationBoard]:
    follower, board, _ = make_follower(terms)
    assert await follower.join(f"127.0.0.1:{detector.port}", LONG) == ""
    return follower, board


def test_nothing_is_known_beyond_what_was_foretold() -> None:
    async def work() -> None:
        detector = Detector(Record())
        detector.steps.append(("p", "high"))
        detector.ends["p"] = boot_clock() + 0.3
        await detector.start()
        certain: list[str | None] = []
        follower, board, _ = make_follower(
            on_current=lambda: certain.append(look(follower, board, "p"))
        )
        assert await follower.join(f"127.0.0.1:{detector.port}", LONG) == ""
        known = 0
        while boot_clock() < detector.ends["p"]:
            known += look(follower, board, "p") == "high"
            await asyncio.sleep(0.001)
        assert known
        # The timer has not fired yet: nobody may go by the situation any more, or by its end.
        assert look(follower, board, "p") == "unknown"
        assert follower.awaiting_leader
        waiting = asyncio.ensure_future(follower.wait_current())
        await asyncio.sleep(0.05)
        assert look(follower, board, "p") == "unknown"
        assert not waiting.done()
        assert certain == []
        detector.ring()
        await waiting
        await until(lambda: certain)
        assert certain == [None]
        assert look(follower, board, "p") is None
        follower.leave("the test ends")
        detector.kill()

    run(work)


def test_a_doubt_ends_with_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = ReplicationTerms(TERMS.secret, TERMS.largest, lease=0.5, patience=60.0)

    async def work() -> None:
        detector = Detector(Record(), terms)
        detector.steps.append(("p", "high"))
        detector.ends["p"] = boot_clock() + 0.1
        await detector.start()
        follower, board = await join(detector, terms)
        monkeypatch.setattr(ReplicationLeader, "_answer_ping", lambda *_: None)
        await until(lambda: look(follower, board, "p") == "unknown" and follower.awaiting_leader)
        await follower.wait_current()
        assert not follower.joined
        assert not follower.awaiting_leader
        assert look(follower, board, "p") == "unknown"
        detector.kill()

    run(work)


def test_an_end_that_comes_sooner_is_known_to_all_before_anything_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[Message] = []
    hear = ReplicationFollower._hear

    async def work() -> None:
        detector = Detector(Record())
        detector.steps += [("p", "high"), ("q", "high")]
        detector.ends["p"] = boot_clock() + 1_000
        await detector.start()

        def hear_late(self: ReplicationFollower, link: object, message: Message) -> None:
            if isinstance(message, StateUpdate):
                kept.append(message)
            else:
                hear(self, link, message)  # type: ignore[arg-type]

        monkeypatch.setattr(ReplicationFollower, "_hear", hear_late)
        follower, board = await join(detector)
        known: list[bool] = []
        detector.foresee_end("q", 500)
        detector.leader.when_replicated(known.append)
        await until(lambda: kept)
        assert known == []
        link = follower._link
        assert link is not None
        hear(follower, link, kept.pop())
        await until(lambda: known == [True])
        assert look(follower, board, "q") == "high"
        # What comes later than they know is told, and nobody waits for that.
        detector.foresee_end("q", 2_000)
        assert not detector.leader.pending
        follower.leave("the test ends")
        detector.kill()

    run(work)


def test_an_answer_of_a_slower_clock_ends_the_doubt() -> None:
    """The other's clock may be held back: what is due there comes later than was told."""

    async def work() -> None:
        detector = Detector(Record())
        detector.steps.append(("p", "high"))
        detector.ends["p"] = boot_clock() + 0.05
        await detector.start()
        follower, board = await join(detector)
        await until(lambda: boot_clock() > detector.ends["p"])
        detector.ends["p"] = boot_clock() + 1_000  # the ping that a doubt sends will tell
        assert look(follower, board, "p") == "unknown"
        await follower.wait_current()
        assert look(follower, board, "p") == "high"
        follower.leave("the test ends")
        detector.kill()

    run(work)


class Stage:
    """A detector on a loop of its own, which stands still now and then."""

    def __init__(self, seed: int, terms: ReplicationTerms) -> None:
        self.draw = random.Random(seed)
        self.detector = Detector(Record(), terms)
        self.ends: dict[str, float] = {}
        """When each situation ends: known before it begins."""
        self.ready, self.over = threading.Event(), threading.Event()

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        detector, draw = self.detector, self.draw
        await detector.start()
        self.ready.set()
        number = 0
        while not self.over.is_set():
            detector.ring()
            if draw.random() < 0.2:
                number += 1
                who = f"p{number}"
                # An end that comes sooner than all others counts from when it is known.
                if await detector.leader.wait_replicated():
                    self._begin(who, draw.choice((0.02, 0.1, 0.3)))
                    await detector.leader.wait_replicated()
            if draw.random() < 0.05:
                time.sleep(draw.choice((0.01, 0.05)))  # noqa: ASYNC251 - it stands still
            await asyncio.sleep(0.002)
        detector.kill()

    def _begin(self, who: str, seconds: float) -> None:
        detector = self.detector
        detector.steps.append((who, "high"))
        detector.ends[who] = self.ends[who] = boot_clock() + seconds
        detector.leader.replicate([("s", who, "high")], detector.deadline)


@pytest.mark.parametrize("seed", range(scaled(3)))
def test_no_situation_outlives_its_time_at_another_gateway(seed: int) -> None:
    """Against the plainest model: the moment at which each situation was to end."""
    terms = ReplicationTerms(TERMS.secret, TERMS.largest, lease=2.0, patience=60.0)
    stage = Stage(seed, terms)
    thread = threading.Thread(target=stage.run)
    thread.start()
    assert stage.ready.wait(LONG)
    known: set[str] = set()

    async def work() -> None:
        follower, board = await join(stage.detector, terms)
        doubts = 0
        deadline = boot_clock() + LONG
        while (len(known) < 60 or not doubts) and boot_clock() < deadline:
            for who, ends in list(stage.ends.items())[-8:]:
                begun = boot_clock()
                if look(follower, board, who) == "high":
                    known.add(who)
                    assert begun < ends
            if follower.awaiting_leader:
                doubts += 1
                await follower.wait_current()
            if not follower.joined:
                await follower.join(f"127.0.0.1:{stage.detector.port}", LONG)
            await asyncio.sleep(0)
        assert len(known) >= 60
        assert doubts
        follower.leave("the test ends")

    try:
        run(work, sockets=True)
    finally:
        stage.over.set()
        thread.join()
