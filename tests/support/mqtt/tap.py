"""A tap on the line between a client and a real broker: what was really sent."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from penstock.mqtt import Packet, Reader, Sender

PacketT = TypeVar("PacketT")
WAIT_SECONDS = 10.0


class Tap:
    """Passes bytes both ways, and reads the packets of the clients.

    `answer` may turn each packet that the broker sends into another.
    """

    def __init__(self, port: int) -> None:
        self._broker = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.packets: list[Packet] = []
        self.answer: Callable[[bytes], bytes] = lambda data: data
        self._lines: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def sent(self, kind: type[PacketT], count: int = 1) -> list[PacketT]:
        """Wait until `count` packets of a kind were sent, and return them."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            found: list[PacketT] = []
            found += [packet for packet in list(self.packets) if isinstance(packet, kind)]
            if len(found) >= count:
                return found
            time.sleep(0.01)
        raise AssertionError(f"{count} {kind.__name__} expected, there are {self.packets}")

    def cut(self) -> None:
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                broker = socket.create_connection(("127.0.0.1", self._broker))
                self._lines += [client, broker]
                threading.Thread(target=self._up, args=(client, broker), daemon=True).start()
                threading.Thread(target=self._down, args=(broker, client), daemon=True).start()

    def _up(self, client: socket.socket, broker: socket.socket) -> None:
        reader = Reader(Sender.CLIENT)
        with contextlib.suppress(OSError), broker:
            while data := client.recv(65536):
                reader.feed(data)
                while batch := reader.packets():
                    self.packets += batch
                broker.sendall(data)

    def _down(self, broker: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            while packet := _read_packet(broker):
                client.sendall(self.answer(packet))


def _read_packet(line: socket.socket) -> bytes:
    """Read one whole packet; nothing where the line has ended."""
    head = line.recv(1)
    length, shift = 0, 0
    while head:
        digit = line.recv(1)
        head += digit
        length |= (digit[0] & 0x7F) << shift
        shift += 7
        if digit[0] < 0x80:
            break
    return head + (line.recv(length, socket.MSG_WAITALL) if length else b"")
