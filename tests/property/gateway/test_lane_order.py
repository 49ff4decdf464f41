"""The order of one client's messages across lane, own connection, breaks and takeovers, drawn.

A broker deals with the packets of each connection in their order, and with the connections in
any: it is drawn which one it turns to. What it has dealt with, in its order, must be what the
client sent, in the client's order; with a break some of it is lost, and nothing is out of place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.connection.context import Cause
from penstock.gateway.publishing import own_connection
from penstock.gateway.publishing.lanes import Lane, Lanes
from penstock.mqtt import (
    PINGRESP,
    V3,
    V5,
    Packet,
    Pingreq,
    Puback,
    Publish,
)
from tests.support.gateway.socketless import NAME, Line, LineBroker, Socketless, turn

PLAIN, ODD, RETAINED, CONFIRMED = "a/b", "a/\x01", "a/r", "a/q"
SENDS = [PLAIN, PLAIN, PLAIN, ODD, RETAINED, CONFIRMED, CONFIRMED]
steps = st.lists(
    st.one_of(
        st.sampled_from(SENDS),
        st.sampled_from(["lane", "own", "both", "block", "unblock", "tick", "break", "take over"]),
    ),
    min_size=1,
    max_size=40,
)


@dataclass
class Broker:
    """Deals with what comes on a lane and on a client's own connection."""

    lanes: Lanes
    lane: Lane
    lines: list[Line]
    done: list[int] = field(default_factory=list)
    on_lane: list[Packet] = field(default_factory=list)
    on_own: list[Packet] = field(default_factory=list)

    def serve_lane(self) -> None:
        self.on_lane += self.lines[-1].taken()
        if self.on_lane:
            packet = self.on_lane.pop(0)
            if isinstance(packet, Pingreq):
                self.lane.data_received(PINGRESP.encode(V5))
            self._note(packet)

    def serve_own(self, client: Socketless) -> None:
        self.on_own += client.broker.taken()
        if self.on_own:
            packet = self.on_own.pop(0)
            self._note(packet)
            if isinstance(packet, Publish) and packet.qos:
                client.deliver(Puback(packet.packet_id))
            elif isinstance(packet, Pingreq):
                client.upstream.data_received(PINGRESP.encode(V5))

    def _note(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self.done.append(int(packet.payload))


class Trial:
    """One client identifier, and the connections that have it one after another."""

    def __init__(self, broker: Broker, version: int) -> None:
        self.broker = broker
        self.version = version
        self.sent: list[int] = []
        self.lossless = True
        self.blocked = False
        self.client = self._connect()

    def _connect(self) -> Socketless:
        made = Socketless(self.version, lanes=self.broker.lanes)
        made.open()
        return made

    def send(self, topic: str) -> None:
        number = len(self.sent)
        self.sent.append(number)
        qos = 1 if topic == CONFIRMED else 0
        self.client.client.data_received(
            Publish.of(
                # All on one topic: the order that MQTT speaks of.
                PLAIN if topic in {CONFIRMED, RETAINED} else topic,
                b"%d" % number,
                qos=qos,
                packet_id=number + 1 if qos else 0,
                retain=topic == RETAINED,
            ).encode(self.version)
        )

    async def take(self, step: str) -> None:
        broker, lane = self.broker, self.broker.lane
        if step in SENDS:
            # A transport that is not read hands nothing over.
            if self.client.line.is_read():
                self.send(step)
        elif step == "block":
            lane.pause_writing()
        elif step == "unblock":
            lane.resume_writing()
        elif step == "tick":
            for _ in range(20):
                self.client.client.heard = True
                self.client.client.tick()
        elif step == "break":
            self.lossless = False
            broker.on_lane.clear()
            broker.lines[-1].taken()
            lane.connection_lost(None)
            async with asyncio.timeout(5):
                while not lane.open:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            broker.on_lane += broker.lines[-1].taken()
        elif step == "take over":
            await self.take_over()
        if step in {"lane", "both"}:
            broker.serve_lane()
        if step in {"own", "both"}:
            broker.serve_own(self.client)
        await turn()

    async def take_over(self) -> None:
        """Another connection of the same identifier comes, as the handshake lets it."""
        self.lossless = False
        self.client.client.end(Cause.TAKEOVER)
        # The broker closes the old connection with the new one's CONNECT: what it has not read
        # by then is gone.
        opening = asyncio.create_task(self.broker.lane.settle_earlier(NAME))
        while not opening.done():
            await turn()
            self.broker.lane.resume_writing()
            self.broker.serve_lane()
        self.broker.on_own.clear()
        self.client = self._connect()

    async def finish(self) -> None:
        self.broker.lane.resume_writing()
        for _ in range(4 * len(self.sent) + 20):
            await turn()
            self.broker.serve_lane()
            self.broker.serve_own(self.client)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a lane that breaks be reopened at once."""
    monkeypatch.setattr(own_connection, "FIRST_PAUSE", 0.0)


@given(steps, st.sampled_from([V3, V5]))
def test_messages_of_a_client_keep_their_order(drawn: Sequence[str], version: int) -> None:
    async def trial() -> None:
        source = LineBroker()
        async with source.lane() as (lanes, lane, _):
            made = Trial(Broker(lanes, lane, source.lines), version)
            for step in drawn:
                await made.take(step)
            await made.finish()
            done = made.broker.done
            assert done == sorted(set(done)), drawn
            if made.lossless:
                assert done == made.sent, drawn

    asyncio.run(trial())


def test_a_will_follows_what_its_client_published() -> None:
    """The broker is left, and publishes the will, when it has dealt with the messages before."""

    async def trial() -> None:
        source = LineBroker()
        async with source.lane() as (lanes, lane, line):
            made = Socketless(lanes=lanes)
            made.open()
            made.client.data_received(Publish.of(PLAIN, b"1").encode(V5))
            made.client.connection_lost(None)
            await turn()
            assert not made.broker.is_closing()
            assert any(isinstance(it, Publish) for it in line.taken())
            lane.data_received(PINGRESP.encode(V5))
            assert made.broker.is_closing()

    asyncio.run(trial())
