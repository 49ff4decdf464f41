"""Plain packets pass as bytes, without a reader: what comes out is what the loops would give.

Whatever either side sends, however it is cut and whatever is wrong with it, a client whose plain
packets take the short way and one whose packets all take the long way do the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, pairwise
from random import Random
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

KNOWN = ["a/b", "a/c"]
ODD = ["a/\x01", "!odd", "$x", "secret/x", "a/" + "long/" * 30]
PAYLOADS = [b"", b"x", b"y", b"z" * 200, b"w" * 20_000]
PROPERTIES: dict[str, list[Any]] = {
    "payload_format": [0, 1],
    "message_expiry": [0, 60],
    "content_type": ["t", "\x02"],
    "response_topic": ["r/1", "!AP/a"],
    "correlation_data": [b"", b"c" * 200],
    "user": [
        (("k", "v"),),
        (("k", "1"), ("k", "2")),
        (("k", "v" * 300),),
        (("purpose-aip", "elsewhere"),),
        (("penstock-publisher", "somebody else"), ("k", "v")),
    ],
}
"""All that a PUBLISH may have in both directions, in values that are dealt with differently."""
COPIES = [[[1]], [[2]], [[1, 2]], [[1], [2]], [[3], [1]], [[9]]]
seeds = st.integers(0, 1 << 32).map(Random)
"""Drawn by number: shrinking helps little here, and evenly drawn packets meet each other more."""


def properties(drawn: Random) -> Properties:
    """Draw any combination of properties, mostly none."""
    if drawn.random() < 0.7:
        return Properties()
    share = drawn.choice([0.2, 0.5, 1.0])
    names = [it for it in PROPERTIES if drawn.random() < share]
    return Properties(**{it: drawn.choice(PROPERTIES[it]) for it in names})


def publication(drawn: Random, qualities: Sequence[int]) -> Packet:
    """Make what a client sends, plain in most ways."""
    if drawn.random() < 0.2:
        return Puback(drawn.randint(1, 6), drawn.choice([0, 0, 0x87]))
    qos = drawn.choice(qualities)
    return Publish.of(
        drawn.choice(ODD if drawn.random() < 0.1 else KNOWN),
        drawn.choice(PAYLOADS),
        qos=qos,
        packet_id=drawn.randint(1, 6) if qos else 0,
        retain=drawn.random() < 0.2,
        dup=bool(qos) and drawn.random() < 0.2,
        properties=Properties(topic_alias=1) if drawn.random() < 0.03 else properties(drawn),
    )


def deliveries(drawn: Random) -> list[Packet]:
    """Make what the broker sends: a message, once or as copies, or how an exchange goes on."""
    if drawn.random() < 0.2:
        kinds: list[Packet] = [Puback(1), Puback(2, 0x87), Pubrel(2), Pubcomp(3)]
        return [drawn.choice(kinds)]
    qos = drawn.choice([0, 0, 0, 1, 1, 2])
    topic = drawn.choice(ODD if drawn.random() < 0.1 else KNOWN)
    payload, said = drawn.choice(PAYLOADS), properties(drawn)
    retain = drawn.random() < 0.2
    return [
        delivery(
            topic,
            *numbers,
            payload=payload,
            retain=retain,
            said=said,
            qos=qos,
            packet_id=drawn.randint(1, 6) if qos else 0,
            dup=bool(qos) and drawn.random() < 0.2,
        )
        for numbers in drawn.choice(COPIES)
    ]


def pieces(drawn: Random, packets: Sequence[Packet], version: int, *, broken: bool) -> list[bytes]:
    """Encode packets, break a byte if so, and cut them: between packets, or anywhere."""
    encoded = [it.encode(version) for it in packets]
    if drawn.random() < 0.5 and not broken:
        return encoded
    data = bytearray(b"".join(encoded))
    if broken:
        data[drawn.randrange(len(data))] = drawn.randrange(256)
    inside = [drawn.randrange(len(data)) for _ in range(drawn.randrange(4))]
    places = [0, *sorted(inside), len(data)]
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
        sorted(client._refused or ()),
        client.backlog.busy,
        client.lane is None,
    ]


def compare(trial: Callable[[Random], Coroutine[Any, Any, Any]], drawn: Random) -> None:
    """Let the same happen on both ways."""
    seed = drawn.getrandbits(64)
    with long_way(taken=True):
        expected = asyncio.run(trial(Random(seed)))
    with long_way(taken=False):
        found = asyncio.run(trial(Random(seed)))
    assert found == expected


@given(seeds)
def test_what_a_client_sends(drawn: Random) -> None:
    version, laned = drawn.choice([V3, V5]), drawn.random() < 0.5
    qualities = drawn.choice([[0], [0, 1, 1, 2]])

    async def trial(drawn: Random) -> list[Any]:
        source = LineBroker()
        async with source.lane() as (lanes, lane, line):
            made = opened(version, lanes=lanes if laned else None)
            on_lane: list[Packet] = []
            on_own: list[Packet] = []
            told: list[Packet] = []
            states: list[Any] = []
            for broken in (False, False, True):
                # From here on both topics are known.
                made.send(*(Publish.of(topic, b"0") for topic in KNOWN))
                packets = [publication(drawn, qualities) for _ in range(6)]
                for data in pieces(drawn, packets, version, broken=broken):
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

    compare(trial, drawn)


@given(seeds)
def test_what_the_broker_sends(drawn: Random) -> None:
    version, subscriptions = drawn.choice([V3, V5]), drawn.randint(1, 3)

    async def trial(drawn: Random) -> list[Any]:
        made = opened(version)
        for text in ["a/#", "#", "a/b"][:subscriptions]:
            made.subscribe(text)
        packets = list(chain.from_iterable(deliveries(drawn) for _ in range(6)))
        seen: list[Any] = []
        for broken in (False, False, True):
            drawn.shuffle(packets)
            for data in pieces(drawn, packets, V5, broken=broken):
                if made.client.ended:
                    break
                made.upstream.data_received(data)
                await turn()
                seen.append([made.broker.taken(), made.line.taken()])
            seen.append(state(made))
        return seen

    compare(trial, drawn)


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
