"""A flood of connections that are never let in: as many as asked for, for as long as it lasts."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from types import TracebackType
from typing import Self

from penstock.mqtt import V5, Connect


def wrong_logins(*names: str) -> Callable[[], bytes]:
    """Make CONNECTs with a wrong password: of these names in turn, or of a new name each time."""
    numbers = iter(range(1_000_000))
    given: Iterator[str] = cycle(names)

    def make() -> bytes:
        number = next(numbers)
        name = next(given) if names else f"nobody-{number}"
        return Connect(name, username=name, password=b"wrong %d" % number).encode(V5)

    return make


class Flood:
    """Connections that are opened again as soon as they are closed, in a thread of its own."""

    def __init__(
        self, port: int, count: int, make: Callable[[], bytes], *addresses: str, reads: bool = True
    ) -> None:
        self.answers = 0
        self._port = port
        self._make = make
        self._reads = reads
        self._selector = selectors.DefaultSelector()
        self._addresses = cycle(addresses)
        self._count = count
        self._over = threading.Event()
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flood", daemon=True)

    def _open(self) -> None:
        with contextlib.suppress(OSError):
            it = socket.create_connection(
                ("127.0.0.1", self._port), timeout=2, source_address=(next(self._addresses), 0)
            )
            it.settimeout(0)
            self._selector.register(it, selectors.EVENT_READ)
            it.send(self._make())

    def _run(self) -> None:
        for _ in range(self._count):
            self._open()
        self._begun.set()
        while not self._over.is_set():
            for key, _ in self._selector.select(0.1):
                self._take(key.fileobj)  # type: ignore[arg-type]
            missing = self._count - len(self._selector.get_map())
            for _ in islice(range(missing), 50):
                self._open()

    def _take(self, it: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if it.recv(4096):
                self.answers += 1
                return
        self._selector.unregister(it)
        it.close()

    def __enter__(self) -> Self:
        self._thread.start()
        self._begun.wait(60)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(30)
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
