"""Leader and follower, around a detector that is only a list."""

from __future__ import annotations

import asyncio
import random

import pytest

from penstock.clock import boot_clock
from penstock.gateway.publications import PublishOutcome, SubmissionId
from penstock.gateway.replication.follower import ReplicationFollower
from penstock.gateway.replication.leader import ReplicationLeader
from penstock.gateway.replication.link import Link, ReplicationTerms
from penstock.gateway.replication.protocol import Message, StateUpdate
from penstock.policy.access.emergencies import SituationsUnknownError
from tests.support.gateway.replication import (
    LONG,
    TERMS,
    Detector,
    Record,
    ask,
    make_follower,
    run,
    until,
)
from tests.support.scale import scaled


def test_a_message_is_decided_there_and_known_here_before_it_passes() -> None:
    async def work() -> None:
        detector = Detector(Record())
        detector.steps.append(("old", "high"))
        await detector.start()
        follower, board, _ = make_follower()
        assert await follower.join(f"127.0.0.1:{detector.port}", LONG) == ""
        assert board.current("s", "old") == "high"
        result = await follower.submit(ask("p", "high"))
        assert result.accepted
        assert board.current("s", "p") == "high"
        assert result.journal is not None
        durable: list[bool] = []
        result.journal.wait(result.ticket, durable.append)
        assert durable == []
        await detector.flush()
        await until(lambda: durable == [True])
        denied = await follower.submit(ask("p", "denied"))
        assert (denied.outcome, denied.rule) == (PublishOutcome.DENIED, "a rule")
        assert detector.steps == [("old", "high"), ("p", "high")]
        follower.leave("the test ends")
        with pytest.raises(SituationsUnknownError):
            board.current("s", "p")
        detector.kill()

    run(work)


def test_nothing_passes_before_the_slowest_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[ReplicationFollower, Link, Message]] = []
    hear = ReplicationFollower._hear

    async def work() -> None:
        detector = Detector(Record())
        await detector.start()
        quick, quick_board, _ = make_follower()
        slow, slow_board, _ = make_follower()

        def hear_late(self: ReplicationFollower, link: Link, message: Message) -> None:
            if self is slow and isinstance(message, StateUpdate):
                kept.append((self, link, message))
            else:
                hear(self, link, message)

        monkeypatch.setattr(ReplicationFollower, "_hear", hear_late)
        for follower in (quick, slow):
            assert await follower.join(f"127.0.0.1:{detector.port}", LONG) == ""
        waiting = quick.submit(ask("p", "high"))
        await until(lambda: kept and quick_board.current("s", "p") == "high")
        flushed = asyncio.ensure_future(detector.flush())
        own: list[bool] = []
        detector.leader.when_replicated(own.append)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert not flushed.done()
        assert (own, detector.durable) == ([], 0)
        assert slow_board.current("s", "p") is None
        for given in kept:
            hear(*given)
        assert (await waiting).accepted
        await flushed
        assert (own, detector.durable) == ([True], 1)
        assert slow_board.current("s", "p") == "high"
        # One that leaves keeps nobody waiting; one that just breaks does, until its lease ends.
        kept.clear()
        waiting = quick.submit(ask("p", "none"))
        await until(lambda: kept)
        slow.leave("the test wants it")
        assert (await waiting).accepted
        detector.kill()
        quick.leave("the test ends")

    run(work)


def test_who_breaks_off_may_go_by_what_it_knew_for_a_lease() -> None:
    terms = ReplicationTerms(TERMS.secret, TERMS.largest, lease=1.0, patience=60.0)

    async def work() -> None:
        detector = Detector(Record(), terms)
        await detector.start()
        follower, board, lost = make_follower(terms)
        assert await follower.join(f"127.0.0.1:{detector.port}", LONG) == ""
        for link in list(detector.leader._peers):
            assert link._transport is not None
            link._transport.abort()
        await until(lambda: not detector.leader._peers)
        detector.decide(ask("p", "high"), SubmissionId("x", 1, 1))
        assert detector.leader.pending
        assert await detector.leader.wait_replicated()
        await until(lambda: lost)
        with pytest.raises(SituationsUnknownError):
            board.current("s", "p")
        # Who takes over from another waits as long: it does not know whom that one told.
        moment = boot_clock() + 1.0
        detector.leader.lead(None, moment)
        detector.decide(ask("p", "none"), SubmissionId("x", 2, 2))
        assert detector.leader.pending
        assert await detector.leader.wait_replicated()
        assert boot_clock() >= moment
        detector.kill()

    run(work)


def test_what_is_not_heard_again_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = ReplicationTerms(TERMS.secret, TERMS.largest, lease=0.4, patience=60.0)

    async def work() -> None:
        detector = Detector(Record(), terms)
        await detector.start()
        follower, board, lost = make_follower(terms)
        assert await follower.join(f"127.0.0.1:{detector.port}", LONG) == ""
        # It stands still: it hears, and does not answer any more.
        monkeypatch.setattr(ReplicationLeader, "_answer_ping", lambda *_: None)
        await until(lambda: lost)
        assert not follower.joined
        with pytest.raises(SituationsUnknownError):
            board.current("s", "p")
        detector.kill()

    run(work)


