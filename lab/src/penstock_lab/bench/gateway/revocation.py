"""How fast a revocation holds everywhere: three gateways, one store.

Method:
- Messages flow all the time from a publisher at gateway 1 to one subscriber at each of
  three gateways; the topic is reserved for the subscribers' purpose.
- In each round a client at gateway 1 reserves the topic for another purpose. From the
  moment the acknowledgement arrives, every message that still reaches a subscriber counts,
  and the last one of a gateway gives that gateway's figure: 0 where there is none.
- When the acknowledgement is read, what gateway 1 had sent before it is read first: the
  socket of its subscriber is emptied before the clock starts.
- Then the topic is given back, and the next round begins when all three receive again.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.components import MosquittoServer, PostgresServer
from penstock.errors import UnavailableError
from penstock.mqtt import (
    V3,
    Connack,
    Connect,
    Packet,
    Puback,
    Publish,
    Reader,
    RequestedSubscription,
    Sender,
    Suback,
    Subscribe,
)
from penstock_lab.bench.gateway.server import GatewayServer
from penstock_lab.bench.load.fleet import LoadError
from penstock_lab.bench.load.open import percentile

GOAL_MS = 100.0
GATEWAYS = 3
TOPIC = "country1/area3/vehicle00000/place/now"
PURPOSE = "operational/billing"
OTHER = "marketing"
_GAP_SECONDS = 0.001
"""Between two messages; also how finely the last delivery can be told."""
_QUIET_SECONDS = 0.25
_GIVE_UP_SECONDS = 10.0


class Peer:
    """A client with a socket of its own, driven by hand."""

    def __init__(self, client_id: str, port: int, *, version: int = V3) -> None:
        self.version = version
        self.socket = socket.create_connection(("127.0.0.1", port), _GIVE_UP_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = Reader(Sender.SERVER, version=version)
        self.send(Connect(client_id, version=version).encode())
        self.await_packet(Connack)

    def send(self, data: bytes) -> None:
        """Send whole packets."""
        self.socket.sendall(data)

    def read(self) -> list[Packet]:
        """Return the packets that are there now."""
        found: list[Packet] = []
        while select.select([self.socket], [], [], 0)[0]:
            data = self.socket.recv(65536)
            if not data:
                raise LoadError("a gateway closed a connection", fix="see its log")
            self._reader.feed(data)
            while batch := self._reader.packets():
                found += batch
        return found

    def await_packet(self, kind: type[Packet]) -> Packet:
        """Wait for the first packet of a kind; what comes before it is dropped."""
        deadline = time.perf_counter() + _GIVE_UP_SECONDS
        while time.perf_counter() < deadline:
            select.select([self.socket], [], [], _GAP_SECONDS)
            for packet in self.read():
                if isinstance(packet, kind):
                    return packet
        raise LoadError(f"no {kind.__name__} came", fix="see the log of the gateway")


class _Stage:
    """The clients at three gateways, and the stream of messages between them."""

    def __init__(self, ports: list[int]) -> None:
        self.officer = Peer("officer", ports[0])
        self.publisher = Peer("publisher", ports[0])
        self.reserve(PURPOSE)
        self.subscribers = [Peer(f"subscriber-{n}", port) for n, port in enumerate(ports)]
        for subscriber in self.subscribers:
            wanted = RequestedSubscription(f"!AP/{TOPIC}{{{PURPOSE}}}")
            subscriber.send(Subscribe(1, (wanted,)).encode(V3))
            answer = subscriber.await_packet(Suback)
            if not isinstance(answer, Suback) or answer.reasons != (0,):
                raise LoadError(f"a subscription was refused: {answer}")
        self._message = Publish.of(TOPIC, b"x" * 32).to_v3()
        self._next = 0.0

    def reserve(self, purpose: str) -> None:
        """Reserve the topic without waiting longer than for the acknowledgement."""
        self.ask_for(purpose)
        self.officer.await_packet(Puback)

    def ask_for(self, purpose: str) -> None:
        """Send the reservation."""
        command = Publish.of(f"!RESERVE/{TOPIC}{{{purpose}}}", qos=1, packet_id=1)
        self.officer.send(command.to_v3())

    def flow(self) -> float:
        """Send the message that is due, wait for whatever comes, and return the time."""
        now = time.perf_counter()
        if now >= self._next:
            self.publisher.send(self._message)
            self._next = now + _GAP_SECONDS
        sockets = [peer.socket for peer in (self.officer, *self.subscribers)]
        select.select(sockets, [], [], max(0.0, self._next - time.perf_counter()))
        return time.perf_counter()

    def received(self) -> list[int]:
        """Return how many messages each subscriber has received since it was last asked."""
        return [
            sum(isinstance(packet, Publish) for packet in subscriber.read())
            for subscriber in self.subscribers
        ]

    def await_flow(self) -> None:
        """Let messages flow until every subscriber receives."""
        deadline = time.perf_counter() + _GIVE_UP_SECONDS
        missing = set(range(len(self.subscribers)))
        while missing:
            if self.flow() > deadline:
                raise LoadError(
                    f"subscribers {sorted(missing)} receive nothing", fix="see the gateways' logs"
                )
            missing -= {n for n, count in enumerate(self.received()) if count}

    def revoke(self) -> list[float]:
        """Take the purpose away; return per gateway how long messages still came, in ms."""
        self.ask_for(OTHER)
        deadline = time.perf_counter() + _GIVE_UP_SECONDS
        while not any(isinstance(packet, Puback) for packet in self.officer.read()):
            if self.flow() > deadline:
                raise LoadError("the reservation was not acknowledged", fix="see the log")
            self.received()
        self.subscribers[0].read()
        start = last = time.perf_counter()
        latest = [0.0] * len(self.subscribers)
        while (now := self.flow()) < last + _QUIET_SECONDS:
            for number, count in enumerate(self.received()):
                if count:
                    latest[number] = (now - start) * 1e3
                    last = now
            if now > deadline:
                raise LoadError("forbidden messages do not end", fix="see the gateways' logs")
        return latest

    def close(self) -> None:
        """Close all connections."""
        for peer in (self.officer, self.publisher, *self.subscribers):
            peer.socket.close()


def measure(folder: Path, broker: MosquittoServer, rounds: int) -> dict[str, Any]:
    """Measure with both stores; PostgreSQL only where it is installed."""
    found: dict[str, Any] = {"goal_p99_ms": GOAL_MS, "rounds": rounds}
    found["sqlite"] = _measure(folder / "sqlite", broker, None, rounds)
    try:
        server = PostgresServer()
    except UnavailableError as error:
        return found | {"postgresql": {"missing": str(error)}}
    with server:
        return found | {"postgresql": _measure(folder / "pg", broker, server.url, rounds)}


def _measure(
    folder: Path, broker: MosquittoServer, store_url: str | None, rounds: int
) -> dict[str, float]:
    own: list[float] = []
    others: list[float] = []
    with _stage(folder, broker, store_url) as stage:
        for _ in range(rounds):
            stage.await_flow()
            # At any moment of whatever rhythm the gateways look for changes in.
            until = time.perf_counter() + random.random() * 0.05
            while stage.flow() < until:
                stage.received()
            first, *rest = stage.revoke()
            own.append(first)
            others += rest
            stage.reserve(PURPOSE)
    return {
        "own_gateway_highest_ms": round(max(own), 2),
        "others_p50_ms": round(percentile(sorted(others), 0.5), 2),
        "others_p99_ms": round(percentile(sorted(others), 0.99), 2),
        "others_highest_ms": round(max(others), 2),
    }


@contextlib.contextmanager
def _stage(folder: Path, broker: MosquittoServer, store_url: str | None) -> Iterator[_Stage]:
    folder.mkdir(parents=True, exist_ok=True)
    url = store_url or f"sqlite:///{folder / 'shared.db'}"
    with contextlib.ExitStack() as stack:
        ports = []
        for number in range(GATEWAYS):
            place = Path(tempfile.mkdtemp(prefix=f"gateway-{number}-", dir=folder))
            gateway = GatewayServer(place, broker.port, store_url=url, keys=folder / "keys")
            ports.append(stack.enter_context(gateway).port)
        stage = _Stage(ports)
        stack.callback(stage.close)
        yield stage
