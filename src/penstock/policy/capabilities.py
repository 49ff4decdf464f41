"""What other domains let this one's users do with events of their types.

    topic ──▶ streams of others' types ──▶ capabilities of the user, in time ──▶ grants
                                                                                   │
      published: fixed values are forced ◀── may publish ◀─────────────────────────┤
      delivered: what is granted, of what has the fixed values ◀── may subscribe ◀─┘

Rules that hold here:
- Types of this domain need no capability: roles say who may do what at home. Those of another one
  need one that begins with its key and ends with a user of ours, by our own key.
- Capabilities were verified before: here are times, names and values, and no signature.
- A message on such a topic is a JSON object. What its type has not is not published, and not
  delivered; an attribute that is not granted is not published, and left out where it is delivered.
- What stands in the topic can neither be forced nor left out: then the message is denied.
- Several capabilities of one user: each may allow by itself; delivered is what any of them grants
  of this message, published by the one that forces least.
- A filter that does not match denies as silently as a content filter: nobody is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from pydantic_core import to_json

from penstock.errors import quote
from penstock.model.grants import PUBLISH, SUBSCRIBE, Grant, fits
from penstock.model.kinds import Stream
from penstock.policy.access.principals import Action
from penstock.policy.access.requests import AccessRequest, Message
from penstock.policy.decision import (
    Considered,
    Decision,
    Depends,
    Explanation,
    Part,
    Reshaped,
    Reshaping,
    Seen,
    list_considered,
)
from penstock.policy.event_types import EventType, EventTypes

CAPABILITY: Final = "capability"
"""The rule that denies where no capability allows it; where one does, its name follows."""
_FILTER: Final = "capability filter"
"""The rule that denies what a capability fixes another value for."""
_DEPENDS: Final = Depends.MESSAGE | Depends.TIME
_DENIED: Final = Decision(allowed=False, rule=CAPABILITY, depends=_DEPENDS, part=Part.CAPABILITIES)
_WORDS: Final[Mapping[Action, str]] = {"read": SUBSCRIBE, "write": PUBLISH}


class ForeignType(NamedTuple):
    """The type of another domain that a stream has."""

    issuer: str
    label: str


class HeldCapability(NamedTuple):
    """A capability of a user of ours that was verified, and when it holds."""

    name: str
    user: str
    owner: str
    grants: tuple[Grant, ...]
    valid_from: float
    """Seconds since 1970."""
    valid_until: float
    refused: str | None = None
    """Why it holds at no time, such as that a link was revoked."""
    token: str = ""
    """What shows it to other domains."""

    def object_to(self, now: float) -> str | None:
        """Say why it does not hold at a time."""
        if self.refused is not None:
            return self.refused
        if now < self.valid_from:
            return "it does not hold yet"
        return None if now < self.valid_until else "it has ended, or was not refreshed"


class CapabilityBook:
    """The types of other domains that streams have, and who may do what with them."""

    def __init__(
        self,
        streams: Iterable[tuple[Stream, ForeignType]] = (),
        capabilities: Iterable[HeldCapability] = (),
    ) -> None:
        found = list(streams)
        self.in_use = bool(found)
        """Whether any stream has the type of another domain."""
        self._foreign = {stream.name: it for stream, it in found}
        self._types = EventTypes()
        self._types.put(stream for stream, _ in found)
        self._by_user: dict[str, list[HeldCapability]] = {}
        for it in sorted(capabilities, key=lambda it: it.name):
            self._by_user.setdefault(it.user, []).append(it)
        self.presented: Mapping[str, Mapping[str, HeldCapability]] = {}
        """What clients have shown when they connected, by user and client identifier."""
        self._narrowings: dict[tuple[str, frozenset[str]], Narrowing] = {}
        self._joined: dict[tuple[Reshaping, Reshaping], Joined] = {}

    def concerns(self, topic: str) -> bool:
        """Tell whether messages of a topic are of another domain's type."""
        return self.in_use and bool(self._types.of(topic))

    def types_of(self, topic: str) -> tuple[tuple[EventType, ForeignType], ...]:
        """Return the types of other domains that messages of a topic are of."""
        return tuple((it, self._foreign[it.name]) for it in self._types.of(topic))

    def of(self, user: str | None, client: str | None = None) -> list[HeldCapability]:
        """Return the capabilities of a user, and those that a client has shown; None: any client.

        Those that are shown count for the connection that they were shown on.
        """
        if user is None:
            return []
        held = self._by_user.get(user, [])
        shown = self.presented.get(user)
        if not shown:
            return held
        return [*held, *(it for name, it in shown.items() if client in {None, name})]

    def about(self, foreign: ForeignType) -> list[HeldCapability]:
        """Return all capabilities of users that are about a type, whether they hold or not."""
        return [
            it
            for held in self._by_user.values()
            for it in held
            if it.owner == foreign.issuer
            and any(
                grant.resource == "type" and fits(grant.name, foreign.label) for grant in it.grants
            )
        ]

    def find(
        self,
        user: str | None,
        foreign: ForeignType,
        action: Action,
        now: float,
        client: str | None = None,
    ) -> Iterator[tuple[HeldCapability, Grant]]:
        """Yield what lets a user publish or subscribe to a type at a time."""
        word = _WORDS[action]
        for held in self.of(user, client):
            if held.owner == foreign.issuer and held.object_to(now) is None:
                for grant in held.grants:
                    if grant.allows("type", foreign.label, word):
                        yield held, grant

    def narrowing(self, rule: str, seen: frozenset[str]) -> Narrowing:
        """Return what leaves attributes out; the same one for the same attributes."""
        made = self._narrowings.get((rule, seen))
        if made is None:
            if len(self._narrowings) >= _KEPT:
                self._narrowings.clear()
            made = self._narrowings[rule, seen] = Narrowing(rule, seen)
        return made

    def join(self, first: Reshaping, second: Reshaping) -> Joined:
        """Return two reshapings as one; the same one for the same two."""
        if isinstance(first, Forcing) or isinstance(second, Forcing):
            return Joined(first, second)  # of one message, which is not to be kept
        made = self._joined.get((first, second))
        if made is None:
            if len(self._joined) >= _KEPT:
                self._joined.clear()
            made = self._joined[first, second] = Joined(first, second)
        return made