def test_who_detects_says_how_long_it_holds() -> None:
    short = ReplicationTerms(TERMS.secret, TERMS.largest, lease=0.4, patience=60.0)

    async def work() -> None:
        detector = Detector(Record(), short)
        await detector.start()
        # A neighbour with settings of its own that say: thirty seconds.
        follower, _, lost = make_follower(TERMS)
        assert await follower.join(f"127.0.0.1:{detector.port}", LONG) == ""
        assert follower._valid_until <= boot_clock() + short.lease
        # On record before it was told anything, and not for less time.
        assert len(detector.announced) == 1
        assert detector.announced[0] >= short.lease
        detector.kill()
        await until(lambda: lost)

    run(work)


def test_nobody_waits_for_ever() -> None:
    terms = ReplicationTerms(TERMS.secret, TERMS.largest, lease=0.4, patience=0.5)

    async def work() -> None:
        detector = Detector(Record(), terms)
        await detector.start()
        follower, _, lost = make_follower(terms)
        assert await follower.join(f"127.0.0.1:{detector.port}", LONG) == ""
        assert follower.asks
        detector.kill()
        await until(lambda: lost)
        waiting = follower.submit(ask("p", "high"))
        assert (await waiting).outcome is PublishOutcome.NO_LEADER
        await until(lambda: not follower.asks)
        again = Detector(Record(), terms)
        await again.start()
        assert await follower.join(f"127.0.0.1:{again.port}", LONG) == ""
        again.epoch = -1  # it will never know the definitions
        assert (await follower.submit(ask("p", "high"))).outcome is PublishOutcome.NO_ANSWER
        assert again.steps == []
        again.kill()
        assert await follower.join("127.0.0.1:1", LONG) != ""
        assert await follower.join("nonsense", LONG) != ""

    run(work)


class Home:
    """Three gateways whose clients publish, and one after the other that detects."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.record = Record()
        self.detector = Detector(self.record)
        self.others = [make_follower() for _ in range(3)]
        self.sent: dict[str, list[str]] = {}
        self.confirmed: dict[str, list[str]] = {}

    async def publish(self, follower: ReplicationFollower, who: str) -> None:
        """Publish as a client does: one after the other; acknowledged when durable."""
        for number in range(25):
            topic = f"{self.draw.choice(('low', 'high'))}-{number}" if number % 3 else "none"
            self.sent.setdefault(who, []).append(topic)
            result = await follower.submit(ask(who, topic))
            assert result.accepted
            if result.journal is not None:
                done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
                result.journal.wait(result.ticket, done.set_result)
                assert await done
            self.confirmed.setdefault(who, []).append(topic)

    async def follow(self, follower: ReplicationFollower) -> None:
        while True:
            if not follower.joined and self.detector.alive:
                # Who was killed while it was called does not answer: its successor is called soon.
                await follower.join(f"127.0.0.1:{self.detector.port}", 2.0)
            await asyncio.sleep(0.002)

    async def hand_over(self) -> None:
        self.detector.kill()
        await asyncio.sleep(self.draw.random() * 0.01)
        self.detector = Detector(self.record)
        await self.detector.start()

    async def live(self) -> int:
        """Let all clients publish, and kill who detects now and then; return how often."""
        await self.detector.start()
        followers = [asyncio.ensure_future(self.follow(it)) for it, _, _ in self.others]
        tasks = [
            asyncio.ensure_future(self.publish(follower, f"c{place}{client}"))
            for place, (follower, _, _) in enumerate(self.others)
            for client in range(3)
        ]
        kills = 0
        while not all(task.done() for task in tasks):
            await asyncio.sleep(self.draw.random() * 0.01)
            if self.draw.random() < 0.2 and kills < 8:
                kills += 1
                await self.hand_over()
            else:
                await self.detector.flush()
        await asyncio.gather(*tasks)
        await until(lambda: all(it.joined for it, _, _ in self.others))
        for follower in followers:
            follower.cancel()
        return kills


@pytest.mark.parametrize("seed", range(scaled(4)))
def test_each_message_counts_once_in_order_across_hand_overs(seed: int) -> None:
    """Against the plainest model: what each client sent, in its order."""

    async def work() -> None:
        home = Home(seed)
        assert await home.live()
        assert home.sent == home.confirmed
        for who, topics in home.sent.items():
            assert [topic for client, topic in home.record.steps if client == who] == topics
        expected = {(who, what) for _, who, what in home.detector.situations()}
        for follower, board, _ in home.others:
            held = {(who, board.current("s", who)) for who in home.sent}
            assert {it for it in held if it[1] is not None} == expected
            await follower.submissions.finish()
            follower.leave("the test ends")
        home.detector.kill()

    run(work, sockets=seed % 2 == 0)
