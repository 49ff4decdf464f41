"""Sends the messages of actions to the broker, in their order, at a rate.

    detected ──▶ durable ──▶ queue ──▶ due at the rate ──▶ Publisher ──▶ confirmed ──▶ done

Rules that hold here:
- A message is sent when the step that it follows from is durable; never before.
- Nothing is given up for the rate: what comes faster waits, and what came first goes first,
  also after a restart. As many as a second allows may go at once.
- Few are with the publisher at a time: while the broker is away, the outbox has them.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from functools import partial
from typing import Final

from penstock.cep.steps import Publication
from penstock.gateway.detection.engine_host import EngineHost
from penstock.gateway.detection.journal import Outbox
from penstock.gateway.publishing.publisher import Publisher
from penstock.gateway.translation import ACTIONS, EPOCH, FOR, PUBLISHER
from penstock.mqtt import encode_user_properties
from penstock.telemetry import metrics

_BURST_SECONDS: Final = 1.0
_HANDED_LIMIT: Final = 1000
_AGAIN_SECONDS: Final = 1.0
_FOR_LIMIT: Final = 512

OUTCOMES = metrics.counter(
    "penstock_gateway_actions",
    "Messages of actions, by what became of them.",
    outcome=("sent", "depth", "topic", "event", "full"),
)
_WAITING = metrics.gauge(
    "penstock_gateway_actions_waiting", "Messages of actions that are not sent yet."
).plain


class Dispatch:
    """What actions have to send, on its way to the broker."""

    def __init__(self, detection: EngineHost, publisher: Publisher, rate: int) -> None:
        self._detection = detection
        self._publisher = publisher
        self._pause = 1.0 / rate
        self._queue: deque[int] = deque()
        self._handed: set[int] = set()
        """What the publisher has: it is durable, so that its numbers hold after a restart."""
        self._spent = 0.0
        """Up to which moment of the loop's clock the rate is used up."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether this gateway detects, and is not about to end: else the outbox is another's."""
        return self._detection.engine is not None and not self._detection.stopping

    def send(self, numbers: list[int]) -> None:
        """Send some of the outbox when all that was added to the journal is durable."""
        detection = self._detection
        _WAITING.set(len(detection.outbox.waiting))
        if numbers:
            queue_up = partial(self._queue_up, detection.outbox, numbers)
            detection.journal.wait(detection.journal.added, queue_up)

    def resume(self) -> None:
        """Go on with what was to be sent before a restart."""
        outbox = self._detection.outbox
        self._queue = deque(it for it in outbox.detected() if it not in self._handed)
        _WAITING.set(len(outbox.waiting))
        self._go_on()

    def _queue_up(self, outbox: Outbox, numbers: list[int], durable: bool) -> None:  # noqa: FBT001
        # What another outbox has instead, `resume` has taken up.
        if durable and outbox is self._detection.outbox:
            self._queue.extend(numbers)
            self._go_on()

    def _go_on(self) -> None:
        """Hand over what is due, and come again for what is not."""
        if self._timer is not None:
            return
        if not self.is_open:
            self._queue.clear()  # whoever detects next finds them in the outbox
            return
        now = asyncio.get_running_loop().time()
        while self._queue and len(self._handed) < _HANDED_LIMIT:
            due = max(self._spent, now - _BURST_SECONDS) + self._pause
            if due > now:
                self._come_again(due - now)
                return
            number = self._queue[0]
            publication = self._detection.outbox.waiting.get(number)
            if publication is not None and not self._hand_over(number, publication):
                self._come_again(_AGAIN_SECONDS)
                return
            self._spent = due
            self._queue.popleft()

    def _come_again(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._go_on()

    def _hand_over(self, number: int, publication: Publication) -> bool:
        """Give a message to the publisher; False where that has no room."""
        own = [(PUBLISHER, ACTIONS), (EPOCH, str(self._detection.epoch))]
        if publication.subject.isprintable() and len(publication.subject) <= _FOR_LIMIT:
            own.append((FOR, publication.subject))
        taken = self._publisher.send(
            publication.topic,
            encode_payload(publication) or b"",
            encode_user_properties(tuple(own)),
            partial(self._finish, number),
        )
        if taken:
            self._handed.add(number)
        return taken

    def _finish(self, number: int) -> None:
        """Be done with a message that the broker has confirmed."""
        OUTCOMES["sent"].inc()
        self._handed.discard(number)
        detection = self._detection
        line = detection.outbox.settle([number])
        if self.is_open:
            detection.journal.add(line)
        _WAITING.set(len(detection.outbox.waiting))
        self._go_on()


def encode_payload(publication: Publication) -> bytes | None:
    """Return the payload as JSON; None where it has values that JSON does not."""
    try:
        return json.dumps(publication.payload, allow_nan=False).encode()
    except (ValueError, TypeError):
        return None
