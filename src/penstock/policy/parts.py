"""The parts of the authorizer: on users, purposes, consent, policies, and on what is published.

    PUBLISH !ADVERTISE/home/PLUS/vitals ──▶ right to advertise? ──▶ held until the session ends
    PUBLISH home/p-17/vitals ──▶ a domain asks for it? ──▶ advertised? ──▶ of its type? ──▶ broker

Rules that hold here:
- A part has something to say, or it has not (None, no explanation). `decide` and `explain` of one
  part agree: a property test compares them.
- What a part depends on goes along with what it says, so that caches know what holds for long.
- Further parts stand with what they decide by: `capabilities`, `interaction`, `events`.
- A domain names the topics on which nobody publishes without having advertised it.
- An advertisement is a client's own, for one filter. It ends when it is withdrawn, at its time,
  with the connection, and with the right to it: that is looked at whenever it is used.
- Where a stream asks for it (`conform`), a message is refused that is not of its type: no JSON
  object, a field that is missing and not optional, a value of another type than declared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from penstock.errors import quote
from penstock.model.document import Document, Key
from penstock.model.kinds import Domain
from penstock.policy.access.engine import AccessEngine
from penstock.policy.access.requests import AccessRequest
from penstock.policy.access.rules import ADMINISTER, MARK, MONITOR, BrokerTopics
from penstock.policy.consent import Prohibitions
from penstock.policy.decision import Considered, Decision, Depends, Explanation, Part
from penstock.policy.event_types import EventTypes
from penstock.policy.filter_tree import FilterTree
from penstock.policy.purposes.engine import PurposeEngine
from penstock.policy.purposes.explanations import explain_message, explain_topic, name_subscription
from penstock.policy.purposes.rights import (
    UNCLAIMED,
    UNDECLARED,
    DeclaredPurposes,
    PurposeClaims,
)

KeepsOut = Callable[[str | None], bool]
"""Says of a user whether they may not connect."""
BLOCKED: Final = "blocked user"
"""The rule that denies everything to who may not connect."""
CONSENT: Final = "consent"
"""The rule that allows where somebody opted out, and not the data subject."""
UNSTAMPED: Final = "unstamped"
"""The rule that denies a message of which nobody knows who published it."""

_KEPT_OUT: Final = Decision(allowed=False, rule=BLOCKED, part=Part.USERS)
_ENTITLED: Final = Decision(allowed=True, rule="", part=Part.BROKER_TOPICS)
_UNMONITORED: Final = Decision(allowed=False, rule=MONITOR, part=Part.BROKER_TOPICS)
_NO_ADMINISTRATOR: Final = Decision(allowed=False, rule=ADMINISTER, part=Part.BROKER_TOPICS)
_PAUSED: Final = Decision(allowed=False, rule="", part=Part.SUBSCRIPTION)
_UNDECLARED: Final = Decision(allowed=False, rule=UNDECLARED, part=Part.DECLARED_PURPOSES)
_UNCLAIMED: Final = Decision(allowed=False, rule=UNCLAIMED, part=Part.CLAIMS)
_RESERVED: Final = Decision(allowed=False, rule="", part=Part.RESERVATIONS)
_COMPATIBLE: Final = Decision(allowed=True, rule="", part=Part.RESERVATIONS)
_NARROWED: Final = Decision(allowed=False, rule="", part=Part.MESSAGE_PURPOSES)
_CONSENTED: Final = Decision(allowed=True, rule="", part=Part.CONSENT)
_CONSENTED_ONCE: Final = replace(_CONSENTED, depends=Depends.MESSAGE)
_UNSTAMPED: Final = Decision(allowed=False, rule=UNSTAMPED, part=Part.PREFERENCES)


class UserPart:
    """Users that may not connect at all."""

    __slots__ = ("_keeps_out",)

    def __init__(self, keeps_out: KeepsOut) -> None:
        self._keeps_out = keeps_out

    def decide(self, request: AccessRequest) -> Decision | None:
        """Deny who may not connect."""
        return _KEPT_OUT if self._keeps_out(request.user) else None

    def explain(self, request: AccessRequest) -> Iterator[Explanation]:
        """Say the same."""
        if self._keeps_out(request.user):
            reason = "the user is blocked, or not defined where users have to be"
            yield Explanation(allowed=False, rule=BLOCKED, reason=reason, part=Part.USERS)


class BrokerTopicPart:
    """The broker's own topics."""

    __slots__ = ("_access", "_topics")

    def __init__(self, topics: BrokerTopics, access: AccessEngine) -> None:
        self._topics = topics
        self._access = access

    def decide(self, request: AccessRequest) -> Decision | None:
        """Decide on topics of the broker's own."""
        if request.topic[0] != MARK:
            return None
        if self._topics.admits(self._subjects(request), request.action, request.topic):
            return _ENTITLED
        return _UNMONITORED if request.action == "read" else _NO_ADMINISTRATOR

    def explain(self, request: AccessRequest) -> Iterator[Explanation]:
        """Say which right lets them, or which would."""
        if request.topic[0] == MARK:
            yield self._topics.explain(self._subjects(request), request.action, request.topic)

    def lets_read(self, user: str | None, client: str | None, filter_: str) -> bool:
        """Tell whether somebody may subscribe to a filter, as far as the broker's topics go."""
        return filter_[0] != MARK or self._topics.admits(
            self._access.principal(user, client).subjects, "read", filter_
        )

    def _subjects(self, request: AccessRequest) -> Collection[str]:
        return self._access.principal(request.user, request.client, request.attributes).subjects


