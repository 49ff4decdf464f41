"""How a principal's access to some topics is decided: the rules for both, and what they said.

                       ┌ remembered by the attributes that the rules look at ┐
    principal, rules ──▶ plan ──▶ partial decision: conditions evaluated ──▶ situations ──▶ decision

Rules that hold here:
- allowed = a policy grants, ordinary ones unless an emergency sets them aside
            and, where preferences are about the message, one of them holds;
  with `override`, what an emergency policy grants needs no preference.
- What is remembered is remembered by everything it depended on, situations included: there
  is nothing to forget when a situation changes. Time and payload are never remembered.
- Brief conditions are evaluated each time: remembering what they say of each person and each
  object would cost more, and displace what is worth it.
- Only texts are remembered by, as 1 and true are the same key; in limited number and length,
  as others choose them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock.policy.access.emergencies import (
    NO_SITUATIONS,
    Emergency,
    ScenarioFilter,
    Situations,
    SituationsUnknownError,
)
from penstock.policy.access.principals import Principal
from penstock.policy.access.requests import Message, ObjectLayout
from penstock.policy.access.rules import (
    Policy,
    Preference,
    are_brief,
    depends_on,
    fields_of,
)
from penstock.policy.decision import VOLATILE, Applied, Decision, Depends, Part

DEFAULT: Final = "enforcement default"
CACHE_LIMIT: Final = 131_072
KEY_LIMIT: Final = 512
TABLE_LIMIT: Final = 64


@dataclass(frozen=True, slots=True)
class Enforcement:
    """What holds for all decisions."""

    required: bool = False
    """Whether policies are looked at."""
    override: bool = False
    """Whether emergency policies go before preferences."""
    exclusive: tuple[Emergency, ...] = ()
    """Emergencies that set ordinary policies aside."""


class PartialDecisionCache:
    """The bounded cache that all plans share; where it is full, all of it is dropped."""

    __slots__ = ("_held", "count", "limit")

    def __init__(self, limit: int = CACHE_LIMIT) -> None:
        self.limit = limit
        self.count = 0
        self._held: list[dict[Any, Any]] = []

    def keep(self, own: dict[Any, Any], key: Any, value: Any) -> None:
        """Keep a value in the cache of a plan."""
        if self.count >= self.limit:
            self.clear()
        if not own:
            self._held.append(own)
        own[key] = value
        self.count += 1

    def clear(self) -> None:
        """Forget all."""
        for own in self._held:
            own.clear()
        self._held.clear()
        self.count = 0


class EmergencyCase(NamedTuple):
    """An emergency that may matter, and the policy that grants in it, if one does."""

    emergency: Emergency
    subject: str | None
    rule: str | None
    scenarios: tuple[ScenarioFilter, ...]
    """Those that involve who asks in the case of the subject."""


class PartialDecision:
    """What the conditions came to; only situations are open."""

    __slots__ = (
        "_aside",
        "_cases",
        "_instances",
        "_ordinary",
        "_plan",
        "_resolved",
        "_table",
        "preference",
    )

    def __init__(
        self,
        plan: Plan,
        ordinary: str | None,
        preference: str | None,
        cases: list[EmergencyCase],
        *,
        aside: bool,
    ) -> None:
        self._plan = plan
        self._ordinary = ordinary
        self.preference = preference
        self._cases = cases
        self._aside = aside
        self._table: dict[tuple[str | None, ...], Decision] | None = None
        self._resolved: tuple[Situations, int, Decision] | None = None
        # Where the situations of some subjects are all that counts, they are the key.
        self._instances: tuple[tuple[str, str], ...] | None = None
        if all(case.subject is not None for case in cases):
            self._instances = tuple(
                dict.fromkeys(
                    (scenario.name, case.subject)
                    for case in cases
                    for scenario in case.scenarios
                    if case.subject is not None
                )
            )

    def resolve(self, situations: Situations) -> Decision:
        """Decide with the situations of now."""
        if self._instances is None:
            return self._resolve_any(situations)
        current = situations.current
        try:
            key = tuple([current(scenario, subject) for scenario, subject in self._instances])
        except SituationsUnknownError:
            return self._resolve(situations)
        if self._table is None or len(self._table) >= TABLE_LIMIT:
            self._table = {}
        decision = self._table.get(key)
        if decision is None:
            decision = self._table[key] = self._resolve(situations)
        return decision

    def _resolve_any(self, situations: Situations) -> Decision:
        """Decide where the situations of anybody count, once for each change of them."""
        known = self._resolved
        if known is None or known[0] is not situations or known[1] != situations.changes:
            changes = situations.changes
            known = self._resolved = (situations, changes, self._resolve(situations))
        return known[2]

    def _resolve(self, situations: Situations) -> Decision:
        aside = self._aside
        granting: str | None = None
        granted_in: Applied | None = None
        s = self._plan.attributes
        for emergency, subject, rule, scenarios in self._cases:
            try:
                applied = emergency.find(situations, subject, s, scenarios)
            except SituationsUnknownError:
                aside = aside or emergency.exclusive
                continue
            if applied is None:
                continue
            aside = aside or emergency.exclusive
            if rule is not None and granting is None:
                granting, granted_in = rule, applied
        depends = self._plan.depends
        if self.preference is None and self._ordinary is not None and not aside:
            return Decision(True, self._ordinary, depends)  # noqa: FBT003
        if granting is None:
            if self.preference is not None:
                return _refuse_by_preference(self.preference, depends)
            return Decision(False, DEFAULT, depends)  # noqa: FBT003
        overridden = self.preference is not None
        return Decision(
            True,  # noqa: FBT003
            granting,
            depends,
            granted_in,
            overridden,
            Part.EMERGENCIES,
        )


class Plan:
    """The rules that decide on a principal's access to the topics that have these rules.

    `preferences` are those of one publisher; `has_preferences` says that there are some, be
    it of others.
    """

    __slots__ = (
        "_cache",
        "_denied",
        "_emergency",
        "_environment_names",
        "_granted",
        "_key_of_topic",
        "_object_names",
        "_ordinary",
        "_own",
        "_preferences",
        "_publisher",
        "_remembers",
        "_settings",
        "attributes",
        "depends",
    )

    def __init__(
        self,
        principal: Principal,
        rules: Sequence[Policy],
        preferences: Sequence[Preference],
        settings: Enforcement,
        cache: PartialDecisionCache,
        *,
        has_preferences: bool = False,
    ) -> None:
        if not settings.required:
            rules = ()
        self.attributes = principal.attributes
        self._settings = settings
        self._ordinary = tuple(
            (rule.name, rule.function_for(principal)) for rule in rules if rule.emergency is None
        )
        emergency: list[tuple[str, Callable[..., Any] | None, Emergency]] = [
            (rule.name, rule.function_for(principal), rule.emergency)
            for rule in rules
            if rule.emergency is not None
        ]
        exclusive = settings.exclusive if settings.required else ()
        emergency += [("", None, it) for it in exclusive]  # a plan: it grants nothing itself
        self._emergency = tuple(emergency)
        self._preferences = tuple(
            (it.name, it.condition.function if it.admits(principal) else _never)
            for it in preferences
        )
        expressions = [it for rule in rules for it in rule.expressions]
        expressions += [it.condition for it in preferences]
        expressions += [it.about for _, _, it in emergency if it.about is not None]
        self.depends = Depends.NOTHING
        for expression in expressions:
            self.depends |= depends_on(expression)
        if emergency:
            self.depends |= Depends.SITUATION
        if has_preferences:
            self.depends |= Depends.PUBLISHER
        self._object_names = fields_of(expressions, "o")
        self._environment_names = fields_of(expressions, "e")
        message_names = fields_of(expressions, "t")
        self._key_of_topic = "topic" in message_names
        self._publisher = "user" in message_names or "clientId" in message_names
        brief = not emergency and not preferences and are_brief(expressions)
        self._remembers = not brief and not self.depends & VOLATILE
        self._own: dict[tuple[Any, ...], Decision | PartialDecision] = {}
        self._cache = cache
        self._denied = Decision(False, DEFAULT, self.depends)  # noqa: FBT003
        self._granted = {
            name: Decision(True, name, self.depends)  # noqa: FBT003
            for name in (DEFAULT, *(name for name, _ in self._ordinary))
        }

    def decide(
        self, message: Message, layout: ObjectLayout, e: Mapping[str, Any], situations: Situations
    ) -> Decision:
        """Decide on one message."""
        o = message.about(layout) if self._object_names or not self._remembers else {}
        if not self._remembers:
            made = self._evaluate(message, o, e)
            return made if isinstance(made, Decision) else made.resolve(situations)
        key = self._make_key(message, o, e)
        held = self._own.get(key) if key is not None else None
        if held is None:
            held = self._evaluate(message, o, e)
            if key is not None:
                self._cache.keep(self._own, key, held)
        return held if isinstance(held, Decision) else held.resolve(situations)

    def _make_key(
        self, message: Message, o: Mapping[str, Any], e: Mapping[str, Any]
    ) -> tuple[Any, ...] | None:
        """Return all that the conditions look at; None where it is not to be kept."""
        values = [o.get(name) for name in self._object_names]
        if self._environment_names:
            values += [e.get(name) for name in self._environment_names]
        if self._key_of_topic:
            values.append(message.topic)
        if self._publisher:
            values += [message.user, message.client]
        length = 0
        for value in values:
            if value is not None:
                if type(value) is not str:
                    return None
                length += len(value)
        return tuple(values) if length <= KEY_LIMIT else None

    def _evaluate(
        self, message: Message, o: Mapping[str, Any], e: Mapping[str, Any]
    ) -> Decision | PartialDecision:
        """Evaluate the conditions; a decision where no situation can change it."""
        s, t, settings = self.attributes, message.t, self._settings
        preference: str | None = None
        held = self._preferences
        if held and not any(holds(s, o, e, t) is True for _, holds in held):
            preference = held[0][0]
            if not settings.override:
                return _refuse_by_preference(preference, self.depends)
        ordinary: str | None = None if settings.required else DEFAULT
        for name, holds in self._ordinary:
            if holds(s, o, e, t) is True:
                ordinary = name
                break
        if not self._emergency and preference is None:
            return self._denied if ordinary is None else self._granted[ordinary]
        cases, aside = self._find_cases(s, o, e, t)
        if not cases and ordinary is None and preference is None:
            return self._denied
        partial = PartialDecision(self, ordinary, preference, cases, aside=aside)
        undisputed = ordinary is not None and preference is None and not aside
        if not cases or (undisputed and not any(case.emergency.exclusive for case in cases)):
            return partial.resolve(NO_SITUATIONS)
        return partial

    def _find_cases(self, *roots: Mapping[str, Any]) -> tuple[list[EmergencyCase], bool]:
        """Return the emergencies that may matter, and whether one cannot be told that would."""
        cases: list[EmergencyCase] = []
        aside = False
        for name, holds, emergency in self._emergency:
            rule = name if holds is not None and holds(*roots) is True else None
            if rule is None and not emergency.exclusive:
                continue
            subject = emergency.about.function(*roots) if emergency.about else None
            if emergency.about and subject is None:
                aside = aside or emergency.exclusive
            elif scenarios := emergency.involving(self.attributes, subject):
                cases.append(EmergencyCase(emergency, subject, rule, scenarios))
        return cases, aside


def _never(*_: Any) -> bool:
    return False


def _refuse_by_preference(rule: str, depends: Depends) -> Decision:
    return Decision(allowed=False, rule=rule, depends=depends, part=Part.PREFERENCES)
