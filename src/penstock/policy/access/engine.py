"""Who may read and write what: policies over attributes, preferences, emergencies.

                 topic ──▶ topic rules: what messages are about, and the rules of the topic
                             │
    principal ──▶ plan: the rules for this principal ──▶ conditions ──▶ situations ──▶ decision

Rules that hold here:
- Grants only: one satisfied policy suffices, none satisfied means denied. A condition that
  errs or misses an attribute is not satisfied; an error of any kind is a denial.
- Reading a message needs, where preferences of the user it was published for are about it,
  that one of them holds for the reader.
- Each change of the rules raises `generation`; nothing that was remembered outlives it. A
  changed rule is compiled alone, what follows from all rules is found again when asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

from penstock.lang import RecordType
from penstock.model.kinds import Group, ObjectShape
from penstock.policy.access.emergencies import Situations
from penstock.policy.access.explanations import explain_access
from penstock.policy.access.plans import Enforcement, PartialDecisionCache, Plan
from penstock.policy.access.principals import (
    Action,
    Directory,
    KnownAttributes,
    Membership,
    Principal,
)
from penstock.policy.access.requests import Message, ObjectLayout, make_layout
from penstock.policy.access.rules import (
    Bucket,
    Policy,
    Preference,
    RuleIndex,
    pick,
)
from penstock.policy.decision import Decision, Depends, Explanation
from penstock.policy.filter_store import TopicCache
from penstock.policy.filter_tree import FilterTree
from penstock.policy.role_engine import RoleEngine

TOPIC_LIMIT: Final = 65_536
PRINCIPAL_LIMIT: Final = 65_536
PLAN_LIMIT: Final = 4_096


class RuleSet:
    """The rules of all topics that match the same filters, for one action."""

    __slots__ = ("preferences", "rules")

    def __init__(
        self, rules: tuple[Bucket[Policy], ...], preferences: tuple[Bucket[Preference], ...] = ()
    ) -> None:
        self.rules = rules
        self.preferences = preferences


class TopicRules:
    """What is known of a topic."""

    __slots__ = ("layout", "read", "write")

    def __init__(self, layout: ObjectLayout, read: RuleSet, write: RuleSet) -> None:
        self.layout = layout
        self.read = read
        self.write = write


class AccessEngine:
    """The decision engine."""

    def __init__(self) -> None:
        self.generation = 0
        self.settings = Enforcement()
        self.decides: Mapping[Action, bool] = {"read": False, "write": False}
        """Whether anything here decides: policies are required, or preferences exist."""
        self._directory = Directory()
        self._rules: dict[Action, RuleIndex[Policy]] = {"read": RuleIndex(), "write": RuleIndex()}
        self._preferences: RuleIndex[Preference] = RuleIndex()
        self._shapes: dict[str, ObjectShape] = {}
        self._shape_tree: FilterTree[dict[str, ObjectShape]] = FilterTree()
        self._topics: TopicCache[TopicRules] = TopicCache(self._look_up, TOPIC_LIMIT)
        self._rule_sets: dict[tuple[Any, ...], RuleSet] = {}
        self._principals: dict[tuple[str | None, str | None], Principal] = {}
        self._cache = PartialDecisionCache()

    # --- questions ---

    def principal(
        self, user: str | None, client: str | None, given: Mapping[str, Any] | None = None
    ) -> Principal:
        """Return who asks, with attributes; `given` ones make a hypothetical principal."""
        if user is None:
            client = None  # all who have not authenticated are one
        if given is not None:
            return self._directory.resolve(user, client, given=given, generation=self.generation)
        known = self._principals.get((user, client))
        if known is None:
            if len(self._principals) >= PRINCIPAL_LIMIT:
                self._principals.clear()
            known = self._directory.resolve(user, client, generation=self.generation)
            self._principals[user, client] = known
        return known

    def decide(
        self,
        action: Action,
        principal: Principal,
        message: Message,
        e: Mapping[str, Any],
        situations: Situations,
    ) -> Decision:
        """Decide whether a principal may read or write a message: the hot path."""
        try:
            if principal.generation != self.generation:
                principal = self.principal(principal.user, principal.client, principal.given)
            found = self._topics[message.topic]
            rules = found.read if action == "read" else found.write
            publisher = self._preferring(rules, message)
            plan: Plan | None = principal.plans.get((rules, publisher))
            if plan is None:
                plan = self._plan(principal, rules, publisher)
            return plan.decide(message, found.layout, e, situations)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, the answer is no
            return Decision(False, f"error {type(error).__name__}", Depends.MESSAGE)  # noqa: FBT003

    def explain(
        self,
        action: Action,
        principal: Principal,
        message: Message,
        e: Mapping[str, Any],
        situations: Situations,
    ) -> Explanation:
        """Decide the same with all rules that were considered, slowly."""
        principal = self.principal(principal.user, principal.client, principal.given)
        found = self._topics[message.topic]
        rules = found.read if action == "read" else found.write
        publisher = self._preferring(rules, message)
        return explain_access(
            action,
            principal,
            message,
            about=self.about(message),
            e=e,
            situations=situations,
            rules=self.considered(action, message.topic),
            preferences=pick(rules.preferences, [publisher]) if publisher is not None else [],
            settings=self.settings,
            roles=self.roles,
        )

    def may_read_some(self, principal: Principal, filter_: str) -> bool:
        """Tell whether some policy may let a principal read some topic of a filter."""
        if not self.settings.required:
            return True
        return self._rules["read"].concerns(principal.subjects, filter_)

    def publishes_for(self, user: str | None, client: str | None) -> str | None:
        """Return the user whose preferences hold for what a user and client publish."""
        return self._directory.publishes_for(user, client)

    def about(self, message: Message) -> Mapping[str, Any]:
        """Return `o`: the attributes of what a message is about."""
        return message.about(self.layout(message.topic))

    def layout(self, topic: str) -> ObjectLayout:
        """Return where the attributes of `o` stand in messages of a topic."""
        return self._topics[topic].layout

    def considered(self, action: Action, topic: str) -> list[Policy]:
        """Return all policies that are about this action on this topic, for whomever."""
        buckets = self._rules[action].matching(topic)
        return pick(buckets, sorted({subject for bucket in buckets for subject in bucket}))

    def preferences(self, topic: str) -> list[Preference]:
        """Return all preferences that are about a topic, of whomever."""
        buckets = self._preferences.matching(topic)
        return pick(buckets, sorted({user for bucket in buckets for user in bucket}))

    def emergency_policies(self) -> list[Policy]:
        """Return all emergency policies, in the order of their names."""
        found = [it for index in self._rules.values() for it in index if it.emergency is not None]
        return sorted(found, key=attrgetter("name"))

    @property
    def has_preferences(self) -> bool:
        """Whether there are preferences at all."""
        return len(self._preferences) > 0

    # --- changes ---

    def configure(self, settings: Enforcement) -> None:
        """Change what holds for all decisions."""
        self.settings = settings
        self.invalidate()

    def put(self, *rules: Policy | Preference) -> None:
        """Add policies and preferences, in the place of those with their names."""
        for rule in rules:
            if isinstance(rule, Preference):
                self._preferences.put(rule)
            else:
                self._remove_policy(rule.name)
                self._rules[rule.action].put(rule)
        self.invalidate()

    def remove(self, *names: str) -> None:
        """Remove policies and preferences, by the names they have in explanations."""
        for name in names:
            self._preferences.remove(name)
            self._remove_policy(name)
        self.invalidate()

    def shape(self, name: str, shape: ObjectShape | None) -> None:
        """Change how the attributes of objects are found."""
        before = self._shapes.pop(name, None)
        if before is not None:
            held = self._shape_tree.get(before.filter) or {}
            del held[name]
            if not held:
                self._shape_tree.remove(before.filter)
        if shape is not None:
            self._shapes[name] = shape
            held = self._shape_tree.get(shape.filter) or {}
            held[name] = shape
            self._shape_tree.set(shape.filter, held)
        self.invalidate()

    def declare(self, record: RecordType) -> None:
        """Say which attributes subjects have, with their types."""
        self._directory.declare(record)
        self.invalidate()

    def assemble(self, groups: Iterable[Group]) -> None:
        """Take over all groups."""
        self._directory.membership = Membership(groups)
        self.invalidate()

    @property
    def roles(self) -> RoleEngine:
        """Who has which roles."""
        return self._directory.roles

    def forget_principals(self) -> None:
        """Forget who everybody is: their roles may have changed."""
        self.generation += 1
        self._principals.clear()
        self._cache.clear()

    def open_session(self, user: str, client: str, chosen: Iterable[str] | None) -> None:
        """Begin a session with roles: those chosen, None: all that activate."""
        self.roles.open(user, client, chosen)
        self._principals.pop((user, client), None)

    def close_session(self, user: str, client: str) -> None:
        """End a session."""
        self.roles.close(user, client)
        self._principals.pop((user, client), None)

    def refresh_roles(self) -> set[tuple[str, str]]:
        """Activate roles again in the sessions that changes concern; return whose are others."""
        roles = self.roles
        if not roles.in_use:
            return set()
        changed: set[tuple[str, str]] = set()
        for user, client in roles.stale():
            before = roles.held(user, client)
            self._principals.pop((user, client), None)
            now = self.principal(user, client).roles
            if before is not None and not before.gives_the_same_as(now):
                changed.add((user, client))
        return changed

    def describe(self, subject: str, known: KnownAttributes | None) -> None:
        """Say what is known of a user, a client, a group or anyone."""
        self._directory.set(subject, known)
        self.invalidate()

    def invalidate(self) -> None:
        """Forget what followed from the rules as they were."""
        self.generation += 1
        required = self.settings.required
        self.decides = {"read": required or self.has_preferences, "write": required}
        self._topics.forget_all()
        self._rule_sets.clear()
        self._principals.clear()
        self._cache.clear()

    def _remove_policy(self, name: str) -> None:
        for index in self._rules.values():
            index.remove(name)

    # --- what follows from the rules ---

    def _look_up(self, topic: str) -> TopicRules:
        shapes = [shape for held in self._shape_tree.matching(topic) for shape in held.values()]
        return TopicRules(
            make_layout(topic, shapes),
            self._rule_set(self._rules["read"].matching(topic), self._preferences.matching(topic)),
            self._rule_set(self._rules["write"].matching(topic), ()),
        )

    def _rule_set(
        self, rules: tuple[Bucket[Policy], ...], preferences: tuple[Bucket[Preference], ...]
    ) -> RuleSet:
        # Buckets live as long as the index is not changed, and this is cleared with it.
        key = (*map(id, rules), None, *map(id, preferences))
        known = self._rule_sets.get(key)
        if known is None:
            known = self._rule_sets[key] = RuleSet(rules, preferences)
        return known

    def _preferring(self, rules: RuleSet, message: Message) -> str | None:
        """Return for whom a message was published, if they have preferences about it."""
        if not rules.preferences:
            return None
        publisher = message.behalf or self.publishes_for(message.user, message.client)
        if publisher is None or not any(publisher in bucket for bucket in rules.preferences):
            return None
        return publisher

    def _plan(self, principal: Principal, rules: RuleSet, publisher: str | None) -> Plan:
        if len(principal.plans) >= PLAN_LIMIT:
            principal.plans.clear()
        preferences = pick(rules.preferences, [publisher]) if publisher is not None else []
        plan = Plan(
            principal,
            pick(rules.rules, principal.subjects),
            preferences,
            self.settings,
            self._cache,
            has_preferences=bool(rules.preferences),
        )
        principal.plans[rules, publisher] = plan
        return plan