class PurposePart:
    """Purpose limitation, from the subscription to the purposes that the message carries."""

    __slots__ = ("_access", "_claims", "_declared", "_purposes")

    def __init__(
        self,
        purposes: PurposeEngine,
        declared: DeclaredPurposes,
        access: AccessEngine,
        claims: PurposeClaims,
    ) -> None:
        self._purposes = purposes
        self._declared = declared
        self._access = access
        self._claims = claims

    # One function on purpose: on the way of every uncached delivery calls cost more than they tidy.
    def decide(self, request: AccessRequest) -> Decision | None:
        """Deny what any step of purpose limitation does not allow."""
        purpose, held = request.purpose, request.subscription
        if held is not None and not held.active:
            return _PAUSED
        if not self._declared.admits(purpose):
            return _UNDECLARED
        if self._purposes.settings.claims_need_right and not self.lets_claim(
            request.user, request.client, purpose, request.attributes
        ):
            return _UNCLAIMED
        if held is not None:
            allowed = self._purposes.permits(held, request.topic)
        else:
            allowed = self._purposes.decide(request.topic, purpose)
        if not allowed:
            return _RESERVED
        own = request.message_purposes
        return _COMPATIBLE if own is None or own.admits(purpose) else _NARROWED

    def explain(self, request: AccessRequest) -> Iterator[Explanation]:
        """Tell each step."""
        purpose, held = request.purpose, request.subscription
        if held is not None and not held.active:
            yield Explanation(
                allowed=False,
                rule=name_subscription(held),
                reason=f"it is paused: reservations forbid topics of {quote(held.filter)}",
                part=Part.SUBSCRIPTION,
            )
        yield from self.explain_claim(request.user, request.client, purpose, request.attributes)
        yield explain_topic(self._purposes.reservations, request.topic, purpose)
        if request.message_purposes is not None:
            yield explain_message(purpose, request.message_purposes)

    def lets_claim(
        self,
        user: str | None,
        client: str | None,
        purpose: str | None,
        attributes: Mapping[str, Any] | None = None,
    ) -> bool:
        """Tell whether somebody has the right to a purpose, where one is asked for."""
        if purpose is None or not self._purposes.settings.claims_need_right:
            return True
        return self._claims.admits(
            self._access.principal(user, client, attributes).subjects, purpose
        )

    def explain_claim(
        self,
        user: str | None,
        client: str | None,
        purpose: str | None,
        attributes: Mapping[str, Any] | None = None,
    ) -> Iterator[Explanation]:
        """Explain whether a purpose may be used, and by them, as far as anything asks for that."""
        if reason := self._declared.object_to(purpose):
            yield Explanation(
                allowed=False, rule=UNDECLARED, reason=reason, part=Part.DECLARED_PURPOSES
            )
        if purpose is not None and self._purposes.settings.claims_need_right:
            principal = self._access.principal(user, client, attributes)
            yield self._claims.explain(principal.subjects, purpose)


class ConsentPart:
    """What the people opted out of whom messages are about."""

    __slots__ = ("_prohibitions",)

    def __init__(self, prohibitions: Prohibitions) -> None:
        self._prohibitions = prohibitions

    def decide(self, request: AccessRequest) -> Decision | None:
        """Deny what somebody opted out of whom the message is about."""
        if not self._prohibitions.opt_outs.by_purpose:
            return None
        found = self._prohibitions.examine(request.topic, request.purpose, request.message)
        if found is None:
            return None
        if not found.rule:
            return _CONSENTED if found.lasting else _CONSENTED_ONCE
        depends = Depends.NOTHING if found.lasting else Depends.MESSAGE
        return Decision(allowed=False, rule=found.rule, depends=depends, part=Part.CONSENT)

    def explain(self, request: AccessRequest) -> Iterator[Explanation]:
        """Say who decides, and by what choice."""
        purpose = request.purpose
        found = self._prohibitions.examine(request.topic, purpose, request.message)
        if found is not None:
            asked = f"purpose {purpose}" if purpose else "no purpose, which any opt-out excludes"
            yield Explanation(
                allowed=not found.rule,
                rule=found.rule or CONSENT,
                reason=f"{found.reason} ({asked})",
                part=Part.CONSENT,
            )


