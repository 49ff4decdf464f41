"""Interaction control: restrictions, and transformations of what passes.

    topic ──▶ rules of its filters ──▶ plan: those that mean who asks ──▶ conditions ──▶ decision
                                                                              │
                    message, as it leaves ◀── reshaping ◀── transformations that apply ◀┘

Rules that hold here:
- Restrictions only take away: all that mean who asks must let a message pass. Transformations
  that apply change it, in their order; one that cannot be told or cannot be carried out denies.
- A rule for a role means whoever would have it, whatever roles a session chose, and those of whom
  nobody can tell; exempt is who uses it.
- Whom a rule exempts, and in which emergencies it does not hold, leaves it out; what cannot be
  told leaves nothing out. An emergency that a rule needs, and nobody knows of, denies.
- Conditions see the message as it was published, whatever changes before them.
- What an expression looks at is known before: it tells what a decision depends on. A reshaping
  that looks at the message alone is `fixed`, and the same for all who get it.
- How values are changed is given from outside: nothing here knows masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter, or_
from typing import Any, Final, Literal

from penstock.lang import Expression
from penstock.model.topics import covers
from penstock.policy.access.emergencies import Emergency, Situations, SituationsUnknownError
from penstock.policy.access.engine import PLAN_LIMIT, AccessEngine
from penstock.policy.access.plans import DEFAULT
from penstock.policy.access.principals import Action, Principal
from penstock.policy.access.requests import AccessRequest, Message
from penstock.policy.access.rules import RoleArguments, depends_on
from penstock.policy.decision import (
    Considered,
    Decision,
    Depends,
    Explanation,
    Part,
    Reshaping,
    Seen,
    list_considered,
)
from penstock.policy.filter_store import TopicCache
from penstock.policy.filter_tree import FilterTree

TOPIC_LIMIT: Final = 65_536

Stage = Literal["delivery", "subscription", "publication"]


class UndecidedError(Exception):
    """Nobody can tell whether a rule holds."""


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """Rows of a table, and what gives the key of one."""

    name: str
    key: Expression
    rows: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A restriction or a transformation; `forbids`: messages that meet the condition are denied.

    `order` puts transformations in their order; restrictions have none. `converts`: what it
    makes is of another type, so that nothing follows it.
    """

    name: str
    at: Stage
    filter: str
    subject: str
    condition: Expression
    exempt: tuple[tuple[str, RoleArguments | None], ...] = ()
    during: Emergency | None = None
    outside: Emergency | None = None
    lookups: tuple[Lookup, ...] = ()
    transforms: bool = False
    forbids: bool = False
    converts: bool = False
    order: int = 0

    @property
    def depends(self) -> Depends:
        """What it depends on whether the rule holds."""
        read = [self.condition, *(it.key for it in self.lookups)]
        read += [it for _, who in self.exempt if who is not None for it in who.expressions]
        occasions = [it for it in (self.during, self.outside) if it is not None]
        read += [it.about for it in occasions if it.about is not None]
        found = reduce(or_, map(depends_on, read), Depends.NOTHING)
        return found | Depends.SITUATION if occasions else found

    def holds(self, principal: Principal, seen: Seen, situations: Situations) -> bool:
        """Tell whether it is about somebody and a message now, its condition aside."""
        for subject, wanted in self.exempt:
            if subject in principal.subjects and (
                wanted is None or _has_arguments(wanted, principal, seen)
            ):
                return False
        outside = self.outside
        if outside is not None:
            try:
                if outside.find(situations, _whose(outside, seen), principal.attributes):
                    return False
            except SituationsUnknownError:
                pass
        during = self.during
        if during is None:
            return True
        subject_of = _whose(during, seen)
        if during.about is not None and subject_of is None:
            raise UndecidedError
        return during.find(situations, subject_of, principal.attributes) is not None

    def rows(self, seen: Seen) -> dict[str, Mapping[str, Any] | None]:
        """Return what expressions see as `d`."""
        found = {}
        for it in self.lookups:
            key = it.key.function(*seen)
            found[it.name] = it.rows.get(key) if type(key) is str else None
        return found

    def test(self, seen: Seen) -> bool | None:
        """Tell whether its condition holds; None where that cannot be told."""
        found: bool | None = self.condition.function(*seen, self.rows(seen))
        return found

    def admits(self, seen: Seen) -> bool:
        """Tell whether a restriction that holds lets a message pass."""
        return self.test(seen) is (not self.forbids)


def _has_arguments(wanted: RoleArguments, principal: Principal, seen: Seen) -> bool:
    relation = principal.roles.relations.get(wanted.role)
    return relation is not None and wanted.function(relation, _always)(*seen) is True


