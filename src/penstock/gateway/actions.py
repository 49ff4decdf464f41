"""Actions: what an emergency publishes by itself.

    evolution ──▶ outbox ──▶ limits ──▶ detection, one deeper ──▶ durable ──▶ broker ──▶ done
                                └── too deep, too many, no topic: given up, counted, logged

Rules that hold here:
- A message of an action is an event as any other: it is detected before it is sent, in the
  step that it came up in. How deep that goes and how many there are per second is limited.
- It is published as nobody's but the gateway's own, on behalf of the scenario's subject,
  whose preferences hold for it.
- It never is a command, and never goes to a topic of the broker's own.
- It is sent when the step that it follows from is durable.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

from penstock.gateway.broker_texts import are_welcome
from penstock.gateway.translation import ACTIONS, EPOCH, FOR, PUBLISHER
from penstock.mqtt import encode_user_properties
from penstock.telemetry import get_logger, metrics

if TYPE_CHECKING:
    from penstock.cep.outcome import Publication
    from penstock.gateway.guard import Guard
    from penstock.gateway.limits import Limits
    from penstock.gateway.publisher import Publisher
    from penstock.policy.notation import Notation

_BURST_SECONDS: Final = 10
_FOR_LIMIT: Final = 512
_log = get_logger("gateway")

_ACTIONS = metrics.counter(
    "penstock_gateway_actions",
    "Messages of actions, by what became of them.",
    outcome=("sent", "depth", "rate", "topic", "event", "full"),
)


class Actions:
    """Carries out what plans want published."""

    def __init__(
        self,
        guard: Guard,
        publisher: Publisher,
        notation: Notation,
        limits: Limits,
        *,
        depth: int,
        rate: int,
    ) -> None:
        self.epoch = 0
        self._guard = guard
        self._publisher = publisher
        self._notation = notation
        self._limits = limits
        self._depth = depth
        self._rate = rate
        self._budget = 0.0
        self._seen = 0
        self._busy = False

    def carry_out(self) -> None:
        """Detect and send what is new in the outbox; what comes up meanwhile, too."""
        if self._busy:
            return
        self._busy = True
        try:
            outbox = self._guard.detection.outbox
            while self._seen < outbox.last:
                self._seen += 1
                publication = outbox.waiting.get(self._seen)
                if publication is not None:
                    self._carry_out(self._seen, publication)
        finally:
            self._busy = False

    def resume(self) -> None:
        """Send what was not sent before a restart; it was detected then."""
        outbox = self._guard.detection.outbox
        self._seen = outbox.last
        for number, publication in list(outbox.waiting.items()):
            payload = _payload(publication)
            if payload is not None:
                self._send(number, publication, payload)

    def _carry_out(self, number: int, publication: Publication) -> None:
        why = self._refusal(publication)
        payload = _payload(publication)
        if why:
            self._give_up(number, why)
        elif payload is None or not self._guard.detect(
            publication.topic, payload, publication.depth
        ):
            self._give_up(number, "event")
        else:
            self._send(number, publication, payload)

    def _refusal(self, publication: Publication) -> str:
        if publication.depth > self._depth:
            return "depth"
        topic = publication.topic
        if (
            topic.startswith("$")
            or self._notation.is_command(topic)
            or len(topic.encode("utf-8", "replace")) > self._limits.topic_bytes
            or topic.count("/") >= self._limits.topic_levels
            or not are_welcome([topic])
        ):
            return "topic"
        now = time.monotonic()
        due = max(self._budget, now - _BURST_SECONDS) + 1.0 / self._rate
        if due > now:
            return "rate"
        self._budget = due
        return ""

    def _send(self, number: int, publication: Publication, payload: bytes) -> None:
        own = [(PUBLISHER, ACTIONS), (EPOCH, str(self.epoch))]
        if publication.subject.isprintable() and len(publication.subject) <= _FOR_LIMIT:
            own.append((FOR, publication.subject))
        properties = encode_user_properties(tuple(own))
        journal = self._guard.detection.journal

        def hand_over(durable: bool) -> None:  # noqa: FBT001
            if durable and not self._publisher.send(
                publication.topic, payload, properties, lambda: self._finish(number)
            ):
                self._give_up(number, "full")

        journal.wait(journal.added, hand_over)

    def _finish(self, number: int) -> None:
        _ACTIONS["sent"].inc()
        self._settle(number)

    def _give_up(self, number: int, why: str) -> None:
        _ACTIONS[why].inc()
        _log.error("a message of an action was given up", reason=why)
        self._settle(number)

    def _settle(self, number: int) -> None:
        detection = self._guard.detection
        if detection.engine is not None:
            detection.journal.add(detection.outbox.settle([number]))


def _payload(publication: Publication) -> bytes | None:
    """Return the payload as JSON; None where it has values that JSON does not."""
    try:
        return json.dumps(publication.payload, allow_nan=False).encode()
    except (ValueError, TypeError):
        return None
