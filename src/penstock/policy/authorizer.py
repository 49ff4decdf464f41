"""The one authorizer: who may read and write what, for which purpose, now.

    request ─▶ users ─▶ broker topics ─▶ subscription ─▶ declared purposes ─▶ claims ─┐
                             │ a write                                   reservations ◀─┘
                             ▼                                                 ▼
    decision ◀── interaction ◀── policies, preferences, ◀── consent ◀── purposes of the message
                                 emergencies

Gateway, command line, demonstrations and, later, console and views ask it and nothing else.

Rules that hold here:
- One composition, in `_compose`: an ordered list of parts. All of them must allow; the first
  that denies decides, else the last that has something to say. `authorize` and `explain` walk
  the same list.
- Who may not connect may do nothing. A gateway ends their connections; here it is explained.
- The broker's own topics, which begin with `$`, come first: they need a right, whatever else holds.
- Purpose limitation is one part: subscription, declared purposes, who may claim them,
  reservations and the purposes of the message, in this order. Policies, preferences and
  emergencies are another: an emergency policy may grant against both of the others, so that
  none of them decides alone.
- Consent is a part behind the purposes: what the data subject opted out of. No policy and no
  emergency grants against it, as none grants against a purpose.
- Roles are no part: they are who asks (`access.principals`), and so count in every part.
- Interaction rules come last: restrictions take away from what all others allow, and what
  transformations do to a message goes along with the decision of the part before.
- A new kind of rule is a new part in `_compose`, nowhere else. A part is a class with
  `decide` and `explain` beside those below, and members of `Part`.
- No I/O, no clock: environment and situations come with the request.
- The content filter of a subscription is no part, and comes behind all: it narrows what they
  allow, by what the reader gets to see, transformed where that is to be.
- A part that denies names what its denial depends on; a grant depends on what all parts
  depended on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from penstock.errors import quote
from penstock.policy.access.emergencies import Situations
from penstock.policy.access.engine import AccessEngine
from penstock.policy.access.objects import Message
from penstock.policy.access.plans import DEFAULT
from penstock.policy.access.principals import Action
from penstock.policy.access.rules import ADMINISTER, MARK, MONITOR, BrokerTopics
from penstock.policy.consent.prohibitions import Prohibitions
from penstock.policy.decision import Considered, Decision, Depends, Explanation, Part
from penstock.policy.events.advertisements import PublicationPart
from penstock.policy.events.content import ContentFilter, ContentFilters
from penstock.policy.interaction import InteractionEngine, InteractionPart
from penstock.policy.purposes.engine import PurposeEngine
from penstock.policy.purposes.explanations import explain_message, explain_topic, name_subscription
from penstock.policy.purposes.rights import (
    UNCLAIMED,
    UNDECLARED,
    DeclaredPurposes,
    PurposeClaims,
)
from penstock.policy.purposes.subscriptions import Content
from penstock.policy.request import AccessRequest

KeepsOut = Callable[[str | None], bool]
"""Says of a user whether they may not connect."""
BLOCKED: Final = "blocked user"
"""The rule that denies everything to who may not connect."""
CONSENT: Final = "consent"
"""The rule that allows where somebody opted out, and not the data subject."""
UNMATCHED: Final = "content filter"
"""The rule that denies what a subscription did not ask for."""
UNSTAMPED: Final = "unstamped"
"""The rule that denies a message of which nobody knows who published it."""


class Authorizer:
    """Decides on requests by the rules that its parts hold; whoever holds those changes them."""

    __slots__ = (
        "_broker_part",
        "_checks",
        "_limitation",
        "_parts",
        "access",
        "broker_topics",
        "claims",
        "consent",
        "contents",
        "declared",
        "interaction",
        "purposes",
    )

    def __init__(
        self,
        purposes: PurposeEngine,
        declared: DeclaredPurposes,
        access: AccessEngine,
        claims: PurposeClaims,
        broker_topics: BrokerTopics,
        keeps_out: KeepsOut,
        consent: Prohibitions | None = None,
        interaction: InteractionEngine | None = None,
        *,
        contents: ContentFilters | None = None,
    ) -> None:
        self.consent = consent or Prohibitions()
        self.interaction = interaction or InteractionEngine()
        self.contents = contents if contents is not None else ContentFilters()
        self.purposes = purposes
        self.declared = declared
        self.access = access
        self.claims = claims
        self.broker_topics = broker_topics
        self._broker_part = _BrokerTopicPart(broker_topics, access)
        self._limitation = _PurposePart(purposes, declared, access, claims)
        self._parts = _compose(
            _UserPart(keeps_out),
            self._broker_part,
            self._limitation,
            _ConsentPart(self.consent),
            access,
            self.interaction,
            PublicationPart(self.contents.types),
        )
        # Looked up once: the lookups would cost as much as a part does.
        self._checks = {
            action: tuple(part.decide for part in parts) for action, parts in self._parts.items()
        }

    def authorize(self, request: AccessRequest) -> Decision:
        """Decide: the hot path."""
        decided: Decision | None = None
        for decide in self._checks[request.action]:
            decision = decide(request)
            if decision is None:
                continue
            if not decision.allowed:
                return decision
            if decided is not None:
                if decision.part is _INTERACTION:
                    # It grants nothing: who did is to be told.
                    decision = replace(
                        decided,
                        reshaping=decision.reshaping,
                        depends=decision.depends | decided.depends,
                    )
                elif decided.depends:
                    decision = replace(decision, depends=decision.depends | decided.depends)
            decided = decision
        decided = decided or _UNOPPOSED
        held = request.subscription
        if held is None or held.content is None or decided.reshaping is not None:
            return decided
        if not self.matches(held.content, request.message):
            return _UNMATCHED
        return replace(decided, depends=decided.depends | Depends.MESSAGE)

    def matches(self, content: Content, message: Message | None) -> bool:
        """Tell whether a message is what a content filter is for.

        Where transformations change it, what leaves is asked about: whoever carries them out asks.
        """
        return (
            message is not None
            and isinstance(content, ContentFilter)
            and self.contents.admits(content, message)
        )

    def explain(self, request: AccessRequest) -> Explanation:
        """Decide the same, and tell all rules that were considered."""
        told = [it for part in self._parts[request.action] for it in part.explain(request)]
        if not told:
            return Explanation(
                allowed=True, rule=DEFAULT, reason="policies are not required for writing"
            )
        if self.authorize(request).part is Part.CONTENT:
            told.append(_OTHER_EVENT)
        granting = (it for it in reversed(told) if it.part is not _INTERACTION)
        deciding = next((it for it in told if not it.allowed), None)
        if deciding is None:
            deciding = next(granting, told[-1])
        return replace(
            deciding,
            considered=tuple(item for it in told for item in it.considered),
            more=any(it.more for it in told),
        )

    def may_subscribe(
        self, user: str | None, client: str | None, purpose: str | None, filter_: str
    ) -> bool:
        """Tell whether somebody may subscribe for a purpose, and to the broker's own topics."""
        return (
            self.declared.admits(purpose)
            and self._limitation.lets_claim(user, client, purpose)
            and self._broker_part.lets_read(user, client, filter_)
        )

    def refuse_subscription(
        self, user: str | None, client: str | None, purpose: str | None, filter_: str
    ) -> Explanation | None:
        """Explain why somebody may not subscribe so, whatever is reserved; None where they may."""
        if self.may_subscribe(user, client, purpose, filter_):
            return None
        told = (
            *self._limitation.explain_claim(user, client, purpose),
            *self._broker_part.explain(AccessRequest("read", filter_, user, client)),
        )
        return next(it for it in told if not it.allowed)

    def refuse_by_context(
        self,
        user: str | None,
        client: str | None,
        filter_: str,
        e: Mapping[str, Any],
        situations: Situations,
    ) -> str | None:
        """Name the restriction that does not permit a subscription now, None where none does."""
        if not self.interaction.in_use:
            return None
        principal = self.access.principal(user, client)
        return self.interaction.refuse_subscription(principal, filter_, e, situations)

    def name_purpose_denial(self, request: AccessRequest) -> str:
        """Name the rule by which rights and purposes deny reading, nothing where they do not.

        Policies are not looked at: a refusal stays cheap, and none of them is named for it.
        """
        later = (_AccessPart, InteractionPart)
        parts = (it for it in self._parts["read"] if not isinstance(it, later))
        told = (it for part in parts for it in part.explain(request))
        return next((it.rule for it in told if not it.allowed), "")


