"""A decision on access told in full: every rule, what it says, and the situation that applied.

Rules that hold here:
- It is the plain form of what `access_plans` does fast: conditions are interpreted, nothing
  is remembered. Tests show that both agree.
- Situations are named without the subject whose they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.lang import Expression
from penstock.model.role_terms import parse_subject
from penstock.policy.access.emergencies import (
    Emergency,
    ScenarioFilter,
    Situations,
    SituationsUnknownError,
)
from penstock.policy.access.plans import DEFAULT, Enforcement
from penstock.policy.access.principals import Action, Principal
from penstock.policy.access.requests import Message
from penstock.policy.access.rules import Policy, Preference
from penstock.policy.decision import Applied, Considered, Explanation, Part, list_considered
from penstock.policy.role_engine import RoleEngine


def explain_access(
    action: Action,
    principal: Principal,
    message: Message,
    *,
    about: Mapping[str, Any],
    e: Mapping[str, Any],
    situations: Situations,
    rules: Sequence[Policy],
    preferences: Sequence[Preference],
    settings: Enforcement,
    roles: RoleEngine,
) -> Explanation:
    """Decide with an explanation; `rules` are those of the topic, for whomever."""
    roots = {"s": principal.attributes, "o": about, "e": e, "t": message.t}
    told = _Explanation(action, principal, roots, situations, settings).tell(rules, preferences)
    named = [parse_subject(it.subject) for it in rules if settings.required]
    named += [parse_subject(it) for preference in preferences for it in preference.readers]
    asked = {it.name for it in named if it is not None}
    if not asked:
        return told
    considered, more = list_considered([*roles.explain(principal.roles, asked), *told.considered])
    return replace(told, considered=considered, more=told.more or more)


class _Explanation:
    def __init__(
        self,
        action: Action,
        principal: Principal,
        roots: Mapping[str, Any],
        situations: Situations,
        settings: Enforcement,
    ) -> None:
        self.action = action
        self.principal = principal
        self.roots = roots
        self.situations = situations
        self.settings = settings
        self.looked_at: list[Considered] = []
        self.aside: str | None = None  # what sets ordinary policies aside
        self.granted: tuple[str, Applied] | None = None

    def tell(self, rules: Sequence[Policy], preferences: Sequence[Preference]) -> Explanation:
        preference = self._look_at_preferences(preferences)
        ordinary: str | None = None
        if self.settings.required:
            for emergency in self.settings.exclusive:
                self._look_at_plan(emergency)
            subjects = frozenset(self.principal.subjects)
            own = [rule for rule in rules if rule.subject in subjects]
            for rule in own:
                if rule.emergency is not None:
                    self._look_at_emergency(rule, rule.emergency)
            for rule in own:
                if rule.emergency is None and self._look_at_ordinary(rule):
                    ordinary = ordinary or rule.name
            for why in self.principal.conflicts.values():
                self._note("attributes", why)
            # Last, as a long list is cut: those for others have decided nothing.
            for rule in rules:
                if rule.subject not in subjects:
                    self._note(rule.name, f"is for {rule.meant}")
        else:
            ordinary = DEFAULT
        return self._conclude(ordinary, preference, any_rules=bool(rules))

    def _conclude(
        self, ordinary: str | None, preference: str | None, *, any_rules: bool
    ) -> Explanation:
        action = self.action
        if preference is None and ordinary is not None and self.aside is None:
            reason = f"it grants {action}"
            if not self.settings.required:
                reason = f"policies are not required for {action}"
            return self._decision(ordinary, reason, allowed=True)
        if self.granted is not None and (preference is None or self.settings.override):
            rule, applied = self.granted
            reason = f"it grants {action} in the situation {applied}"
            if preference is not None:
                reason += f", and sets {preference} aside"
            return self._decision(
                rule, reason, allowed=True, situation=str(applied), part=Part.EMERGENCIES
            )
        if preference is not None:
            reason = "none of the publisher's preferences holds"
            return self._decision(preference, reason, part=Part.PREFERENCES)
        if ordinary is not None:
            reason = f"ordinary policies are set aside by {self.aside}"
        elif any_rules:
            reason = f"no policy for {action} on this topic is satisfied"
        else:
            reason = f"there is no policy for {action} on this topic"
        return self._decision(DEFAULT, reason)

    def _decision(
        self,
        rule: str,
        reason: str,
        *,
        allowed: bool = False,
        situation: str | None = None,
        part: Part = Part.POLICIES,
    ) -> Explanation:
        considered, more = list_considered(self.looked_at)
        return Explanation(allowed, rule, reason, considered, more, situation, part)

    def _look_at_preferences(self, preferences: Sequence[Preference]) -> str | None:
        """Return the first preference where none holds."""
        held = False
        for preference in preferences:
            holds, says = self._evaluate(preference.condition)
            if not preference.admits(self.principal):
                holds, says = False, "is for other readers"
            held = held or holds
            self._note(preference.name, "holds" if holds else says)
        return None if held or not preferences else preferences[0].name

    def _look_at_ordinary(self, rule: Policy) -> bool:
        holds, says = self._evaluate_rule(rule)
        if holds and self.aside is not None:
            says = f"would grant {self.action}, but is set aside by {self.aside}"
        self._note(rule.name, says)
        return holds

    def _look_at_emergency(self, rule: Policy, emergency: Emergency) -> None:
        applied, says = self._find(emergency, rule.name)
        if applied is None:
            self._note(rule.name, says)
            return
        holds, says = self._evaluate_rule(rule)
        self._note(rule.name, f"applies in {applied}: {says}")
        if holds and self.granted is None:
            self.granted = (rule.name, applied)

    def _look_at_plan(self, emergency: Emergency) -> None:
        scenarios = ", ".join(it.name for it in emergency.scenarios)
        name = f"exclusive plan of {scenarios or 'no scenario'}"
        applied, says = self._find(emergency, name)
        self._note(name, f"sets ordinary policies aside: {applied}" if applied else says)

    def _find(self, emergency: Emergency, name: str) -> tuple[Applied | None, str]:
        """Return the situation in which an emergency applies, or why it does not."""
        subject: str | None = None
        applied: Applied | None = None
        says = ""
        if emergency.about is not None:
            outcome = emergency.about.evaluate(**self.roots)
            subject = outcome.value
            if outcome.missing:
                says = f"cannot tell whose situation counts: {outcome.reason}"
        if not says:
            try:
                applied = emergency.find(self.situations, subject, self.roots["s"])
            except SituationsUnknownError as error:
                says = f"cannot be decided: {error}"
        if emergency.exclusive and (applied is not None or says):
            self.aside = self.aside or name
        if applied is None and not says:
            says = self._tell_filters(emergency, subject)
        return applied, says or "its situations do not hold"

    def _tell_filters(self, emergency: Emergency, subject: str | None) -> str:
        """Say which filter keeps an emergency from applying, where it is one."""
        if not emergency.filtered:
            return ""
        for scenario in emergency.scenarios:
            try:
                for whose, situation in self._list_cases(emergency, scenario, subject):
                    says = self._tell_filter(emergency, scenario, whose, situation)
                    if says:
                        return f"{scenario.name}={situation}: {says}"
            except SituationsUnknownError:
                continue
        return ""

    def _list_cases(
        self, emergency: Emergency, scenario: ScenarioFilter, subject: str | None
    ) -> Iterable[tuple[str, str]]:
        if emergency.about is None:
            return self.situations.cases(scenario.name)
        current = subject and self.situations.current(scenario.name, subject)
        return [(subject, current)] if subject and current else []

    def _tell_filter(
        self, emergency: Emergency, scenario: ScenarioFilter, subject: str, situation: str
    ) -> str:
        case = emergency.case(scenario, subject, situation)
        for what, rule in (
            ("the scenario's subject filter", scenario.involves),
            ("its scenario filter", emergency.scenario_filter),
            ("its situation filter", emergency.situation_filter),
        ):
            outcome = rule.evaluate(s=self.roots["s"], c=case) if rule is not None else None
            if outcome is not None and not outcome.holds:
                why = f"cannot be decided: {outcome.reason}" if outcome.missing else "is false"
                return f"{what} {why}"
        return ""

    def _evaluate_rule(self, rule: Policy) -> tuple[bool, str]:
        wanted = rule.arguments
        if wanted is not None:
            relation = self.principal.roles.relations[wanted.role]
            if not wanted.admits(relation, self.roots):
                return False, f"is for other instances of the role {wanted.role}"
        return self._evaluate(rule.condition)

    def _evaluate(self, condition: Expression) -> tuple[bool, str]:
        outcome = condition.evaluate(**self.roots)
        if outcome.holds:
            return True, f"grants {self.action}"
        if outcome.missing:
            return False, f"cannot be decided: {outcome.reason}"
        return False, "its condition is false"

    def _note(self, rule: str, effect: str) -> None:
        self.looked_at.append(Considered(rule, effect))
