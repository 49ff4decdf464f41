"""One client of a gateway without sockets: both its connections write to lines that take note."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from penstock.clock import boot_clock
from penstock.config.gateway import GatewaySettings, RecordingSettings
from penstock.gateway.broker import PUBLISHER, BrokerAddress, Offer
from penstock.gateway.connection.admission import Admission
from penstock.gateway.connection.broker_connection import OPENING
from penstock.gateway.connection.client_registry import ClientRegistry
from penstock.gateway.connection.context import ConnectionContext
from penstock.gateway.connection.downstream import Downstream, Handlers
from penstock.gateway.connection.upstream import Upstream
from penstock.gateway.counters import Counters
from penstock.gateway.event_loop import SessionWriter
from penstock.gateway.limits import Arrivals, Limits
from penstock.gateway.publishing.lanes import Lane, Lanes
from penstock.gateway.publishing.wills import Wills
from penstock.gateway.recording.recorder import Recorder
from penstock.gateway.session import Session
from penstock.model.purposes import PurposeSet
from penstock.mqtt import (
    NO_PROPERTIES,
    V5,
    Connack,
    Connect,
    Packet,
    Properties,
    Publish,
    Reader,
    Sender,
)
from penstock.policy.purposes.settings import Notation, PurposeSettings
from penstock.store.sessions import SessionChange
from tests.support.gateway.authorization import Checks

QUEUE = 65_536
NAME = "me"


class Line(asyncio.Transport):
    """A transport that takes note of what is asked of it."""

    def __init__(self, sender: Sender, version: int) -> None:
        super().__init__()
        self._reader = Reader(sender, version=version)
        self._closing = False
        self._read = True
        self.waiting = 0
        """What it says that waits to be written."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._reader.feed(bytes(data))

    def taken(self) -> list[Packet]:
        """Return what was written since the last call."""
        found: list[Packet] = []
        while batch := self._reader.packets():
            found += batch
        return found

    def is_read(self) -> bool:
        return self._read

    def pause_reading(self) -> None:
        self._read = False

    def resume_reading(self) -> None:
        self._read = True

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    def abort(self) -> None:
        self._closing = True

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        del name
        return default


class NoWills:
    """Stands in where no client has a will."""

    def forget(self, session: Session) -> None:
        del session