_KEPT: Final = 4096


class Verdict(NamedTuple):
    """What capabilities say on a message."""

    reason: str | None
    """Why it is denied; None: it is not."""
    rule: str = CAPABILITY
    silent: bool = False
    """Whether the user has a capability, and the message is none that it is for."""
    reshaping: Reshaping | None = None
    content: Mapping[str, Any] | None = None
    """What is published instead, where values are forced."""


class CapabilityPart:
    """Capabilities as a part of the authorizer."""

    __slots__ = ("_book",)

    def __init__(self, book: CapabilityBook) -> None:
        self._book = book

    def decide(self, request: AccessRequest) -> Decision | None:
        """Deny what no capability allows; say what of a message leaves."""
        if not self._book.concerns(request.topic):
            return None
        verdict = self.judge(request)
        if verdict.reason is None:
            return Decision(
                allowed=True,
                rule=verdict.rule,
                depends=_DEPENDS,
                part=Part.CAPABILITIES,
                reshaping=verdict.reshaping,
            )
        if verdict.silent:
            return _SILENT
        return _DENIED

    def explain(self, request: AccessRequest) -> Iterator[Explanation]:
        """Say the same, with every capability of the user that was looked at."""
        if not self._book.concerns(request.topic):
            return
        verdict = self.judge(request)
        considered, more = list_considered(self._consider(request))
        allowed = verdict.reason is None
        reason = verdict.reason or "the owner of the type lets them"
        if verdict.content is not None:
            reason = f"{reason}, with fixed values in the place of those that are published"
        elif verdict.reshaping is not None:
            reason = f"{reason}, without attributes that are not granted"
        part = Part.CONTENT if verdict.silent else Part.CAPABILITIES
        yield Explanation(allowed, verdict.rule, reason, considered, more, part=part)

    def _consider(self, request: AccessRequest) -> Iterator[Considered]:
        now = read_now(request.environment)
        for held in self._book.of(request.user, request.client or ""):
            reason = held.object_to(now) if now is not None else "the time is not known"
            said = reason or "; ".join(map(str, held.grants))
            yield Considered(f"{CAPABILITY} {held.name}", said)

    def judge(self, request: AccessRequest) -> Verdict:  # noqa: PLR0911 (one per outcome)
        """Look at a message on a topic of another domain's types."""
        now = read_now(request.environment)
        message = request.message
        if now is None or message is None:
            return Verdict("neither time nor message are known")
        if message.is_empty:
            return self._judge_empty(request, now)
        published = content = message.content
        if content is None:
            return Verdict("the payload is not a JSON object")
        reshapings: list[Reshaping] = []
        rules: list[str] = []
        for event_type, foreign in self._book.types_of(request.topic):
            client = request.client or ""
            grants = list(self._book.find(request.user, foreign, request.action, now, client))
            if not grants:
                return Verdict(
                    f"{quote(foreign.label)} is the type of another domain, and no capability of "
                    f"theirs lets them {_WORDS[request.action]} to it"
                )
            there = _Content(event_type, message, content)
            if request.action == "write":
                verdict = _judge_publication(there, grants)
                content = verdict.content or content
            else:
                verdict = self._judge_delivery(there, grants)
            if verdict.reason is not None:
                return verdict
            rules.append(verdict.rule)
            if verdict.reshaping is not None:
                reshapings.append(verdict.reshaping)
        if len(rules) > 1 and (reshapings or content is not published):
            return Verdict("it is of several types of other domains, and would have to be changed")
        rule = ", ".join(dict.fromkeys(rules))
        if content is not published:
            return Verdict(None, rule, reshaping=Forcing(rule, content), content=content)
        return Verdict(None, rule, reshaping=reshapings[0] if reshapings else None)

    def _judge_empty(self, request: AccessRequest, now: float) -> Verdict:
        """Look at a message without content: what the broker has retained is taken back."""
        for _, foreign in self._book.types_of(request.topic):
            client = request.client or ""
            grants = self._book.find(request.user, foreign, request.action, now, client)
            if not any(not grant.values for _, grant in grants):
                return Verdict("it has no content, and no capability lets them have all")
        return Verdict(None)

    def _judge_delivery(
        self, there: _Content, grants: Iterable[tuple[HeldCapability, Grant]]
    ) -> Verdict:
        admitting = [(held, grant) for held, grant in grants if grant.admits(there.values)]
        if not admitting:
            reason = "it has not the fixed values of the capability"
            return Verdict(reason, _FILTER, silent=True)
        seen: set[str] = set()
        for _, grant in admitting:
            seen |= {name for name in there.known if grant.sees(name)}
        hidden = [name for name in there.in_topic if name not in seen]
        if hidden:
            return Verdict(f"its topic tells {quote(hidden[0])}, which is not granted")
        rule = _name(held for held, _ in admitting)
        if seen == there.known and not there.unknown and not there.from_properties:
            return Verdict(None, rule)
        narrowing = self._book.narrowing(rule, frozenset(seen))
        return Verdict(None, rule, reshaping=narrowing)


