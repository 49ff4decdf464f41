"""Neighbours and Elsewhere over real connections, around a detector that is only a list."""

from __future__ import annotations

import asyncio
import random

import pytest

from penstock.clock import boot_clock
from penstock.gateway.publish_result import NO_DETECTOR, UNTOLD
from penstock.gateway.replication.follower import Elsewhere
from penstock.gateway.replication.leader import Neighbours
from penstock.gateway.replication.link import Link, Terms
from penstock.gateway.replication.messages import Message, Moves
from penstock.gateway.replication.receipts import Receipt
from penstock.policy.access.emergencies import SituationsUnknownError
from tests.gateway.sharing import LONG, TERMS, Detector, Record, ask, make_elsewhere, run, until


def test_a_message_is_decided_there_and_known_here_before_it_passes() -> None:
    async def work() -> None:
        detector = Detector(Record())
        detector.steps.append(("old", "high"))
        await detector.start()
        elsewhere, board, _ = make_elsewhere()
        assert await elsewhere.join(f"127.0.0.1:{detector.port}", LONG) == ""
        assert board.current("s", "old") == "high"
        written = await elsewhere.submit(ask("p", "high"))
        assert not written.why
        assert board.current("s", "p") == "high"
        assert written.keeper is not None
        durable: list[bool] = []
        written.keeper.wait(written.ticket, durable.append)
        assert durable == []
        await detector.flush()
        await until(lambda: durable == [True])
        denied = await elsewhere.submit(ask("p", "denied"))
        assert (denied.why, denied.rule) == ("policy", "a rule")
        assert detector.steps == [("old", "high"), ("p", "high")]
        elsewhere.leave("the test ends")
        with pytest.raises(SituationsUnknownError):
            board.current("s", "p")
        detector.kill()

    run(work)


def test_nothing_passes_before_the_slowest_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[Elsewhere, Link, Message]] = []
    hear = Elsewhere._hear

    async def work() -> None:
        detector = Detector(Record())
        await detector.start()
        quick, quick_board, _ = make_elsewhere()
        slow, slow_board, _ = make_elsewhere()

        def hear_late(self: Elsewhere, link: Link, message: Message) -> None:
            if self is slow and isinstance(message, Moves):
                kept.append((self, link, message))
            else:
                hear(self, link, message)

        monkeypatch.setattr(Elsewhere, "_hear", hear_late)
        for elsewhere in (quick, slow):
            assert await elsewhere.join(f"127.0.0.1:{detector.port}", LONG) == ""
        waiting = quick.submit(ask("p", "high"))
        await until(lambda: kept and quick_board.current("s", "p") == "high")
        flushed = asyncio.ensure_future(detector.flush())
        own: list[bool] = []
        detector.neighbours.when_known(own.append)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert not flushed.done()
        assert (own, detector.durable) == ([], 0)
        assert slow_board.current("s", "p") is None
        for given in kept:
            hear(*given)
        assert not (await waiting).why
        await flushed
        assert (own, detector.durable) == ([True], 1)
        assert slow_board.current("s", "p") == "high"
        # One that leaves keeps nobody waiting; one that just breaks does, until its lease ends.
        kept.clear()
        waiting = quick.submit(ask("p", "none"))
        await until(lambda: kept)
        slow.leave("the test wants it")
        assert not (await waiting).why
        detector.kill()
        quick.leave("the test ends")

    run(work)


def test_who_breaks_off_may_go_by_what_it_knew_for_a_lease() -> None:
    terms = Terms(TERMS.secret, TERMS.largest, lease=1.0, patience=60.0)

    async def work() -> None:
        detector = Detector(Record())
        await detector.start(terms)
        elsewhere, board, lost = make_elsewhere(terms)
        assert await elsewhere.join(f"127.0.0.1:{detector.port}", LONG) == ""
        for link in list(detector.neighbours._neighbours):
            assert link._transport is not None
            link._transport.abort()
        await until(lambda: not detector.neighbours._neighbours)
        detector.decide(ask("p", "high"), Receipt("x", 1, 1))
        assert detector.neighbours.pending
        assert await detector.neighbours.reach()
        await until(lambda: lost)
        with pytest.raises(SituationsUnknownError):
            board.current("s", "p")
        # Who takes over from another waits as long: it does not know whom that one told.
        moment = boot_clock() + 1.0
        detector.neighbours.begin(None, moment)
        detector.decide(ask("p", "none"), Receipt("x", 2, 2))
        assert detector.neighbours.pending
        assert await detector.neighbours.reach()
        assert boot_clock() >= moment
        detector.kill()

    run(work)