class Socketless:
    """An open client with its connection to the broker, on the running loop."""

    def __init__(
        self,
        version: int = V5,
        *,
        takes: Properties | None = None,
        close_denied: bool = False,
        lanes: Lanes | None = None,
    ) -> None:
        self.checks = Checks(settings=PurposeSettings())
        self.rules = self.checks.rules
        self.rules.fresh_until = boot_clock() + 3_600
        self.counters = Counters()
        limits = replace(Limits.of(GatewaySettings()), queue=QUEUE)
        writer: SessionWriter[SessionChange] = SessionWriter(self._store)
        self.registry = ClientRegistry(self.rules, self.counters, writer)
        arrivals = Arrivals(limits, self.counters)
        arrival = arrivals.admit("", lambda: None, tls=False)
        assert arrival is not None
        context = ConnectionContext(
            asyncio.get_running_loop(),
            arrivals=arrivals,
            rules=self.rules,
            delivery_check=self.checks.delivery,
            limits=limits,
            counters=self.counters,
            denials=self.checks.denials,
            recorder=Recorder(RecordingSettings(), cast("Any", None)),
            wills=cast("Wills", NoWills()),
            lanes=Lanes(cast("Any", None), 0) if lanes is None else lanes,
            close_denied=close_denied,
        )
        notation = Notation()
        admission = Admission(
            context, self.checks.publication, notation, cast("Any", None), cast("Any", None)
        )
        handlers = Handlers(admission, cast("Any", None), cast("Any", None))
        self.client = Downstream(context, self.registry, arrival, handlers)
        self.line = Line(Sender.SERVER, version)
        self.client.connection_made(self.line)
        connect = Connect(NAME, version=version, properties=takes or Properties())
        self.client.connection.see(Sender.CLIENT, connect)
        self.client.take_connect(connect)
        self.client.identify(Session(NAME, "anonymous", 0))
        self.client.reader = Reader(
            Sender.CLIENT,
            version=version,
            topics=context.topics,
            properties=context.client_properties,
        )
        self.registry.take_over(self.client)
        self.upstream = Upstream(self.client)
        self.broker = Line(Sender.CLIENT, V5)
        self.upstream.connection_made(self.broker)
        self.client.attach(self.upstream)
        self.upstream.intake.open(Connect(NAME))
        self.upstream.data_received(Connack().encode(V5))

    def open(self) -> list[Packet]:
        """Let the client in; return what reaches it after its CONNACK."""
        told = Connack()
        offer = Offer(
            packet=1 << 20,
            receive_maximum=20,
            topic_aliases=0,
            keep_alive=60,
            broker_keep_alive=60,
            client_id_bytes=1000,
            topic_bytes=1000,
            topic_levels=64,
            session_expiry=0,
        )
        self.client.let_in(told, told.encode(self.client.version), offer, 20)
        self.upstream.resume(OPENING)
        self.broker.taken()
        return self.line.taken()[1:]

    def subscribe(self, text: str, purpose: str | None = None, identifier: int = 0) -> int:
        """Let the client hold a subscription; return its number at the broker."""
        return self.checks.subscribe(self.client.session, text, purpose, identifier)

    def reserve(self, text: str, *allowed: str) -> None:
        """Reserve topics for some purposes."""
        self.rules.engine.reserve(text, PurposeSet.of(allowed, ()))
        self.rules.generation += 1

    def deliver(self, *packets: Packet) -> list[Packet]:
        """Let the broker send packets; return what reaches the client."""
        self.upstream.data_received(b"".join(it.encode(V5) for it in packets))
        return self.line.taken()

    def send(self, *packets: Packet) -> list[Packet]:
        """Let the client send packets; return what reaches the broker."""
        version = self.client.version
        self.client.data_received(b"".join(it.encode(version) for it in packets))
        return self.broker.taken()

    @staticmethod
    async def _store(changes: list[SessionChange]) -> None:
        del changes


def delivery(
    topic: str,
    *numbers: int,
    payload: bytes = b"x",
    qos: int = 0,
    packet_id: int = 0,
    dup: bool = False,
    retain: bool = False,
    said: Properties = NO_PROPERTIES,
) -> Publish:
    """Make a message as the broker delivers it: under numbers of subscriptions, stamped."""
    properties = replace(
        said, subscription_identifiers=numbers, user=(*said.user, (PUBLISHER, "somebody"))
    )
    return Publish.of(
        topic, payload, qos=qos, packet_id=packet_id, dup=dup, retain=retain, properties=properties
    )


class LineBroker:
    """A broker that lanes are opened to, without sockets: it answers when it is told to."""

    timeout = 0.2
    keep_alive = 30
    username = None

    def __init__(self, granted: Properties | None = None) -> None:
        self.granted = granted or Properties()
        self.lines: list[Line] = []
        self.lanes: list[Lane] = []
        self.reason = 0
        """What it answers a CONNECT with."""

    def password(self) -> bytes | None:
        return None

    async def connect(self, factory: Callable[[], Any]) -> Any:
        lane = factory()
        line = Line(Sender.CLIENT, V5)
        self.lines.append(line)
        self.lanes.append(lane)
        lane.connection_made(line)
        answer = Connack(self.reason, properties=self.granted)
        asyncio.get_running_loop().call_soon(lane.data_received, answer.encode(V5))
        return lane

    @asynccontextmanager
    async def lane(self) -> AsyncIterator[tuple[Lanes, Lane, Line]]:
        """Open one lane for as long as the block lasts."""
        lanes = Lanes(cast("BrokerAddress", self), 1)
        await lanes.start()
        lane = cast("Lane", lanes.of(NAME))
        self.lines[-1].taken()
        try:
            yield lanes, lane, self.lines[-1]
        finally:
            lanes.stop()


async def turn() -> None:
    """Let all happen that the loop has been asked for."""
    for _ in range(5):
        await asyncio.sleep(0)
