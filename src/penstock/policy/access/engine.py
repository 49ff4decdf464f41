"""Who may read and write what: policies over attributes, preferences, emergencies.

                 topic ──▶ site: what messages are about, and the rules of the topic
                             │
    asker ──▶ plan: the rules for this asker ──▶ conditions ──▶ situations ──▶ verdict

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
from typing import Any, Final

from penstock.lang import Record
from penstock.model.kinds import Group, ObjectShape
from penstock.policy.access.emergencies import Situations
from penstock.policy.access.explanations import explain_access
from penstock.policy.access.objects import Message, Place, make_place
from penstock.policy.access.plans import Memory, Plan, Settings
from penstock.policy.access.principals import Action, Asker, Directory, Known, Membership
from penstock.policy.access.rules import Bucket, Depends, Limit, Rule, RuleIndex, Verdict, pick
from penstock.policy.decision import Decision
from penstock.policy.filters.topic_cache import TopicCache
from penstock.policy.filters.tree import FilterTree

SITE_LIMIT: Final = 65_536
ASKER_LIMIT: Final = 65_536
PLAN_LIMIT: Final = 4_096


class RuleSet:
    """The rules of all topics that match the same filters, for one action."""

    __slots__ = ("limits", "rules")

    def __init__(
        self, rules: tuple[Bucket[Rule], ...], limits: tuple[Bucket[Limit], ...] = ()
    ) -> None:
        self.rules = rules
        self.limits = limits


class Site:
    """What is known of a topic."""

    __slots__ = ("place", "read", "write")

    def __init__(self, place: Place, read: RuleSet, write: RuleSet) -> None:
        self.place = place
        self.read = read
        self.write = write


class Access:
    """The decision engine."""

    def __init__(self) -> None:
        self.generation = 0
        self.settings = Settings()
        self._directory = Directory()
        self._rules: dict[Action, RuleIndex[Rule]] = {"read": RuleIndex(), "write": RuleIndex()}
        self._limits: RuleIndex[Limit] = RuleIndex()
        self._shapes: dict[str, ObjectShape] = {}
        self._shape_tree: FilterTree[dict[str, ObjectShape]] = FilterTree()
        self._sites: TopicCache[Site] = TopicCache(self._survey, SITE_LIMIT)
        self._rule_sets: dict[tuple[Any, ...], RuleSet] = {}
        self._askers: dict[tuple[str | None, str | None], Asker] = {}
        self._memory = Memory()

    # --- questions ---

    def asker(
        self, user: str | None, client: str | None, given: Mapping[str, Any] | None = None
    ) -> Asker:
        """Return who asks, with attributes; `given` ones make a hypothetical asker."""
        if given is not None:
            return self._directory.resolve(user, client, given=given, generation=self.generation)
        known = self._askers.get((user, client))
        if known is None:
            if len(self._askers) >= ASKER_LIMIT:
                self._askers.clear()
            known = self._directory.resolve(user, client, generation=self.generation)
            self._askers[user, client] = known
        return known

    def decide(
        self,
        action: Action,
        asker: Asker,
        message: Message,
        e: Mapping[str, Any],
        situations: Situations,
    ) -> Verdict:
        """Decide whether an asker may read or write a message: the hot path."""
        try:
            if asker.generation != self.generation:
                asker = self.asker(asker.user, asker.client, asker.given)
            site = self._sites[message.topic]
            rules = site.read if action == "read" else site.write
            publisher = self._limiting(rules, message)
            plan: Plan | None = asker.plans.get((rules, publisher))
            if plan is None:
                plan = self._plan(asker, rules, publisher)
            return plan.decide(message, site.place, e, situations)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, the answer is no
            return Verdict(False, f"error {type(error).__name__}", Depends.MESSAGE)  # noqa: FBT003

    def explain(
        self,
        action: Action,
        asker: Asker,
        message: Message,
        e: Mapping[str, Any],
        situations: Situations,
    ) -> Decision:
        """Decide the same with all rules that were considered, slowly."""
        asker = self.asker(asker.user, asker.client, asker.given)
        site = self._sites[message.topic]
        rules = site.read if action == "read" else site.write
        publisher = self._limiting(rules, message)
        return explain_access(
            action,
            asker,
            message,
            about=self.about(message),
            e=e,
            situations=situations,
            rules=self.considered(action, message.topic),
            limits=pick(rules.limits, [publisher]) if publisher is not None else [],
            settings=self.settings,
        )

    def publishes_for(self, user: str | None, client: str | None) -> str | None:
        """Return the user whose preferences hold for what a user and client publish."""
        return self._directory.publishes_for(user, client)

    def about(self, message: Message) -> Mapping[str, Any]:
        """Return `o`: the attributes of what a message is about."""
        return message.about(self.place(message.topic))

    def place(self, topic: str) -> Place:
        """Return where the attributes of `o` stand in messages of a topic."""
        return self._sites[topic].place

    def considered(self, action: Action, topic: str) -> list[Rule]:
        """Return all policies that are about this action on this topic, for whomever."""
        buckets = self._rules[action].matching(topic)
        return pick(buckets, sorted({subject for bucket in buckets for subject in bucket}))

    def preferences(self, topic: str) -> list[Limit]:
        """Return all preferences that are about a topic, of whomever."""
        buckets = self._limits.matching(topic)
        return pick(buckets, sorted({user for bucket in buckets for user in bucket}))

    @property
    def limited(self) -> bool:
        """Whether there are preferences at all."""
        return len(self._limits) > 0

    # --- changes ---

    def configure(self, settings: Settings) -> None:
        """Change what holds for all decisions."""
        self.settings = settings
        self.turn_over()

    def put(self, *rules: Rule | Limit) -> None:
        """Add policies and preferences, in the place of those with their names."""
        for rule in rules:
            if isinstance(rule, Limit):
                self._limits.put(rule)
            else:
                self._remove_policy(rule.name)
                self._rules[rule.action].put(rule)
        self.turn_over()

    def remove(self, *names: str) -> None:
        """Remove policies and preferences, by the names they have in explanations."""
        for name in names:
            self._limits.remove(name)
            self._remove_policy(name)
        self.turn_over()

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
        self.turn_over()

    def declare(self, record: Record) -> None:
        """Say which attributes subjects have, with their types."""
        self._directory.declare(record)
        self.turn_over()

    def assemble(self, groups: Iterable[Group]) -> None:
        """Take over all groups."""
        self._directory.membership = Membership(groups)
        self.turn_over()

    def describe(self, subject: str, known: Known | None) -> None:
        """Say what is known of a user, a client, a group or anyone."""
        self._directory.set(subject, known)
        self.turn_over()

    def turn_over(self) -> None:
        """Forget what followed from the rules as they were."""
        self.generation += 1
        self._sites.forget_all()
        self._rule_sets.clear()
        self._askers.clear()
        self._memory.clear()

    def _remove_policy(self, name: str) -> None:
        for index in self._rules.values():
            index.remove(name)

    # --- what follows from the rules ---

    def _survey(self, topic: str) -> Site:
        shapes = [shape for held in self._shape_tree.matching(topic) for shape in held.values()]
        return Site(
            make_place(topic, shapes),
            self._rule_set(self._rules["read"].matching(topic), self._limits.matching(topic)),
            self._rule_set(self._rules["write"].matching(topic), ()),
        )

    def _rule_set(
        self, rules: tuple[Bucket[Rule], ...], limits: tuple[Bucket[Limit], ...]
    ) -> RuleSet:
        # Buckets live as long as the index is not changed, and this is cleared with it.
        key = (*map(id, rules), None, *map(id, limits))
        known = self._rule_sets.get(key)
        if known is None:
            known = self._rule_sets[key] = RuleSet(rules, limits)
        return known

    def _limiting(self, rules: RuleSet, message: Message) -> str | None:
        """Return for whom a message was published, if they have preferences about it."""
        if not rules.limits:
            return None
        publisher = message.behalf or self.publishes_for(message.user, message.client)
        if publisher is None or not any(publisher in bucket for bucket in rules.limits):
            return None
        return publisher

    def _plan(self, asker: Asker, rules: RuleSet, publisher: str | None) -> Plan:
        if len(asker.plans) >= PLAN_LIMIT:
            asker.plans.clear()
        limits = pick(rules.limits, [publisher]) if publisher is not None else []
        plan = Plan(
            asker.attributes,
            pick(rules.rules, asker.subjects),
            limits,
            self.settings,
            self._memory,
            limited=bool(rules.limits),
        )
        asker.plans[rules, publisher] = plan
        return plan