def test_what_is_not_heard_again_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = Terms(TERMS.secret, TERMS.largest, lease=0.4, patience=60.0)

    async def work() -> None:
        detector = Detector(Record())
        await detector.start(terms)
        elsewhere, board, lost = make_elsewhere(terms)
        assert await elsewhere.join(f"127.0.0.1:{detector.port}", LONG) == ""
        # It stands still: it hears, and does not answer any more.
        monkeypatch.setattr(Neighbours, "_answer_ping", lambda *_: None)
        await until(lambda: lost)
        assert not elsewhere.joined
        with pytest.raises(SituationsUnknownError):
            board.current("s", "p")
        detector.kill()

    run(work)


def test_who_detects_says_how_long_it_holds() -> None:
    short = Terms(TERMS.secret, TERMS.largest, lease=0.4, patience=60.0)

    async def work() -> None:
        detector = Detector(Record())
        announced: list[float] = []

        async def announce(seconds: float) -> None:
            announced.append(seconds)

        detector.neighbours.announce = announce
        await detector.start(short)
        # A neighbour with settings of its own that say: thirty seconds.
        elsewhere, _, lost = make_elsewhere(TERMS)
        assert await elsewhere.join(f"127.0.0.1:{detector.port}", LONG) == ""
        assert elsewhere._valid_until <= boot_clock() + short.lease
        # On record before it was told anything, and not for less time.
        assert len(announced) == 1
        assert announced[0] >= short.lease
        detector.kill()
        await until(lambda: lost)

    run(work)


def test_nobody_waits_for_ever() -> None:
    terms = Terms(TERMS.secret, TERMS.largest, lease=0.4, patience=0.5)

    async def work() -> None:
        detector = Detector(Record())
        await detector.start(terms)
        elsewhere, _, lost = make_elsewhere(terms)
        assert await elsewhere.join(f"127.0.0.1:{detector.port}", LONG) == ""
        assert elsewhere.asks
        detector.kill()
        await until(lambda: lost)
        waiting = elsewhere.submit(ask("p", "high"))
        assert (await waiting).why == NO_DETECTOR.why
        await until(lambda: not elsewhere.asks)
        again = Detector(Record())
        await again.start(terms)
        assert await elsewhere.join(f"127.0.0.1:{again.port}", LONG) == ""
        again.neighbours.epoch = lambda: -1  # it will never know the definitions
        assert (await elsewhere.submit(ask("p", "high"))).why == UNTOLD
        assert again.steps == []
        again.kill()
        assert await elsewhere.join("127.0.0.1:1", LONG) != ""
        assert await elsewhere.join("nonsense", LONG) != ""

    run(work)


class Home:
    """Three gateways whose clients publish, and one after the other that detects."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.record = Record()
        self.detector = Detector(self.record)
        self.others = [make_elsewhere() for _ in range(3)]
        self.sent: dict[str, list[str]] = {}
        self.confirmed: dict[str, list[str]] = {}

    async def publish(self, elsewhere: Elsewhere, who: str) -> None:
        """Publish as a client does: one after the other; acknowledged when durable."""
        for number in range(25):
            topic = f"{self.draw.choice(('low', 'high'))}-{number}" if number % 3 else "none"
            self.sent.setdefault(who, []).append(topic)
            written = await elsewhere.submit(ask(who, topic))
            assert not written.why
            if written.keeper is not None:
                done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
                written.keeper.wait(written.ticket, done.set_result)
                assert await done
            self.confirmed.setdefault(who, []).append(topic)

    async def follow(self, elsewhere: Elsewhere) -> None:
        while True:
            if not elsewhere.joined and self.detector.alive:
                await elsewhere.join(f"127.0.0.1:{self.detector.port}", LONG)
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
            asyncio.ensure_future(self.publish(elsewhere, f"c{place}{client}"))
            for place, (elsewhere, _, _) in enumerate(self.others)
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


@pytest.mark.parametrize("seed", range(4))
def test_each_message_counts_once_in_order_across_hand_overs(seed: int) -> None:
    """Against the plainest model: what each client sent, in its order."""

    async def work() -> None:
        home = Home(seed)
        assert await home.live()
        assert home.sent == home.confirmed
        for who, topics in home.sent.items():
            assert [topic for client, topic in home.record.steps if client == who] == topics
        expected = {(who, what) for _, who, what in home.detector.rows()}
        for elsewhere, board, _ in home.others:
            held = {(who, board.current("s", who)) for who in home.sent}
            assert {it for it in held if it[1] is not None} == expected
            await elsewhere.submissions.finish()
            elsewhere.leave("the test ends")
        home.detector.kill()

    run(work)
