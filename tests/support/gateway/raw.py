"""A client made of a socket and the packets of `penstock.mqtt`: says exactly what it is told."""

from __future__ import annotations

import contextlib
import socket
import time
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock.mqtt import (
    V5,
    Connack,
    Connect,
    Packet,
    Properties,
    Publish,
    Pubrec,
    Pubrel,
    Reader,
    RequestedSubscription,
    Sender,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
    encode_puback,
    encode_pubcomp,
    encode_pubrec,
)

P = TypeVar("P")
WAIT = 60.0
"""The longest wait for what has to come; a passing test waits for what it needs only."""
QUIET = 0.15


class ClosedError(Exception):
    """The other side has closed the connection."""


class RawClient:
    """One connection."""

    def __init__(
        self, port: int, *, version: int = V5, answers: bool = True, address: str = "127.0.0.1"
    ) -> None:
        self.version = version
        self.answers = answers
        self.socket = socket.create_connection(
            ("127.0.0.1", port), timeout=WAIT, source_address=(address, 0)
        )
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = Reader(Sender.SERVER, version=version)
        self.packets: list[Packet] = []
        self.closed = False
        self._id = 0

    # --- sending ---

    def send(self, packet: Any) -> None:
        self.send_bytes(packet.encode(self.version))

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def connect(
        self,
        client_id: str = "",
        *,
        clean: bool = True,
        expiry: int | None = None,
        keep_alive: int = 3600,  # it sends no PINGREQ, however slow the machine is
        will: Will | None = None,
        username: str | None = None,
        password: bytes | None = None,
        **properties: Any,
    ) -> Connack:
        if expiry is not None:
            properties["session_expiry"] = expiry
        self.send(
            Connect(
                client_id,
                self.version,
                clean,
                keep_alive,
                username,
                password,
                will,
                Properties(**properties),
            )
        )
        return self.expect(Connack)

    def publish(self, topic: str, payload: bytes = b"", *, qos: int = 0, **options: Any) -> Any:
        """Publish and return the first answer, PUBACK or PUBREC; complete QoS 2."""
        retain = options.pop("retain", False)
        packet_id = self.next_id() if qos else 0
        self.send(
            Publish.of(
                topic,
                payload,
                qos=qos,
                retain=retain,
                packet_id=packet_id,
                properties=Properties(**options),
            )
        )
        if not qos:
            return None
        answer = self.expect_answer(packet_id)
        if isinstance(answer, Pubrec) and not answer.failed:
            self.send(Pubrel(packet_id))
            self.expect_answer(packet_id)
        return answer

    def subscribe(
        self, *filters: str | RequestedSubscription, qos: int = 2, **properties: Any
    ) -> Suback:
        wanted = tuple(
            RequestedSubscription(it, qos) if isinstance(it, str) else it for it in filters
        )
        packet_id = self.next_id()
        self.send(Subscribe(packet_id, wanted, Properties(**properties)))
        return self.expect(Suback)

    def unsubscribe(self, *filters: str) -> Unsuback:
        self.send(Unsubscribe(self.next_id(), filters))
        return self.expect(Unsuback)

    def next_id(self) -> int:
        self._id += 1
        return self._id

    # --- receiving ---

    def expect(self, kind: type[P], timeout: float = WAIT) -> P:
        """Return the next packet of a kind, leaving others where they are."""
        deadline = time.monotonic() + timeout
        while True:
            for packet in self.packets:
                if isinstance(packet, kind):
                    self.packets.remove(packet)
                    return packet
            if self.closed:
                raise ClosedError(f"closed while waiting for {kind.__name__}: {self.packets}")
            self._receive(deadline - time.monotonic(), kind.__name__)

    def expect_answer(self, packet_id: int, timeout: float = WAIT) -> Any:
        """Return the next acknowledgement of one of our messages."""
        deadline = time.monotonic() + timeout
        while True:
            for packet in self.packets:
                if not isinstance(packet, Publish) and getattr(packet, "packet_id", 0) == packet_id:
                    self.packets.remove(packet)
                    return packet
            if self.closed:
                raise ClosedError("closed while waiting for an acknowledgement")
            self._receive(deadline - time.monotonic(), "an acknowledgement")

    def expect_any_pubrec(self) -> Pubrec:
        return self.expect(Pubrec)

    def release(self, packet_id: int) -> None:
        """Release a message of QoS 2 and wait for its end."""
        self.send(Pubrel(packet_id))
        self.expect_answer(packet_id)

    def messages(self, count: int = 0, quiet: float = QUIET) -> list[Publish]:
        """Return messages: wait for `count`, then for a quiet moment in which no more come."""
        deadline = time.monotonic() + WAIT
        while len(self._held()) < count and not self.closed:
            self._receive(deadline - time.monotonic(), f"{count} messages")
        until = time.monotonic() + quiet
        while not self.closed and (left := until - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                self._receive(left, "quiet")
        held = self._held()
        self.packets = [it for it in self.packets if not isinstance(it, Publish)]
        return held

    def texts(self, count: int = 0, quiet: float = QUIET) -> list[tuple[str, bytes]]:
        return [(it.topic, it.payload) for it in self.messages(count, quiet)]

    def settle(self) -> None:
        """Wait until everything that the broker sent before now has arrived."""
        self.unsubscribe("no/such/filter/at/all")

    def wait_closed(self, timeout: float = WAIT) -> None:
        deadline = time.monotonic() + timeout
        while not self.closed:
            self._receive(deadline - time.monotonic(), "the end")

    def _held(self) -> list[Publish]:
        return [it for it in self.packets if isinstance(it, Publish)]

    def _receive(self, timeout: float, what: str) -> None:
        if timeout <= 0:
            raise TimeoutError(f"no {what}; held: {self.packets}")
        self.socket.settimeout(timeout)
        try:
            data = self.socket.recv(1 << 16)
        except TimeoutError:
            raise TimeoutError(f"no {what}; held: {self.packets}") from None
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return
        self.reader.feed(data)
        while batch := self.reader.packets():
            for packet in batch:
                self._take(packet)

    def _take(self, packet: Packet) -> None:
        if isinstance(packet, Publish) and self.answers and packet.qos:
            answer = encode_puback if packet.qos == 1 else encode_pubrec
            self.send_bytes(answer(packet.packet_id))
        if isinstance(packet, Pubrel) and self.answers:
            self.send_bytes(encode_pubcomp(packet.packet_id))
            return
        self.packets.append(packet)

    # --- ending ---

    def vanish(self) -> None:
        """Lose the network without a word."""
        self.socket.close()
        self.closed = True

    def close(self) -> None:
        if not self.closed:
            with contextlib.suppress(OSError):
                self.socket.sendall(b"\xe0\x00")
            self.socket.close()
            self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
