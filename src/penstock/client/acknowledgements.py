"""Acknowledgements and receipts: what became of a packet that was sent.

Rules that hold here:
- A receipt is settled exactly once: fulfilled, refused, or ended with the connection.
- An acknowledgement may come before the packet's number is known to who sent it. It is
  kept only while somebody is in the middle of sending, so that numbers used again later
  never meet an old acknowledgement.
- The lock here is never held while Paho is called: Paho holds locks of its own when it
  calls us, and two locks taken in both orders would block for ever.
- A refusal is an error for who waits; whoever does not wait hears of it through `on_refused`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

from paho.mqtt.properties import Properties

from penstock.client.commands import NoAnswerError, NotConnectedError, RefusedError
from penstock.errors import PenstockError

ANSWER_SECONDS = 10.0
_FAILURE = 0x80

PacketKind = Literal["publish", "subscribe", "unsubscribe"]


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What the other side said: a code, and in MQTT 5 perhaps a text."""

    code: int = 0
    reason: str | None = None

    @classmethod
    def of(cls, arguments: Iterable[Any]) -> Acknowledgement:
        """Read what Paho hands to a callback; its versions order and wrap it differently."""
        code, reason = 0, None
        for item in arguments:
            if isinstance(item, Properties):
                reason = getattr(item, "ReasonString", None)
                continue
            first = next(iter(item), 0) if isinstance(item, (list, tuple)) else item
            code = int(getattr(first, "value", first))
        return cls(code, reason)


T = TypeVar("T")


class Receipt(Generic[T]):
    """What became of one packet; `T` is what the answer brings, mostly nothing."""

    def __init__(self, action: str, refuse: Callable[[Acknowledgement], RefusedError]) -> None:
        self.action = action
        self.mid: int | None = None
        self.future: Future[T] = Future()
        # Now nobody can cancel it: the packet is on its way.
        self.future.set_running_or_notify_cancel()
        self._refuse = refuse
        self._awaited = False

    def wait(self, timeout: float | None = ANSWER_SECONDS) -> T:
        """Wait for the answer and return what it brings; raise the refusal if it is one.

        Paho's network loop must run (`loop_start`), or nobody reads the answer.
        """
        self._awaited = True
        try:
            return self.future.result(timeout)
        except FutureTimeoutError:
            raise NoAnswerError(
                f"no answer to {self.action} within {timeout:g} s",
                fix="check that the network loop runs (loop_start) and the gateway is up",
            ) from None

    @property
    def settled(self) -> bool:
        """Whether the answer has come."""
        return self.future.done()

    @property
    def error(self) -> PenstockError | None:
        """The refusal, if the answer has come and is one."""
        if not self.future.done():
            return None
        found = self.future.exception()
        return found if isinstance(found, PenstockError) else None

    def settle(self, acknowledgement: Acknowledgement) -> RefusedError | None:
        """Take the answer; return the refusal if it is one that nobody waits for."""
        if acknowledgement.code < _FAILURE and self._fulfil():
            return None
        error = self._refuse(acknowledgement)
        awaited = self._awaited
        self.future.set_exception(error)
        return None if awaited else error

    def _fulfil(self) -> bool:
        self.future.set_result(cast("T", None))
        return True

    def __repr__(self) -> str:
        state = "open" if not self.settled else "refused" if self.error else "fulfilled"
        return f"<Receipt for {self.action}: {state}>"


class Query(Receipt[T]):
    """A receipt for a query: the response is a message that comes before the acknowledgement.

    An acknowledgement without a response is a refusal, the only one MQTT 3.1.1 can express.
    """

    def __init__(
        self,
        action: str,
        refuse: Callable[[Acknowledgement], RefusedError],
        read: Callable[[bytes], T],
    ) -> None:
        super().__init__(action, refuse)
        self._read = read
        self._answer: bytes | None = None

    def take_answer(self, payload: bytes) -> None:
        """Keep what was answered until the acknowledgement confirms it."""
        self._answer = payload

    def _fulfil(self) -> bool:
        if self._answer is None:
            return False
        try:
            self.future.set_result(self._read(self._answer))
        except (ValueError, KeyError, TypeError, AttributeError):
            self.future.set_exception(
                NoAnswerError(
                    f"the answer to {self.action} cannot be read",
                    fix="check that the other side is a Penstock gateway of this version",
                )
            )
        return True


class PendingAcks:
    """The receipts of one connection that are not acknowledged yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[PacketKind, int], Receipt[Any]] = {}
        self._early: dict[tuple[PacketKind, int], Acknowledgement] = {}
        self._sending = 0

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Keep acknowledgements that come before `enter` is called."""
        with self._lock:
            self._sending += 1
        try:
            yield
        finally:
            with self._lock:
                self._sending -= 1
                if not self._sending:
                    self._early.clear()

    def enter(self, kind: PacketKind, mid: int, receipt: Receipt[Any]) -> Acknowledgement | None:
        """Note an open receipt; return the acknowledgement if it was faster."""
        receipt.mid = mid
        with self._lock:
            early = self._early.pop((kind, mid), None)
            if early is None:
                self._open[kind, mid] = receipt
            return early

    def take(
        self, kind: PacketKind, mid: int, acknowledgement: Acknowledgement
    ) -> Receipt[Any] | None:
        """Return the receipt that an acknowledgement belongs to."""
        with self._lock:
            receipt = self._open.pop((kind, mid), None)
            if receipt is None and self._sending:
                self._early[kind, mid] = acknowledgement
            return receipt

    def end_unanswered(self) -> None:
        """End what a lost connection leaves without an answer.

        Messages stay open: Paho sends those of QoS 1 and 2 again when it reconnects.
        """
        with self._lock:
            ended = [key for key in self._open if key[0] != "publish"]
            receipts = [self._open.pop(key) for key in ended]
        for receipt in receipts:
            receipt.future.set_exception(
                NotConnectedError(
                    f"the connection ended before {receipt.action} was answered",
                    fix="connect again and repeat it",
                )
            )
