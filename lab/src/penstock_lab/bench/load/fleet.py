"""The clients of a load: raw sockets with packets encoded before the measurement.

Rules that hold here:
- Nothing is encoded while the clock runs, except the time stamp and the packet
  identifiers of messages whose round trip is measured.
- What the other side sends is trusted in its shape only as far as it was sampled: the
  first byte of each packet where packets are walked, and whole messages every so often.
- A send that does not fit is kept and finished when the socket takes more; a client never
  blocks the others.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import deque

from penstock.errors import UnavailableError, quote
from penstock.mqtt import V3, Connect, Publish, RequestedSubscription, Subscribe
from penstock_lab.bench.load.plan import LoadPlan, Party

PUBACK = 0x40
PUBACK_SIZE = 4
RECEIVE_SIZE = 1 << 14
READY_SECONDS = 30.0
_CONNECTS_AT_ONCE = 200


class LoadError(UnavailableError):
    """The other side did not do what the load needs: the figures would mean nothing."""


class LoadClient:
    """One connection of the fleet."""

    __slots__ = (
        "acknowledged",
        "backlog",
        "fileno",
        "packets",
        "party",
        "position",
        "published",
        "received",
        "rest",
        "socket",
    )

    def __init__(self, party: Party, connection: socket.socket, packets: list[bytes]) -> None:
        self.party = party
        self.socket = connection
        self.fileno = connection.fileno()
        self.packets = packets
        """One packet per topic; at QoS 1 without a packet identifier of its own yet."""
        self.position = 0
        self.published = 0
        self.acknowledged = 0
        self.received = 0
        self.rest = b""
        self.backlog: deque[bytes] = deque()


class Fleet:
    """All clients of a plan, connected and subscribed."""

    def __init__(self, plan: LoadPlan, port: int, *, qos: int = 0, payload: int = 64) -> None:
        self.plan = plan
        self.port = port
        self.qos = qos
        self.payload = payload
        self.first = 0x30 | qos << 1
        self.epoll = select.epoll()
        self.clients: list[LoadClient] = []
        for start in range(0, len(plan.parties), _CONNECTS_AT_ONCE):
            self._connect(plan.parties[start : start + _CONNECTS_AT_ONCE])
        self.by_fileno = {client.fileno: client for client in self.clients}
        self.publishers = [client for client in self.clients if client.packets]
        sizes = {len(packet) for client in self.publishers for packet in client.packets}
        if len(sizes) != 1:
            raise LoadError(f"messages of {len(sizes)} sizes", fix="use topics of one length")
        self.size = sizes.pop()
        """The size of every message, in bytes."""
        self.id_offset = self.size - payload - 2
        """Where the packet identifier stands at QoS 1."""

    def source_of(self, number: int) -> LoadClient:
        """Return the client whose messages client `number` receives."""
        return self.clients[self.plan.source[number]]

    def packet(self, topic: str, body: bytes) -> bytes:
        """Encode one message."""
        return Publish.of(topic, body, qos=self.qos, packet_id=min(self.qos, 1)).to_v3()

    def _connect(self, parties: tuple[Party, ...]) -> None:
        joined = []
        for party in parties:
            connection = socket.create_connection(("127.0.0.1", self.port), READY_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(Connect(party.client_id, version=V3).encode())
            packets = [self.packet(topic, bytes(self.payload)) for topic in party.topics]
            joined.append(LoadClient(party, connection, packets))
        for client in joined:
            answer = read_exactly(client.socket, 4)
            if answer[0] != 0x20 or answer[3] != 0:  # noqa: PLR2004 - CONNACK, accepted
                raise LoadError(
                    f"client {quote(client.party.client_id)} was not let in: {answer.hex()}",
                    fix="let anonymous clients in for the measurement",
                )
            if client.party.filters:
                wanted = tuple(
                    RequestedSubscription(text, self.qos) for text in client.party.filters
                )
                client.socket.sendall(Subscribe(1, wanted).encode(V3))
        for client in joined:
            if client.party.filters:
                self._check_suback(client)
            client.socket.settimeout(0)
            self.epoll.register(client.fileno, select.EPOLLIN)
        self.clients += joined

    def _check_suback(self, client: LoadClient) -> None:
        count = len(client.party.filters)
        codes = read_exactly(client.socket, 4 + count)[4:]
        for text, code in zip(client.party.filters, codes, strict=True):
            if code != self.qos:
                raise LoadError(
                    f"the subscription to {quote(text)} was answered with {code:#04x}",
                    fix="check the reservations that the measurement made",
                )

    def send(self, client: LoadClient, data: bytes | memoryview) -> None:
        """Send, or keep what does not fit for `finish`."""
        if client.backlog:
            client.backlog.append(bytes(data))
            return
        try:
            sent = client.socket.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            client.backlog.append(bytes(data[sent:]))
            self.epoll.modify(client.fileno, select.EPOLLIN | select.EPOLLOUT)

    def finish(self, client: LoadClient) -> None:
        """Send what was kept, now that the socket takes more."""
        while client.backlog:
            data = client.backlog.popleft()
            try:
                sent = client.socket.send(data)
            except BlockingIOError:
                sent = 0
            if sent < len(data):
                client.backlog.appendleft(data[sent:])
                return
        self.epoll.modify(client.fileno, select.EPOLLIN)

    def receive(self, client: LoadClient) -> bytes:
        """Return what has come, with what was left over in front of it."""
        try:
            data = client.socket.recv(RECEIVE_SIZE)
        except BlockingIOError:
            return b""
        if not data:
            raise closed_by_peer(client)
        return client.rest + data if client.rest else data

    def outstanding(self) -> int:
        """Return how many deliveries are still to come; negative where there were too many."""
        expected = sum(client.published for client in self.clients) * self.plan.receivers
        return expected - sum(client.received for client in self.clients)

    def astray(self) -> int:
        """Return how many clients received more or less than what was sent to them."""
        return sum(
            receiver.received != self.clients[source].published
            for receiver, source in zip(self.clients, self.plan.source, strict=True)
            if source >= 0
        )

    def start_afresh(self) -> None:
        """Forget the counts of the last measurement."""
        for client in self.clients:
            client.published = client.received = client.acknowledged = 0

    def close(self) -> None:
        """Close every connection with a DISCONNECT."""
        for client in self.clients:
            with contextlib.suppress(OSError):
                client.socket.send(b"\xe0\x00")
            client.socket.close()
        self.epoll.close()


def closed_by_peer(client: LoadClient) -> LoadError:
    """Return the error for a connection that the other side ended."""
    return LoadError(
        f"the connection of {quote(client.party.client_id)} was closed",
        fix="see the log of the gateway or the broker",
    )


def read_exactly(connection: socket.socket, count: int) -> bytes:
    """Read `count` bytes from a blocking socket."""
    data = b""
    deadline = time.monotonic() + READY_SECONDS
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part or time.monotonic() > deadline:
            raise LoadError(
                f"{len(data)} bytes instead of {count}, then the connection ended: {data.hex()}",
                fix="see the log of the gateway or the broker",
            )
        data += part
    return data
