"""Actions: what an emergency publishes by itself, and its way to the broker.

    evolution ──▶ outbox ──▶ detection, one deeper ──▶ durable ──▶ queue ──▶ due at the rate
                     │                                   done ◀── confirmed ◀── `Publisher` ◀──┘
                     └── too deep, no topic, no room: given up, counted, logged

Rules that hold here:
- A message of an action is an event as any other: it is detected before it is sent, in the
  step that it came up in. How deep that goes is limited. The rate holds for sending alone.
- Fifty are carried out in one step. Where there are more, the others follow in steps of their
  own, in half of the time: an outbreak holds nobody up. The outbox keeps them, so that a
  restart loses none.
- At most so many wait to be detected, and as many to be sent. Beyond that the newest are given
  up, not the oldest: what waits was promised, some of it is on its way already, and a flood
  costs its own messages, not those that came before it. What cannot be sent for that is
  detected all the same. Since no depth has more than that, whatever leads to itself ends.
- A message is sent when the step that it follows from is durable; never before. Nothing is
  given up for the rate: what comes faster waits, and what came first goes first, also after a
  restart. As many as a second allows may go at once, and few are with the publisher at a time:
  while the broker is away, the outbox has them.
- It is published as nobody's but the gateway's own, on behalf of the scenario's subject,
  whose preferences hold for it.
- It never is a command, and never goes to a topic of the broker's own.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, deque
from functools import partial
from typing import Final

from penstock.cep.steps import Publication
from penstock.gateway.authorization.publication_check import PublicationCheck
from penstock.gateway.broker import ACTIONS, EPOCH, FOR, PUBLISHER
from penstock.gateway.detection.journal import Outbox
from penstock.gateway.limits import Limits
from penstock.gateway.publications import PublishResult
from penstock.gateway.publishing.publisher import Publisher
from penstock.mqtt import are_acceptable, encode_user_properties
from penstock.policy.purposes.settings import Notation
from penstock.telemetry import get_logger, metrics

_BURST_SECONDS: Final = 1.0
_HANDED_LIMIT: Final = 1000
_AGAIN_SECONDS: Final = 1.0
_FOR_LIMIT: Final = 512

OUTCOMES = metrics.counter(
    "penstock_gateway_actions",
    "Messages of actions, by what became of them.",
    outcome=("sent", "denied", "depth", "topic", "event", "full"),
)
_WAITING = metrics.gauge(
    "penstock_gateway_actions_waiting", "Messages of actions that are not sent yet."
).plain


class Dispatch:
    """What actions have to send, on its way to the broker."""

    def __init__(self, check: PublicationCheck, publisher: Publisher, rate: int) -> None:
        self._check = check
        self._detection = check.detection
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
        """Hand over what is due, and retry later with what is not."""
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
        properties = encode_user_properties(tuple(own))
        messages = self._list_messages(publication.topic, encode_payload(publication) or b"")
        if not messages:
            self._finish(number)
            return True
        for at, (topic, payload) in enumerate(messages, 1):
            done = partial(self._finish, number) if at == len(messages) else _no_matter
            if not self._publisher.send(topic, payload, properties, done):
                return False
        self._handed.add(number)
        return True

    def _list_messages(self, topic: str, payload: bytes) -> list[tuple[str, bytes]]:
        """Return what is published of a message, which transformations may change or deny."""
        reshaped = self._check.reshape_own(topic, payload)
        if reshaped is None:
            return [(topic, payload)]
        if isinstance(reshaped, PublishResult):
            OUTCOMES["denied"].inc()
            return []
        own = [] if reshaped.payload is None else [(topic, reshaped.payload)]
        return [*reshaped.copies, *own]

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


def _no_matter() -> None:
    """Do nothing: the last of several tells that all are done."""


def encode_payload(publication: Publication) -> bytes | None:
    """Return the payload as JSON; None where it has values that JSON does not."""
    try:
        return json.dumps(publication.payload, allow_nan=False).encode()
    except (ValueError, TypeError):
        return None


AT_ONCE: Final = 50
"""How many are detected in one step: some ten milliseconds' worth."""
LIMIT: Final = 100_000
"""How many may wait to be detected, and how many to be sent: 60 MB, 16 MB in a snapshot."""
_TURN_SECONDS: Final = 0.05
"""How often it is looked whether changed definitions are taken over."""
_SILENT_SECONDS: Final = 1.0
_log = get_logger("gateway")


