"""A message that a client publishes: the request, what becomes of it, and whether it came before.

    a client resends a QoS 2 message (DUP)         ──▶ Fingerprint  ──▶ Qos2Duplicates
    a follower resubmits to the next leader        ──▶ SubmissionId ──▶ AppliedSubmissions

Rules that hold here:
- A result names the journal that makes the message's event durable, where it was one.
- A record is in the journal together with the step that it is about: both are durable, or
  neither is. The leader knows the records, for the clients of all gateways.
- A QoS 2 message is a duplicate if it says so (DUP) and equals the last one that was an event
  under its client and packet identifier. It is authorised and forwarded as any other; the
  broker knows it by its identifier. Only detection leaves it out.
- With QoS 1 a message may count more than once: events that must not have an `id`.
- A follower says which of its numbers are still open; records of others are dropped.
- Both are bounded: the oldest fingerprints, and the followers that were silent for longest,
  are dropped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from penstock.mqtt import Publish
from penstock.policy.decision import Reshaped


class PublishRequest(NamedTuple):
    """A message that a client wants to publish, as decisions see it."""

    user: str | None
    client: str
    topic: str
    payload: bytes
    rest: dict[str, Any]
    place: str | None = None
    """Where the gateway stands that the client is connected to."""
    fingerprint: Fingerprint | None = None
    """Tells it from others, where it must not count twice."""


class PublishOutcome(StrEnum):
    """The outcome of a publication; gateways exchange the values, audit and metrics show them."""

    ACCEPTED = ""
    DENIED = "policy"
    NO_LEADER = "no_leader"
    """No gateway detects events, or none that does can be reached."""
    INVALID_EVENT = "event"
    """The payload cannot be evaluated."""
    NO_ANSWER = "no_answer"
    """The leader has got the request and has not responded: it may have taken effect."""
    AWAITING_LEADER = "awaiting_leader"
    """Replicated state may be out of date: the caller waits for the leader and retries."""


class Journal(Protocol):
    """Makes steps durable in the order of their tickets."""

    durable: int
    """The last ticket that is durable."""

    def wait(self, ticket: int, settled: Callable[[bool], None]) -> None:
        """Call back when a ticket is durable, or never will be."""


class PublishResult(NamedTuple):
    """What became of a message that was to be published."""

    outcome: PublishOutcome = PublishOutcome.ACCEPTED
    rule: str = ""
    """The rule that denies it."""
    journal: Journal | None = None
    """Where it was an event: what makes that durable."""
    ticket: int = 0
    """The journal's number for it."""
    lasting: bool = False
    """Whether the same holds for each message of this client on this topic."""
    reshaped: Reshaped | None = None
    """What is published instead."""

    @property
    def accepted(self) -> bool:
        """Whether the message may pass."""
        return self.outcome is PublishOutcome.ACCEPTED

    @property
    def awaits_journal(self) -> bool:
        """Whether it was an event that is not durable yet."""
        return self.journal is not None and self.ticket > self.journal.durable

    def when_durable(self, settled: Callable[[bool], None]) -> None:
        """Call back when its event is durable, or never will be."""
        if self.journal is None:
            settled(True)  # noqa: FBT003
        else:
            self.journal.wait(self.ticket, settled)


PendingResult = Awaitable[PublishResult]
"""Gives the result as soon as other gateways, or a reload, have come so far."""

ALWAYS_ACCEPTED: Final = PublishResult(lasting=True)
NO_LEADER: Final = PublishResult(PublishOutcome.NO_LEADER)


FINGERPRINTS: Final = 65_536
FOLLOWERS: Final = 1_000
_QOS_2: Final = 0x04
_DUP: Final = 0x08
_FINGERPRINT_LINE: Final = b"#once "
_SUBMISSION_LINE: Final = b"#from "


class Fingerprint(NamedTuple):
    """Tells a QoS 2 message from others."""

    sender: str
    """A digest of the client and the packet identifier."""
    content: str
    """A digest of the topic and the payload."""
    dup: bool
    """Whether it says that it was sent before."""

    def line(self) -> bytes:
        """Return the line for the journal."""
        return _FINGERPRINT_LINE + f"{self.sender} {self.content}".encode("ascii")


def fingerprint_of(user: str | None, client: str, packet: Publish) -> Fingerprint | None:
    """Return the fingerprint of a message; None where it may count more than once."""
    if not packet.first & _QOS_2 or not packet.packet_id:
        return None
    sender = f"{user or ''}\0{client}\0{packet.packet_id}".encode("utf-8", "surrogatepass")
    content = len(packet.topic_field).to_bytes(4, "big") + packet.topic_field + packet.payload
    return Fingerprint(_digest(sender), _digest(content), bool(packet.first & _DUP))


class Qos2Duplicates:
    """The last QoS 2 messages that were events, by client and packet identifier."""

    def __init__(self, known: Mapping[str, str] | None = None) -> None:
        self.known = dict(known or {})

    def has(self, fingerprint: Fingerprint) -> bool:
        """Say whether a message was an event before."""
        return fingerprint.dup and self.known.get(fingerprint.sender) == fingerprint.content

    def put(self, fingerprint: Fingerprint) -> None:
        """Remember a message that was an event."""
        self.known.pop(fingerprint.sender, None)
        self.known[fingerprint.sender] = fingerprint.content
        if len(self.known) > FINGERPRINTS:
            del self.known[next(iter(self.known))]

    def replay(self, line: bytes) -> bool:
        """Replay a line of the journal, if it is about a QoS 2 message."""
        if not line.startswith(_FINGERPRINT_LINE):
            return False
        sender, content = line[len(_FINGERPRINT_LINE) :].decode("ascii").split(" ")
        self.put(Fingerprint(sender, content, dup=False))
        return True


class SubmissionId(NamedTuple):
    """Names one message that a follower has submitted to the leader."""

    follower: str
    number: int
    oldest: int
    """The lowest number that this follower may still resubmit."""

    def line(self) -> bytes:
        """Return the line for the journal."""
        return _SUBMISSION_LINE + f"{self.follower} {self.number} {self.oldest}".encode("ascii")


class AppliedSubmissions:
    """The submissions of all followers that have taken effect."""

    def __init__(self, applied: Mapping[str, list[int]] | None = None) -> None:
        self._applied = {name: set(numbers) for name, numbers in (applied or {}).items()}

    def has(self, submission: SubmissionId) -> bool:
        """Say whether a message has taken effect before."""
        return submission.number in self._applied.get(submission.follower, ())

    def put(self, submission: SubmissionId) -> None:
        """Remember a message that has taken effect."""
        known = self._applied.pop(submission.follower, None) or set()
        # Few are open at a time: only now and then there is something to drop.
        if len(known) > 2 * (submission.number - submission.oldest) + 8:
            known = {it for it in known if it >= submission.oldest}
        known.add(submission.number)
        self._applied[submission.follower] = known
        if len(self._applied) > FOLLOWERS:
            del self._applied[next(iter(self._applied))]

    def replay(self, line: bytes) -> bool:
        """Replay a line of the journal, if it is about a submission."""
        if not line.startswith(_SUBMISSION_LINE):
            return False
        name, number, oldest = line[len(_SUBMISSION_LINE) :].split(b" ")
        self.put(SubmissionId(name.decode("ascii"), int(number), int(oldest)))
        return True

    def as_data(self) -> dict[str, Any]:
        """Return all of them, for a snapshot."""
        return {name: sorted(numbers) for name, numbers in self._applied.items()}


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