class AccessPart:
    """Policies, preferences and emergencies."""

    __slots__ = ("_access",)

    def __init__(self, access: AccessEngine) -> None:
        self._access = access

    def decide(self, request: AccessRequest) -> Decision | None:
        """Decide by policies, preferences and emergencies, where they decide at all."""
        access = self._access
        if not access.decides[request.action]:
            return None
        if request.message is None:
            return _UNSTAMPED
        principal = access.principal(request.user, request.client, request.attributes)
        return access.decide(
            request.action,
            principal,
            request.message,
            request.e,
            request.situations,
        )

    def explain(self, request: AccessRequest) -> Iterator[Explanation]:
        """Tell each rule that was considered."""
        access = self._access
        if not access.decides[request.action]:
            return
        if request.message is None:
            reason = "nobody knows who published it, and there are preferences"
            yield Explanation(allowed=False, rule=UNSTAMPED, reason=reason, part=Part.PREFERENCES)
            return
        principal = access.principal(request.user, request.client, request.attributes)
        told = access.explain(
            request.action,
            principal,
            request.message,
            request.e,
            request.situations,
        )
        if request.user is None and request.client is not None:
            told = replace(told, considered=(_unproven(request.client), *told.considered))
        yield told


def _unproven(client: str) -> Considered:
    why = "without a user it counts for nothing: anybody can choose a client identifier"
    return Considered(f"client {client}", why)


ADVERTISEMENT: Final = "advertisement"
"""The rule that denies what was not advertised."""
OTHER_TYPE: Final = "event type "
"""How the rule begins that denies a message that is none of its stream; its name follows."""
LIMIT: Final = 1_000
"""The most advertisements of one client."""

_UNADVERTISED: Final = Decision(
    allowed=False, rule=ADVERTISEMENT, depends=Depends.TIME, part=Part.EVENT_TYPES
)


class Advertisements:
    """Where advertisements are needed, and what clients have advertised."""

    kinds = frozenset({Domain.kind})
    """What they follow."""

    def __init__(self) -> None:
        self._domains: dict[str, tuple[str, ...]] = {}
        self._needed: FilterTree[bool] = FilterTree()
        self._held: dict[str, FilterTree[tuple[str, float]]] = {}
        """By client: found by topic, as each message asks; with the moment when they end."""

    def take(self, documents: Mapping[Key, Document], changed: Iterable[Key]) -> None:
        """Take over definitions of which these may differ from what was known."""
        keys = [key for key in changed if key.kind == Domain.kind]
        for key in keys:
            self._domains.pop(key.name, None)
            if key in documents:
                self._domains[key.name] = tuple(documents[key].body.get("advertised", ()))
        if keys:
            self._needed.clear()
            for filters in self._domains.values():
                for filter_ in filters:
                    self._needed.set(filter_, True)  # noqa: FBT003

    @property
    def in_use(self) -> bool:
        """Whether anything has to be advertised."""
        return bool(len(self._needed))

    def are_needed(self, topic: str) -> bool:
        """Tell whether nobody publishes on a topic without having advertised it."""
        return self.in_use and bool(self._needed.matching(topic))

    def put(self, client: str, filter_: str, until: float | None) -> bool:
        """Hold an advertisement until a moment, or as long as the client is connected.

        False: the client has too many.
        """
        held = self._held.setdefault(client, FilterTree())
        if held.get(filter_) is None and len(held) >= LIMIT:
            return False
        held.set(filter_, (filter_, math.inf if until is None else until))
        return True

    def withdraw(self, client: str, filter_: str) -> None:
        """End an advertisement."""
        held = self._held.get(client)
        if held is not None:
            held.remove(filter_)

    def end(self, client: str) -> None:
        """End all that a client has advertised."""
        self._held.pop(client, None)

    def cover(self, client: str, topic: str, now: float, entitled: Callable[[str], bool]) -> bool:
        """Tell whether a client has advertised a topic, and still may."""
        held = self._held.get(client)
        if held is None:
            return False
        for filter_, until in held.matching(topic):
            if until <= now:
                held.remove(filter_)
            elif entitled(filter_):
                return True
        return False


class PublicationPart:
    """The part of the authorizer that looks at advertisements and types."""

    __slots__ = ("_types",)

    def __init__(self, types: EventTypes) -> None:
        self._types = types

    def decide(self, request: AccessRequest) -> Decision | None:
        """Deny what was not advertised, or is of another type."""
        if not request.advertised:
            return _UNADVERTISED
        other = self._types.find_other(request.topic, request.message)
        if other is None:
            return None
        rule = OTHER_TYPE + other[0]
        return Decision(False, rule, Depends.MESSAGE, part=Part.EVENT_TYPES)  # noqa: FBT003

    def explain(self, request: AccessRequest) -> Iterator[Explanation]:
        """Say the same, with the attribute that is wrong."""
        if not request.advertised:
            reason = "its domain asks for an advertisement, and there is none"
            yield Explanation(
                allowed=False, rule=ADVERTISEMENT, reason=reason, part=Part.EVENT_TYPES
            )
        other = self._types.find_other(request.topic, request.message)
        if other is not None:
            yield Explanation(
                allowed=False, rule=OTHER_TYPE + other[0], reason=other[1], part=Part.EVENT_TYPES
            )