class Actions:
    """Carries out what plans want published."""

    def __init__(
        self,
        check: PublicationCheck,
        publisher: Publisher,
        notation: Notation,
        limits: Limits,
        *,
        depth: int,
        rate: int,
    ) -> None:
        self.dispatch = Dispatch(check, publisher, rate)
        self._check = check
        self._notation = notation
        self._limits = limits
        self._depth = depth
        self._fresh: deque[int] = deque()
        self._noted = 0
        """The last number that is in `_fresh`, or was."""
        self._losses = Losses()
        self._busy = False
        self._later: asyncio.TimerHandle | None = None

    def carry_out(self) -> None:
        """Detect what is new in the outbox, and what comes up meanwhile; let it be sent."""
        if self._busy or not self.dispatch.is_open:
            return
        began = time.monotonic()
        self._busy = True
        try:
            self._carry_out(self._check.detection.outbox)
        finally:
            self._busy = False
        if self._fresh and self._later is None:
            # As long as it took: half of the time is for all others.
            self._go_on_in(time.monotonic() - began)

    def resume(self) -> None:
        """Go on with what was not done with before a restart."""
        outbox = self._check.detection.outbox
        self._fresh = deque(outbox.fresh())
        self._noted = outbox.last
        self.dispatch.resume()
        if self._fresh and self._later is None:
            self._go_on_in(0.0)

    def _go_on_in(self, seconds: float) -> None:
        self._later = asyncio.get_running_loop().call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        """Carry out some more, in a step of their own."""
        self._later = None
        detection = self._check.detection
        if not self.dispatch.is_open or not detection.is_alive():
            self._fresh.clear()  # whoever detects next finds them in the outbox
        elif detection.reload.busy:
            self._go_on_in(_TURN_SECONDS)
        else:
            detection.catch_up(detection.clock.now())
            self.carry_out()

    def _carry_out(self, outbox: Outbox) -> None:
        """Detect some in their order, and note in the journal what became of each."""
        detection = self._check.detection
        refused: Counter[str] = Counter()
        passed: list[int] = []
        sent: list[int] = []
        done = self._take_new(outbox)
        room = LIMIT - (len(outbox.waiting) - len(done) - len(self._fresh))
        while self._fresh and len(passed) < AT_ONCE:
            number = self._fresh.popleft()
            passed.append(number)
            why = self._try(outbox.waiting[number])
            if why:
                refused[why] += 1
                done.append(number)
            elif len(sent) < room:
                sent.append(number)
            else:
                done.append(number)
            if detection.engine is None:
                break
            done += self._take_new(outbox)
        refused["full"] = len(done) - refused.total()
        # Also where detection has failed: what it failed on must not come again.
        if passed:
            detection.journal.add(outbox.pass_on(passed))
        if done:
            detection.journal.add(outbox.settle(done))
            self._losses.add(refused)
        self.dispatch.send(sent)

    def _take_new(self, outbox: Outbox) -> list[int]:
        """Take note of what has come up; return those for which there is no room."""
        self._fresh.extend(range(self._noted + 1, outbox.last + 1))
        self._noted = outbox.last
        return [self._fresh.pop() for _ in range(len(self._fresh) - LIMIT)]

    def _try(self, publication: Publication) -> str:
        """Let a message take effect as an event; return why it is given up, if it is."""
        if publication.depth > self._depth:
            return "depth"
        if not self._is_welcome(publication.topic):
            return "topic"
        payload = encode_payload(publication)
        if payload is None:
            return "event"
        taken = self._check.detect(publication.topic, payload, publication.depth)
        return "" if taken else "event"

    def _is_welcome(self, topic: str) -> bool:
        """Say whether actions may publish to a topic."""
        return not (
            topic.startswith("$")
            or self._notation.is_command(topic)
            or len(topic.encode("utf-8", "replace")) > self._limits.topic_bytes
            or topic.count("/") >= self._limits.topic_levels
            or not are_acceptable([topic])
        )


class Losses:
    """Counts what is given up and logs it, at most once a second; about whom stays unsaid."""

    def __init__(self) -> None:
        self._unsaid: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, reasons: Counter[str]) -> None:
        """Take note of how many are given up, by reason."""
        for why, number in reasons.items():
            OUTCOMES[why].inc(number)
        self._unsaid += reasons
        if self._timer is None:
            self._say()

    def _say(self) -> None:
        self._timer = None
        for why, number in self._unsaid.items():
            _log.error("messages of actions were given up", reason=why, count=number)
        if self._unsaid:
            self._unsaid.clear()
            self._timer = asyncio.get_running_loop().call_later(_SILENT_SECONDS, self._say)
