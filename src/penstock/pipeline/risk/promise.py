"""What a view with differential privacy promises, in place of what can be measured.

Such a view publishes noisy figures and no records. Groups of its rows are windows, not
persons: k, l, t and the risk of being re-identified would be numbers without a meaning, so
that none are told. What bounds the risk is declared, and holds whatever was published.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Self

from penstock.definitions.differential_privacy import DifferentialPrivacy
from penstock.pipeline.sinks.commits import Commit
from penstock.pipeline.views.blueprint import Blueprint


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
        for step in blueprint.plan.together:
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
