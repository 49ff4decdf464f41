"""What is measured of a view: which fields make groups, which are hidden, who is counted.

Rules that hold here:
- Which fields are quasi-identifiers and which are sensitive says the stream, unless the asker
  says otherwise; what the view generalizes is a quasi-identifier in any case. Fields that the
  view does not publish play no part.
- A view with differential privacy publishes noisy figures and no records. Groups of its rows
  are windows, not persons: k, l, t and the risk of being re-identified would be numbers
  without a meaning, so that none are told. In their place stands what it promises: that bound
  is declared, and holds whatever was published.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from penstock.definitions.anonymizers.differential_privacy import DifferentialPrivacy
from penstock.definitions.anonymizers.k_anonymity import KAnonymization
from penstock.definitions.views import ViewPlan
from penstock.errors import UsageError, quote
from penstock.pipeline.sinks.commits import Commit
from penstock.pipeline.views.blueprint import Blueprint


class Knowledge(StrEnum):
    """From what persons are known."""

    RECORDS = "every record counts as a person: the stream names no subject"
    PUBLISHED = "counted by the subject that the view publishes"
    COUNTED = "at least so many, counted when the groups were published"
    NONE = "not known: the view does not say who records are about"


@dataclass(frozen=True, slots=True)
class Question:
    """What is measured."""

    quasi_identifiers: tuple[str, ...]
    sensitive: tuple[str, ...]
    exposed: tuple[str, ...]
    """Identifiers that the view publishes as they are."""
    subject: str | None
    knowledge: Knowledge
    counted: bool
    """Whether groups of these fields are counted when they are published."""

    @classmethod
    def ask(
        cls, blueprint: Blueprint, quasi: Sequence[str] = (), sensitive: Sequence[str] = ()
    ) -> Self:
        """Choose the fields: those that are named, else those that the stream says."""
        output, stream, plan = blueprint.plan.output, blueprint.stream, blueprint.plan
        for name in (*quasi, *sensitive):
            if name not in output:
                raise UsageError(
                    f"the view {quote(blueprint.view.name)} has no field {quote(name)}",
                    fix=f"its fields are {', '.join(output)}",
                )
        declared = (*stream.named("quasi-identifier"), *_find_generalized(plan))
        chosen = tuple(dict.fromkeys(quasi or declared))
        keys = tuple(name for name in chosen if name in output)
        hidden = tuple(dict.fromkeys(sensitive)) or stream.named("sensitive")
        masked = {key: name for name, key in _touches(plan)}
        counted = _are_counted(plan, keys)
        exposed = [it for it in stream.named("identifier") if it in output and it not in masked]
        return cls(
            keys,
            tuple(name for name in hidden if name in output and name not in keys),
            tuple(exposed),
            stream.subject,
            _find_knowledge(blueprint, masked, counted=counted),
            counted,
        )


def _touches(plan: ViewPlan) -> list[tuple[str, str]]:
    """Return which anonymizer touches which field."""
    found = [(mask.name, key) for mask in (*plan.before, *plan.after) for key in mask.keys]
    for step in plan.stateful:
        found += [(step.name, key) for key in getattr(step, "keys", ())]
        if isinstance(step, KAnonymization):
            found += [(step.name, quasi.key) for quasi in step.quasi_identifiers]
    return found


def _find_generalized(plan: ViewPlan) -> tuple[str, ...]:
    """Return what the view itself takes as quasi-identifiers, whatever the stream says."""
    step = plan.stateful[0] if plan.stateful else None
    if not isinstance(step, KAnonymization):
        return ()
    return tuple(quasi.key for quasi in step.quasi_identifiers)


def _are_counted(plan: ViewPlan, keys: tuple[str, ...]) -> bool:
    """Whether the view's groups are made by generalizing at least these fields."""
    if not (generalized := _find_generalized(plan)):
        return False
    changed = {key for mask in plan.after for key in mask.keys}
    return set(keys) <= set(generalized) - changed


def _find_knowledge(blueprint: Blueprint, masked: dict[str, str], *, counted: bool) -> Knowledge:
    subject, plan = blueprint.stream.subject, blueprint.plan
    if subject is None:
        return Knowledge.RECORDS
    # A token stands for the same person wherever it stands; other masks mix persons up.
    if subject in plan.output and masked.get(subject, "tokenization") == "tokenization":
        return Knowledge.PUBLISHED
    return Knowledge.COUNTED if counted else Knowledge.NONE


@dataclass(frozen=True, slots=True)
class Promise:
    """How much may become known of a person, and what was published under it."""

    epsilon: float
    """What one window may tell of a person."""
    budget: float
    """What all windows of a period may tell of a person."""
    renew: int | None
    """How many milliseconds a period lasts; None: there is one only."""
    contribution: int
    windows_per_person: int
    published: int
    """Rows of figures, not records of persons."""
    rejected: int
    """Records that counted in no figure."""

    @classmethod
    def find(cls, blueprint: Blueprint, last: Commit) -> Self | None:
        """Return what the view promises; None where it publishes records."""
        for step in blueprint.plan.stateful:
            if isinstance(step, DifferentialPrivacy):
                return cls(
                    epsilon=float(step.epsilon),
                    budget=float(step.budget),
                    renew=step.renew,
                    contribution=step.contribution,
                    windows_per_person=step.budget_units // step.cost,
                    published=last.totals.published,
                    rejected=last.totals.rejected,
                )
        return None

    @property
    def factor(self) -> float:
        """By how much one person changes the probability of all that is published."""
        return math.exp(min(self.budget, 700.0))

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON data."""
        return {"measure": "differential privacy", **asdict(self)}