class _AuthorizerPart(Protocol):
    """One kind of rule in the composition; None, or no explanation: it has nothing to say."""

    def decide(self, request: AccessRequest) -> Decision | None: ...

    def explain(self, request: AccessRequest) -> Iterator[Explanation]: ...


def _compose(
    by_user: _UserPart,
    by_broker: _BrokerTopicPart,
    limitation: _PurposePart,
    by_consent: _ConsentPart,
    access: AccessEngine,
    interaction: InteractionEngine,
    by_type: PublicationPart,
) -> Mapping[Action, tuple[_AuthorizerPart, ...]]:
    """Put the parts in their order; the place for each further kind of rule."""
    by_access = _AccessPart(access)
    # Where nobody has such rules they cost nothing.
    last = (InteractionPart(interaction, access),) if interaction.in_use else ()
    return {
        "read": (by_user, by_broker, limitation, by_consent, by_access, *last),
        # Who may not write here learns neither of types nor of domains.
        "write": (by_user, by_broker, by_access, by_type, *last),
    }


_INTERACTION: Final = Part.INTERACTION
_UNOPPOSED: Final = Decision(allowed=True, rule=DEFAULT)
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
_UNMATCHED: Final = Decision(
    allowed=False, rule=UNMATCHED, depends=Depends.MESSAGE, part=Part.CONTENT
)
_OTHER_EVENT: Final = Explanation(
    allowed=False,
    rule=UNMATCHED,
    reason="the event is none that the subscription is for",
    part=Part.CONTENT,
)
_UNSTAMPED: Final = Decision(allowed=False, rule=UNSTAMPED, part=Part.PREFERENCES)