def _always(*_: Any) -> bool:
    return True


def _whose(emergency: Emergency, seen: Seen) -> str | None:
    if emergency.about is None:
        return None
    found = emergency.about.function(*seen)
    return found if type(found) is str else None


MakeReshaping = Callable[[tuple[Rule, ...]], Reshaping]
"""Makes what carries transformations out, one after the other."""


class _Plan:
    """The rules on a topic that mean one principal."""

    __slots__ = ("_decisions", "_denied", "_make", "_restrictions", "_transformations", "depends")

    def __init__(self, rules: Iterable[Rule], make: MakeReshaping) -> None:
        found = list(rules)
        self._make = make
        self._restrictions = [it for it in found if not it.transforms]
        self._transformations = [it for it in found if it.transforms]
        depends = self.depends = reduce(or_, (it.depends for it in found), Depends.NOTHING)
        part = Part.INTERACTION
        self._denied = {it: Decision(False, it.name, depends, part=part) for it in found}  # noqa: FBT003
        self._decisions: dict[tuple[Rule, ...], Decision] = {
            (): Decision(True, "", depends, part=part)  # noqa: FBT003
        }

    def decide(self, principal: Principal, seen: Seen, situations: Situations) -> Decision:
        """Decide: deny, or allow with what is to be changed."""
        applied: list[Rule] = []
        for rule in self._restrictions:
            try:
                if rule.holds(principal, seen, situations) and not rule.admits(seen):
                    return self._denied[rule]
            except (UndecidedError, SituationsUnknownError):
                return self._denied[rule]
        for rule in self._transformations:
            try:
                applies = rule.test(seen) if rule.holds(principal, seen, situations) else False
            except (UndecidedError, SituationsUnknownError):
                applies = None
            if applies is True:
                applied.append(rule)
                if rule.converts and rule.at == "delivery":
                    break
            elif applies is not False:
                return self._denied[rule]
        key = tuple(applied)
        decision = self._decisions.get(key)
        if decision is None:
            name = ", ".join(it.name for it in key)
            reshaping = self._make(key)
            decision = self._decisions[key] = Decision(
                allowed=True,
                rule=name,
                depends=self.depends,
                part=Part.INTERACTION,
                reshaping=reshaping,
            )
        return decision


class InteractionEngine:
    """All restrictions and transformations of one set of definitions."""

    def __init__(self, rules: Iterable[Rule] = (), make: MakeReshaping | None = None) -> None:
        held = sorted(rules, key=attrgetter("order", "name"))
        self.in_use = bool(held)
        """Whether there is any rule."""
        self._make_one = make
        self._made: dict[tuple[Rule, ...], Reshaping] = {}
        self._entrances = [it for it in held if it.at == "subscription"]
        self._by_action: dict[Action, TopicCache[tuple[Rule, ...]]] = {
            "read": _index(it for it in held if it.at != "publication"),
            "write": _index(it for it in held if it.at == "publication"),
        }

    def concerns(self, action: Action, topic: str) -> bool:
        """Tell whether any rule is about messages of a topic."""
        return self.in_use and bool(self._by_action[action][topic])

    def rules(self, action: Action, topic: str) -> tuple[Rule, ...]:
        """Return all rules about messages of a topic, in their order."""
        return self._by_action[action][topic]

    def decide(
        self,
        action: Action,
        principal: Principal,
        message: Message,
        seen: Seen,
        situations: Situations,
    ) -> Decision | None:
        """Decide whether a message passes, and what of it: the hot path; None: no rule means it."""
        rules = self._by_action[action][message.topic]
        if not rules:
            return None
        plan = principal.plans.get(rules)
        if plan is None:
            if len(principal.plans) >= PLAN_LIMIT:
                principal.plans.clear()
            mine = [it for it in rules if principal.is_limited_by(it.subject)]
            plan = principal.plans[rules] = _Plan(mine, self._reshaping)
        try:
            decided: Decision = plan.decide(principal, seen, situations)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, the answer is no
            rule, part = f"error {type(error).__name__}", Part.INTERACTION
            return Decision(allowed=False, rule=rule, depends=Depends.MESSAGE, part=part)
        return decided

    def explain(
        self,
        action: Action,
        principal: Principal,
        message: Message,
        seen: Seen,
        situations: Situations,
    ) -> Explanation | None:
        """Decide the same, and say what each rule said."""
        decision = self.decide(action, principal, message, seen, situations)
        if decision is None:
            return None
        rules = self._by_action[action][message.topic]
        considered, more = list_considered(
            Considered(it.name, _tell(it, principal, seen, situations)) for it in rules
        )
        if not decision.allowed:
            reason = "it does not let this message pass, or cannot tell whether it does"
        elif decision.reshaping is not None:
            reason = "the message is changed before it leaves"
        else:
            reason = "restrictions let it pass, and it leaves as it is"
        return Explanation(
            decision.allowed, decision.rule, reason, considered, more, part=Part.INTERACTION
        )

    def refuse_subscription(
        self, principal: Principal, filter_: str, e: Mapping[str, Any], situations: Situations
    ) -> str | None:
        """Return the restriction that does not permit a subscription now; None: none."""
        seen: Seen = (principal.attributes, {}, e, {})
        for rule in self._entrances:
            if not principal.is_limited_by(rule.subject) or not covers(rule.filter, filter_):
                continue
            try:
                if rule.holds(principal, seen, situations) and not rule.admits(seen):
                    return rule.name
            except (UndecidedError, SituationsUnknownError):
                return rule.name
        return None

    def _reshaping(self, rules: tuple[Rule, ...]) -> Reshaping:
        made = self._made.get(rules)
        if made is None:
            if self._make_one is None:
                raise UndecidedError
            made = self._made[rules] = self._make_one(rules)
        return made