class _Content:
    """A message as one of the types of its topic sees it."""

    __slots__ = (
        "content",
        "event_type",
        "from_properties",
        "in_topic",
        "known",
        "unknown",
        "values",
    )

    def __init__(self, event_type: EventType, message: Message, content: Mapping[str, Any]) -> None:
        self.event_type = event_type
        self.content = content
        attributes = event_type.attributes
        self.known = {it.name for it in attributes}
        self.in_topic = [it.name for it in attributes if not it.path and it.user_property is None]
        self.from_properties = any(it.user_property is not None for it in attributes)
        self.unknown = [it for it in content if it not in self.known]
        self.values = {it.name: it.find(message) for it in attributes}
        # As they were written: a text that looks like a time stays one.
        written = self.known.difference(self.in_topic)
        self.values |= {name: content[name] for name in content if name in written}


def _judge_publication(there: _Content, grants: Iterable[tuple[HeldCapability, Grant]]) -> Verdict:
    if there.unknown:
        return Verdict(f"the type has no attribute {quote(there.unknown[0])}")
    given = {name for name, value in there.values.items() if value is not None}
    beyond = ""
    for held, grant in sorted(grants, key=lambda it: len(it[1].values)):
        withheld = sorted(name for name in given if not grant.sees(name))
        if withheld:
            beyond = beyond or f"the attribute {quote(withheld[0])} is not granted"
            continue
        fixed = [(name, value) for name, value in grant.values if name in there.known]
        if len(fixed) < len(grant.values):
            beyond = beyond or "the type has not the attribute with a fixed value"
            continue
        stuck = [
            name
            for name, _ in fixed
            if (name in there.in_topic or there.from_properties) and not grant.admits(there.values)
        ]
        if stuck:
            beyond = beyond or f"{quote(stuck[0])} has a fixed value, and cannot be changed"
            continue
        rule = _name((held,))
        if grant.admits(there.values):
            return Verdict(None, rule)
        return Verdict(None, rule, content={**there.content, **dict(fixed)})
    return Verdict(beyond)


