"""What gateways tell each other of takeovers, without sockets: who waits, who wins, who is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from penstock.gateway.broker import BrokerAddress
from penstock.gateway.publishing import peers as module
from penstock.gateway.publishing.peers import PROBES, Peers
from penstock.mqtt import (
    PINGRESP,
    V5,
    Packet,
    Pingreq,
    Properties,
    Puback,
    Publish,
    Suback,
    Subscribe,
)
from tests.support.gateway.socketless import LineBroker, turn

OTHER = "0123456789abcdef"
LOW, HIGH = "0" * 16, "f" * 16


class Gateway:
    """A gateway that others tell, and the broker between them."""

    def __init__(self) -> None:
        self.source = LineBroker()
        self.gave_way: list[tuple[str, Callable[[], None]]] = []
        self.lost = 0
        self.peers = Peers(
            cast("BrokerAddress", self.source), "!", lambda *it: self.gave_way.append(it), self.lose
        )

    def lose(self) -> None:
        self.lost += 1

    def told(self) -> list[Packet]:
        """Return what it sent since the last call."""
        return self.source.lines[-1].taken()

    def published(self) -> list[tuple[str, bytes]]:
        return [(it.topic, it.payload) for it in self.told() if isinstance(it, Publish)]

    def hear(self, topic: str, payload: str) -> None:
        self.peers.data_received(Publish.of(f"!penstock/{topic}", payload.encode()).encode(V5))


@asynccontextmanager
async def joined() -> AsyncIterator[Gateway]:
    """Run a gateway that knows one other."""
    made = Gateway()
    running = asyncio.create_task(made.peers.run())
    await made.peers.tried.wait()
    first = [it for it in made.told() if isinstance(it, Subscribe)]
    assert len(first) == 1
    made.peers.data_received(Suback(1, (0, 0, 0)).encode(V5))
    made.hear(f"gateway/{OTHER}", "there")
    *probes, sign, ping = made.told()
    assert [it.packet_id for it in probes if isinstance(it, Publish)] == list(PROBES)
    assert isinstance(sign, Publish)
    assert (sign.topic, sign.retain) == (f"!penstock/gateway/{made.peers.name}", True)
    assert isinstance(ping, Pingreq)
    assert not made.peers.ready.is_set()
    for number in PROBES:
        made.peers.data_received(Puback(number).encode(V5))
    made.peers.data_received(PINGRESP.encode(V5))
    assert made.peers.ready.is_set()
    try:
        yield made
    finally:
        running.cancel()


def run(trial: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(trial())


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([PINGRESP, *map(Puback, PROBES)], id="out of turn"),
        pytest.param([Puback(PROBES[0]), PINGRESP], id="one in turn"),
        pytest.param([Puback(PROBES[0], 0x87), PINGRESP], id="not allowed"),
    ],
)
def test_a_broker_that_does_not_answer_in_turn_or_allow_it_gets_no_lanes(
    answers: list[Packet],
) -> None:
    async def trial() -> None:
        made = Gateway()
        running = asyncio.create_task(made.peers.run())
        await made.peers.tried.wait()
        made.peers.data_received(Suback(1, (0, 0, 0)).encode(V5))
        made.told()
        for it in answers:
            made.peers.data_received(it.encode(V5))
        assert made.peers.decided.is_set()
        assert made.peers.refused
        assert not made.peers.ready.is_set()
        # Its sign is taken down, and stays so; nobody waits for others.
        sign = f"!penstock/gateway/{made.peers.name}"
        assert made.published() == [(sign, b"")]
        made.hear(f"gateway/{made.peers.name}", "")
        made.hear(f"gateway/{OTHER}", "there")
        await made.peers.take_over("sensor", LOW)
        assert made.published() == []
        running.cancel()

    run(trial)


def test_where_a_takeover_might_be_too_large_for_the_broker_there_are_no_lanes() -> None:
    async def trial() -> None:
        made = Gateway()
        made.source.granted = Properties(maximum_packet_size=1_100)
        running = asyncio.create_task(made.peers.run())
        await made.peers.tried.wait()
        made.peers.data_received(Suback(1, (0, 0, 0)).encode(V5))
        assert made.peers.refused
        running.cancel()

    run(trial)


def test_an_answer_to_an_earlier_question_decides_nothing() -> None:
    """The clock may have asked before the SUBACK came."""

    async def trial() -> None:
        made = Gateway()
        running = asyncio.create_task(made.peers.run())
        await made.peers.tried.wait()
        made.peers.tick(1)
        made.peers.data_received(Suback(1, (0, 0, 0)).encode(V5))
        assert sum(isinstance(it, Pingreq) for it in made.told()) == 2
        made.peers.data_received(PINGRESP.encode(V5))
        assert not made.peers.decided.is_set()
        for number in PROBES:
            made.peers.data_received(Puback(number).encode(V5))
        made.peers.data_received(PINGRESP.encode(V5))
        assert made.peers.ready.is_set()
        running.cancel()

    run(trial)


def test_who_takes_over_waits_for_all_others() -> None:
    async def trial() -> None:
        async with joined() as made:
            taking = asyncio.create_task(made.peers.take_over("sensor", LOW))
            await turn()
            name = made.peers.name
            assert made.published() == [("!penstock/takeover", f"{name}{LOW}sensor".encode())]
            made.hear(f"answer/{name}", f"{HIGH}{OTHER}")  # to another takeover
            await turn()
            assert not taking.done()
            made.hear(f"answer/{name}", f"{LOW}{OTHER}")
            await taking

    run(trial)


def test_nobody_is_waited_for_who_is_not_there_or_leaves() -> None:
    async def trial() -> None:
        async with joined() as made:
            taking = asyncio.create_task(made.peers.take_over("sensor", LOW))
            await turn()
            made.hear(f"gateway/{OTHER}", "")
            await taking
            await made.peers.take_over("sensor", LOW)

    run(trial)


def test_who_is_taken_over_gives_way_and_answers_when_that_is_done() -> None:
    async def trial() -> None:
        async with joined() as made:
            made.hear("takeover", f"{OTHER}{LOW}sensor")
            [(client_id, done)] = made.gave_way
            assert client_id == "sensor"
            assert made.published() == []
            done()
            answer = f"{LOW}{made.peers.name}".encode()
            assert made.published() == [(f"!penstock/answer/{OTHER}", answer)]
            made.hear("takeover", f"{made.peers.name}{LOW}sensor")  # its own
            assert len(made.gave_way) == 1

    run(trial)


@pytest.mark.parametrize(
    ("own", "theirs", "answered", "gives_way"),
    [(HIGH, LOW, False, False), (LOW, HIGH, False, True), (HIGH, LOW, True, True)],
)
def test_of_two_at_once_the_greater_holder_wins_and_who_comes_later_always(
    own: str, theirs: str, *, answered: bool, gives_way: bool
) -> None:
    async def trial() -> None:
        async with joined() as made:
            third = "fedcba9876543210"
            made.hear(f"gateway/{third}", "there")
            taking = asyncio.create_task(made.peers.take_over("sensor", own))
            await turn()
            if answered:
                made.hear(f"answer/{made.peers.name}", f"{own}{OTHER}")
            made.hear("takeover", f"{OTHER}{theirs}another")
            assert [it for it, _ in made.gave_way] == ["another"]
            made.hear("takeover", f"{OTHER}{theirs}sensor")
            assert [it for it, _ in made.gave_way] == ["another"] + ["sensor"] * gives_way
            taking.cancel()

    run(trial)


def test_one_that_does_not_answer_is_taken_for_gone_and_says_so_if_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.01)

    async def trial() -> None:
        async with joined() as made:
            await made.peers.take_over("sensor", LOW)
            assert made.published()[-1] == (f"!penstock/gateway/{OTHER}", b"")
            name = made.peers.name
            made.hear(f"gateway/{name}", "")
            assert made.published() == [(f"!penstock/gateway/{name}", name.encode())]

    run(trial)


def test_a_gateway_that_cannot_be_told_says_so() -> None:
    async def trial() -> None:
        async with joined() as made:
            taking = asyncio.create_task(made.peers.take_over("sensor", LOW))
            await turn()
            made.peers.connection_lost(None)
            await taking
            assert made.lost == 1
            assert not made.peers.ready.is_set()

    run(trial)


def test_while_nobody_can_be_told_nobody_takes_over_unless_the_broker_forbids_it() -> None:
    async def trial() -> None:
        made = Gateway()
        with pytest.raises(TimeoutError):
            await made.peers.take_over("sensor", LOW)
        running = asyncio.create_task(made.peers.run())
        await made.peers.tried.wait()
        made.peers.data_received(Suback(1, (0, 0x87, 0)).encode(V5))
        await made.peers.take_over("sensor", LOW)
        assert not made.peers.ready.is_set()
        running.cancel()

    run(trial)
