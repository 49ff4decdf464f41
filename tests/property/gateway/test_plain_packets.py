"""Plain packets pass as bytes, without a reader: what comes out is what the loops would give.

Whatever either side sends, however it is cut and whatever is wrong with it, a client whose plain
packets take the short way and one whose packets all take the long way do the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.connection.downstream import Downstream
from penstock.gateway.connection.upstream import Upstream
from penstock.mqtt import (
    PINGREQ,
    PINGRESP,
    V3,
    V5,
    Packet,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrel,
)
from tests.support.gateway.socketless import LineBroker, Socketless, delivery, turn

TOPICS = ["a/b", "a/c", "a/\x01", "!odd", "$x", "secret/x", "a/" + "long/" * 30]
PAYLOADS = [b"", b"x", b"y", b"z" * 200, b"w" * 20_000]
PROPERTIES = [Properties(), Properties(), Properties(content_type="t"), Properties(topic_alias=1)]


@st.composite
def publications(draw: st.DrawFn) -> Packet:
    qos = draw(st.sampled_from([0, 0, 0, 1, 1, 2]))
    return Publish.of(
        draw(st.sampled_from(TOPICS)),
        draw(st.sampled_from(PAYLOADS)),
        qos=qos,
        packet_id=draw(st.integers(1, 6)) if qos else 0,
        retain=draw(st.integers(0, 4)) == 0,
        dup=bool(qos) and draw(st.integers(0, 4)) == 0,
        properties=draw(st.sampled_from(PROPERTIES)),
    )


@st.composite
def deliveries(draw: st.DrawFn) -> Packet:
    qos = draw(st.sampled_from([0, 0, 0, 1, 1, 2]))
    return delivery(
        draw(st.sampled_from(TOPICS)),
        *draw(st.lists(st.integers(1, 3), max_size=2, unique=True)),
        payload=draw(st.sampled_from(PAYLOADS)),
        qos=qos,
        packet_id=draw(st.integers(1, 6)) if qos else 0,
        dup=bool(qos) and draw(st.integers(0, 4)) == 0,
    )


acks = st.builds(Puback, st.integers(1, 6), st.sampled_from([0, 0, 0, 0x87]))
of_client = st.lists(st.one_of(publications(), publications(), acks), min_size=1, max_size=8)
of_broker = st.lists(
    st.one_of(deliveries(), deliveries(), acks, st.sampled_from([Pubrel(2), Pubcomp(3)])),
    min_size=1,
    max_size=8,
)
cuts = st.lists(st.integers(0, 400), max_size=4)
broken = st.none() | st.tuples(st.integers(0, 300), st.integers(0, 255))


def pieces(
    packets: Sequence[Packet], version: int, cut: list[int], flip: tuple[int, int] | None
) -> list[bytes]:
    """Encode packets, break a byte if so, and cut them; most are left one to a piece."""
    encoded = [it.encode(version) for it in packets]
    if not cut and flip is None:
        return encoded
    data = bytearray(b"".join(encoded))
    if flip is not None:
        data[flip[0] % len(data)] = flip[1]
    places = [0, *sorted(it for it in cut if it < len(data)), len(data)]
    return [bytes(data[a:b]) for a, b in pairwise(places) if b > a]


@contextmanager
def long_way(*, taken: bool) -> Iterator[None]:
    """Let all packets take the loops, or leave the plain ones their short way."""
    with pytest.MonkeyPatch.context() as patch:
        if taken:
            patch.setattr(Downstream, "_pass_plain", lambda *_: 0)
            patch.setattr(Upstream, "_pass_plain", lambda *_: 0)
        yield


def opened(version: int, **given_: Any) -> Socketless:
    made = Socketless(version, **given_)
    made.reserve("secret/#", "elsewhere")
    made.open()
    return made


def state(made: Socketless) -> list[Any]:
    client, counters = made.client, made.counters
    return [
        client.ended,
        sorted(client.unacked),
        counters.messages_in,
        counters.messages_out,
        sorted(made.upstream.denied),
        sorted(client.refused),
        client.backlog.busy,
        client.lane is None,
    ]


@given(of_client, of_client, cuts, broken, st.sampled_from([V3, V5]), st.booleans())
def test_what_a_client_sends(
    first: list[Packet],
    more: list[Packet],
    cut: list[int],
    flip: tuple[int, int] | None,
    version: int,
    laned: bool,  # noqa: FBT001
) -> None:
    async def trial() -> list[Any]:
        source = LineBroker()
        async with source.lane() as (lanes, lane, line):
            made = opened(version, lanes=lanes if laned else None)
            # Both topics are known from here on.
            made.send(*(Publish.of(topic, b"0") for topic in ("a/b", "a/c", "a/b", "a/c")))
            on_lane: list[Packet] = []
            on_own: list[Packet] = []
            told: list[Packet] = []
            states: list[Any] = []
            for packets, change in ((first, False), (more, True)):
                for data in pieces(packets, version, cut, flip if change else None):
                    if made.client.ended or not made.line.is_read():
                        break
                    made.client.data_received(data)
                    for _ in range(3):  # until nothing waits for the lane
                        await turn()
                        taken = line.taken()
                        on_lane += [it for it in taken if isinstance(it, Publish)]
                        lane.data_received(PINGRESP.encode(V5) * taken.count(PINGREQ))
                    on_own += made.broker.taken()
                    told += made.line.taken()
                states.append(state(made))
                made.rules.generation += 1
            return [on_lane, on_own, told, states]

    with long_way(taken=True):
        expected = asyncio.run(trial())
    with long_way(taken=False):
        found = asyncio.run(trial())
        assert found == expected


@given(of_broker, of_broker, cuts, broken, st.sampled_from([V3, V5]), st.integers(1, 3))
def test_what_the_broker_sends(
    first: list[Packet],
    more: list[Packet],
    cut: list[int],
    flip: tuple[int, int] | None,
    version: int,
    subscriptions: int,
) -> None:
    async def trial() -> list[Any]:
        made = opened(version)
        for text in ["a/#", "#", "a/b"][:subscriptions]:
            made.subscribe(text)
        seen: list[Any] = []
        for packets, change in ((first, False), (first, False), (more, True)):
            for data in pieces(packets, V5, cut, flip if change else None):
                if made.client.ended:
                    break
                made.upstream.data_received(data)
                await turn()
                seen.append([made.broker.taken(), made.line.taken()])
            seen.append(state(made))
        return seen

    with long_way(taken=True):
        expected = asyncio.run(trial())
    with long_way(taken=False):
        found = asyncio.run(trial())
        assert found == expected


def test_plain_packets_do_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the comparison is about happens: neither loop nor reader sees them."""

    async def trial() -> None:
        made = opened(V3)
        number = made.subscribe("a/b")
        publish = Publish.of("a/b", b"1", qos=1, packet_id=1)
        told = delivery("a/b", number, qos=1, packet_id=1)
        made.send(publish)
        made.deliver(told, Puback(1))
        made.send(Puback(1))
        for kind in (Downstream, Upstream):
            monkeypatch.setattr(kind, "forward" if kind is Downstream else "deliver", None)
        assert [type(it) for it in made.send(publish, Puback(1))] == [Publish, Puback]
        assert [type(it) for it in made.deliver(told, Puback(1))] == [Publish, Puback]

    asyncio.run(trial())