def _name(held: Iterable[HeldCapability]) -> str:
    return ", ".join(dict.fromkeys(f"{CAPABILITY} {it.name}" for it in held))


def read_now(environment: Mapping[str, Any]) -> float | None:
    """Return the time of a request, in seconds since 1970."""
    found = environment.get("time")
    return found.timestamp() if isinstance(found, datetime) else None


_SILENT: Final = Decision(allowed=False, rule=_FILTER, depends=_DEPENDS, part=Part.CONTENT)


class Narrowing:
    """Leaves out of a message what is not granted, and what its type has not."""

    __slots__ = ("_seen", "fixed", "name")

    def __init__(self, name: str, seen: frozenset[str]) -> None:
        self.name = name
        self.fixed = True
        self._seen = seen

    def apply(self, message: Message, see: Callable[[], Seen]) -> Reshaped | str:
        """Return what leaves; user properties stay behind, for nobody says what is in them."""
        del see
        content = message.content
        if content is None:
            return "the payload is not a JSON object"
        kept = {name: it for name, it in content.items() if name in self._seen}
        return Reshaped(to_json(kept))


class Forcing:
    """Publishes fixed values in the place of those that were given."""

    __slots__ = ("_content", "fixed", "name")

    def __init__(self, name: str, content: Mapping[str, Any]) -> None:
        self.name = name
        self.fixed = True
        self._content = content

    def apply(self, message: Message, see: Callable[[], Seen]) -> Reshaped | str:
        """Return what is published."""
        del message, see
        return Reshaped(to_json(self._content), keeps_properties=True)


class Joined:
    """Two reshapings, one behind the other: the second sees what the first leaves."""

    __slots__ = ("_first", "_second", "fixed", "name")

    def __init__(self, first: Reshaping, second: Reshaping) -> None:
        self._first = first
        self._second = second
        self.name = f"{first.name}, {second.name}"
        self.fixed = first.fixed and second.fixed

    def apply(self, message: Message, see: Callable[[], Seen]) -> Reshaped | str:
        """Return what leaves behind both."""
        before = self._first.apply(message, see)
        if isinstance(before, str) or before.payload is None:
            return before
        left = Message(
            message.topic, before.payload, user=message.user, client=message.client,
            behalf=message.behalf, rest=message.t if before.keeps_properties else None,
        )  # fmt: skip
        after = self._second.apply(left, see)
        if isinstance(after, str):
            return after
        keeps = before.keeps_properties and after.keeps_properties
        return after._replace(keeps_properties=keeps)