class _UserPart:
    """Users that may not connect at all."""

    __slots__ = ("_keeps_out",)

    def __init__(self, keeps_out: KeepsOut) -> None:
        self._keeps_out = keeps_out

    def decide(self, request: AccessRequest) -> Decision | None:
        return _KEPT_OUT if self._keeps_out(request.user) else None

    def explain(self, request: AccessRequest) -> Iterator[Explanation]:
        if self._keeps_out(request.user):
            reason = "the user is blocked, or not defined where users have to be"
            yield Explanation(allowed=False, rule=BLOCKED, reason=reason, part=Part.USERS)


class _BrokerTopicPart:
    """The broker's own topics."""

    __slots__ = ("_access", "_topics")

    def __init__(self, topics: BrokerTopics, access: AccessEngine) -> None:
        self._topics = topics
        self._access = access

    def decide(self, request: AccessRequest) -> Decision | None:
        if request.topic[0] != MARK:
            return None
        if self._topics.admits(self._subjects(request), request.action, request.topic):
            return _ENTITLED
        return _UNMONITORED if request.action == "read" else _NO_ADMINISTRATOR

    def explain(self, request: AccessRequest) -> Iterator[Explanation]:
        if request.topic[0] == MARK:
            yield self._topics.explain(self._subjects(request), request.action, request.topic)

    def lets_read(self, user: str | None, client: str | None, filter_: str) -> bool:
        return filter_[0] != MARK or self._topics.admits(
            self._access.principal(user, client).subjects, "read", filter_
        )

    def _subjects(self, request: AccessRequest) -> Collection[str]:
        return self._access.principal(request.user, request.client, request.attributes).subjects


class _PurposePart:
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


class _ConsentPart:
    """What the people opted out of whom messages are about."""

    __slots__ = ("_prohibitions",)

    def __init__(self, prohibitions: Prohibitions) -> None:
        self._prohibitions = prohibitions

    def decide(self, request: AccessRequest) -> Decision | None:
        found = self._prohibitions.examine(request.topic, request.purpose, request.message)
        if found is None:
            return None
        if not found.rule:
            return _CONSENTED if found.lasting else _CONSENTED_ONCE
        depends = Depends.NOTHING if found.lasting else Depends.MESSAGE
        return Decision(allowed=False, rule=found.rule, depends=depends, part=Part.CONSENT)

    def explain(self, request: AccessRequest) -> Iterator[Explanation]:
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


class _AccessPart:
    """Policies, preferences and emergencies."""

    __slots__ = ("_access",)

    def __init__(self, access: AccessEngine) -> None:
        self._access = access

    def decide(self, request: AccessRequest) -> Decision | None:
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