def _index(rules: Iterable[Rule]) -> TopicCache[tuple[Rule, ...]]:
    tree: FilterTree[list[Rule]] = FilterTree()
    for rule in rules:
        there = tree.get(rule.filter)
        if there is None:
            there = []
            tree.set(rule.filter, there)
        there.append(rule)
    # Equal sets of rules are one tuple: principals remember what they mean by it.
    known: dict[tuple[Rule, ...], tuple[Rule, ...]] = {}

    def find(topic: str) -> tuple[Rule, ...]:
        found = [rule for some in tree.matching(topic) for rule in some]
        found.sort(key=attrgetter("order", "name"))
        return known.setdefault(tuple(found), tuple(found))

    return TopicCache(find, TOPIC_LIMIT)


def _tell(rule: Rule, principal: Principal, seen: Seen, situations: Situations) -> str:
    """Say what a rule says on a message."""
    if not principal.is_limited_by(rule.subject):
        return f"is for others: {rule.subject}"
    try:
        if not rule.holds(principal, seen, situations):
            return "does not hold: exempt, or not the situation"
        found = rule.test(seen)
    except (UndecidedError, SituationsUnknownError):
        return "cannot be told: denies"
    if found is None:
        return "cannot be told: denies"
    if rule.transforms:
        return "changes the message" if found else "its condition does not hold"
    return "permits" if found is not rule.forbids else "denies"


_UNSEEN: Final = Decision(allowed=False, rule="unseen message", part=Part.INTERACTION)
# Nothing can be kept from anybody, and nothing changed. The next message may hold something.
_EMPTY: Final = Decision(True, DEFAULT, Depends.MESSAGE, part=Part.INTERACTION)  # noqa: FBT003


class InteractionPart:
    """Restrictions and transformations, as a part of the authorizer."""

    __slots__ = ("_access", "_interaction")

    def __init__(self, interaction: InteractionEngine, access: AccessEngine) -> None:
        self._interaction = interaction
        self._access = access

    def decide(self, request: AccessRequest) -> Decision | None:
        """Decide, where a rule is about the message."""
        interaction = self._interaction
        if not interaction.concerns(request.action, request.topic):
            return None
        message = request.message
        if message is None:
            return _UNSEEN
        if request.action == "write" and message.is_empty:
            return _EMPTY
        principal = self._access.principal(request.user, request.client, request.attributes)
        seen = self._see(request, principal, message)
        return interaction.decide(request.action, principal, message, seen, request.situations)

    def explain(self, request: AccessRequest) -> Iterator[Explanation]:
        """Tell what each rule says."""
        message = request.message
        if message is None or not self._interaction.concerns(request.action, request.topic):
            return
        if request.action == "write" and message.is_empty:
            reason = "it holds nothing, and takes back what the broker has retained"
            yield Explanation(allowed=True, rule=DEFAULT, reason=reason, part=Part.INTERACTION)
            return
        principal = self._access.principal(request.user, request.client, request.attributes)
        seen = self._see(request, principal, message)
        told = self._interaction.explain(
            request.action, principal, message, seen, request.situations
        )
        if told is not None:
            yield told

    def _see(self, request: AccessRequest, principal: Principal, message: Message) -> Seen:
        about = self._access.about(message)
        return principal.attributes, about, request.e, message.t
