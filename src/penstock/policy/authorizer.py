"""The one authorizer: who may read and write what, for which purpose, now.

    request ─▶ users ─▶ broker topics ─▶ subscription ─▶ declared purposes ─▶ claims ─┐
                             │ a write                                   reservations ◀─┘
                             ▼                                                 ▼
    decision ◀── interaction ◀── capabilities ◀── policies, preferences, ◀── consent ◀── purposes of
                                                  emergencies                            the message

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
- Capabilities take away, too: what another domain's types are asks for the say of their owner,
  whatever is allowed at home. What they leave out is left out before transformations look.
- Interaction rules come last: restrictions take away from what all others allow, and what
  transformations do to a message goes along with the decision of the part before.
- A new kind of rule is a new part in `_compose`, nowhere else. A part is a class with
  `decide` and `explain` beside those in `parts`, and members of `Part`.
- No I/O, no clock: environment and situations come with the request.
- The content filter of a subscription is no part, and comes behind all: it narrows what they
  allow, by what the reader gets to see, transformed where that is to be.
- A part that denies names what its denial depends on; a grant depends on what all parts
  depended on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from penstock.policy.access.emergencies import Situations
from penstock.policy.access.engine import AccessEngine
from penstock.policy.access.plans import DEFAULT
from penstock.policy.access.principals import Action
from penstock.policy.access.requests import AccessRequest, Message
from penstock.policy.access.rules import BrokerTopics
from penstock.policy.capabilities import CapabilityBook, CapabilityPart
from penstock.policy.consent import Prohibitions
from penstock.policy.content_filters import ContentFilter, ContentFilters
from penstock.policy.decision import Decision, Depends, Explanation, Part, Reshaping
from penstock.policy.interaction import InteractionEngine, InteractionPart
from penstock.policy.parts import (
    AccessPart,
    BrokerTopicPart,
    ConsentPart,
    KeepsOut,
    PublicationPart,
    PurposePart,
    UserPart,
)
from penstock.policy.purposes.engine import PurposeEngine
from penstock.policy.purposes.rights import (
    DeclaredPurposes,
    PurposeClaims,
)
from penstock.policy.purposes.subscriptions import Content

UNMATCHED: Final = "content filter"
"""The rule that denies what a subscription did not ask for."""


class Authorizer:
    """Decides on requests by the rules that its parts hold; whoever holds those changes them."""

    __slots__ = (
        "_broker_part",
        "_checks",
        "_limitation",
        "_parts",
        "access",
        "broker_topics",
        "capabilities",
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
        capabilities: CapabilityBook | None = None,
    ) -> None:
        self.capabilities = capabilities or CapabilityBook()
        self.consent = consent or Prohibitions()
        self.interaction = interaction or InteractionEngine()
        self.contents = contents if contents is not None else ContentFilters()
        self.purposes = purposes
        self.declared = declared
        self.access = access
        self.claims = claims
        self.broker_topics = broker_topics
        self._broker_part = BrokerTopicPart(broker_topics, access)
        self._limitation = PurposePart(purposes, declared, access, claims)
        self._parts = _compose(
            UserPart(keeps_out),
            self._broker_part,
            self._limitation,
            ConsentPart(self.consent),
            access,
            self.interaction,
            PublicationPart(self.contents.types),
            self.capabilities,
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
                if decision.part in _NARROWING:
                    # It grants nothing: who did is to be told.
                    decision = replace(
                        decided,
                        reshaping=self._join(decided.reshaping, decision.reshaping),
                        depends=decision.depends | decided.depends,
                    )
                elif decided.depends:
                    decision = replace(decision, depends=decision.depends | decided.depends)
            decided = decision
        if decided is None:
            decided = _UNOPPOSED
        held = request.subscription
        if held is None or held.content is None or decided.reshaping is not None:
            return decided
        if not self.matches(held.content, request.message):
            return _UNMATCHED
        return replace(decided, depends=decided.depends | Depends.MESSAGE)

    def _join(self, first: Reshaping | None, second: Reshaping | None) -> Reshaping | None:
        """Return what carries out two reshapings, as far as there are two."""
        if first is None or second is None:
            return first or second
        return self.capabilities.join(first, second)

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
        granting = (it for it in reversed(told) if it.part not in _NARROWING)
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
        later = (AccessPart, CapabilityPart, InteractionPart)
        parts = (it for it in self._parts["read"] if not isinstance(it, later))
        told = (it for part in parts for it in part.explain(request))
        return next((it.rule for it in told if not it.allowed), "")


class _AuthorizerPart(Protocol):
    """One kind of rule in the composition; None, or no explanation: it has nothing to say."""

    def decide(self, request: AccessRequest) -> Decision | None: ...

    def explain(self, request: AccessRequest) -> Iterator[Explanation]: ...


def _compose(
    by_user: UserPart,
    by_broker: BrokerTopicPart,
    limitation: PurposePart,
    by_consent: ConsentPart,
    access: AccessEngine,
    interaction: InteractionEngine,
    by_type: PublicationPart,
    capabilities: CapabilityBook,
) -> Mapping[Action, tuple[_AuthorizerPart, ...]]:
    """Put the parts in their order; the place for each further kind of rule."""
    by_access = AccessPart(access)
    # Where nobody has such rules they cost nothing.
    last: tuple[_AuthorizerPart, ...] = ()
    if capabilities.in_use:
        last = (CapabilityPart(capabilities),)
    if interaction.in_use:
        last = (*last, InteractionPart(interaction, access))
    return {
        "read": (by_user, by_broker, limitation, by_consent, by_access, *last),
        # Who may not write here learns neither of types nor of domains.
        "write": (by_user, by_broker, by_access, by_type, *last),
    }


_NARROWING: Final = frozenset({Part.CAPABILITIES, Part.INTERACTION})
"""The parts that only take away from what others allow."""
_UNOPPOSED: Final = Decision(allowed=True, rule=DEFAULT)
_UNMATCHED: Final = Decision(
    allowed=False, rule=UNMATCHED, depends=Depends.MESSAGE, part=Part.CONTENT
)
_OTHER_EVENT: Final = Explanation(
    allowed=False,
    rule=UNMATCHED,
    reason="the event is none that the subscription is for",
    part=Part.CONTENT,
)
