"""The figures of risk: which fields of a view they are about, and what counted groups give.

    k             the smallest group
    l, distinct   the fewest values of a sensitive field in a group
    l, entropy    the least e^(entropy of its values in a group)
    t             the greatest earth mover's distance of a group's values from those of all
    prosecutor    1 / size of the group: the attacker knows that the person is in the view
    journalist    1 / size in the population: the attacker does not know it

Rules that hold here:
- Which fields are quasi-identifiers and which are sensitive says the stream, unless the asker
  says otherwise; what the view generalizes is a quasi-identifier in any case. Fields that the
  view does not publish play no part.
- Sizes are of persons where they are known, else of records; whoever shows them says which.
- Figures of records weigh groups by their records: the mean is that of a record by chance.
- Distances of numbers are of their ranks among the published values, those of texts are 1.
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
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa  # type: ignore[import-untyped]

from penstock.definitions.differential_privacy import DifferentialPrivacy, coarsen
from penstock.definitions.k_anonymity import Diverse, KAnonymization
from penstock.definitions.views import ViewPlan
from penstock.errors import UsageError, quote
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.records.columns import Integers
from penstock.pipeline.sinks.commits import Commit
from penstock.risk.tally import COUNT, Codes


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
        mixed = (*stream.named("sensitive"), *_find_mixed(plan))
        hidden = tuple(dict.fromkeys(sensitive or mixed))
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


def _find_mixed(plan: ViewPlan) -> tuple[str, ...]:
    """Return what the view itself takes as sensitive, whatever the stream says."""
    step = plan.stateful[0] if plan.stateful else None
    return tuple(it.key for it in step.sensitive) if isinstance(step, Diverse) else ()


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
    """Records that counted in no figure, in thousands."""

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
                    rejected=coarsen(last.totals.rejected),
                )
        return None

    @property
    def factor(self) -> float:
        """By how much one person changes the probability of all that is published."""
        return math.exp(min(self.budget, 700.0))

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON data."""
        return {"measure": "differential privacy", **asdict(self)}


Floats = npt.NDArray[np.float64]

# Upper ends of what is shown as one bar; the last is open.
SIZES: Final = (1, 2, 4, 9, 19, 49, 99, 199, 499, 999, 9_999)
# So many different sizes have a bar each.
BARS: Final = 12
NO_DISTANCE: Final = "none"
"""Said of a field with one value in the whole view: it tells nothing about anybody."""


@dataclass(frozen=True, slots=True)
class Attack:
    """What an attacker can expect."""

    most: float
    mean: float
    above: float
    """The share of records whose risk is above the threshold."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How well groups hide a sensitive field."""

    distinct: int
    entropy: float
    closeness: float
    distance: str


@dataclass(frozen=True, slots=True)
class Bar:
    """Groups of like size."""

    least: int
    most: int | None
    groups: int
    records: int


def measure_attack(sizes: Integers, records: Integers, threshold: float) -> Attack:
    """Return the risk of records in groups of these sizes."""
    total = int(records.sum())
    if not total:
        return Attack(0.0, 0.0, 0.0)
    risks = 1.0 / np.maximum(sizes, 1)
    above = records[risks > threshold].sum()
    return Attack(float(risks.max()), float((risks * records).sum() / total), float(above / total))


def count_sizes(sizes: Integers, records: Integers, promised: int | None = None) -> list[Bar]:
    """Return how many groups there are of which size; a bar for each of few sizes.

    No bar holds groups on both sides of the size that is promised.
    """
    present = np.unique(sizes)
    ends: list[int] = present.tolist() if present.size <= BARS else list(SIZES)
    if present.size > BARS and promised is not None and promised > 1:
        ends = sorted({*ends, promised - 1})
    places = np.searchsorted(np.array(ends), sizes)
    groups = np.bincount(places, minlength=len(ends) + 1).tolist()
    within = np.bincount(places, records, minlength=len(ends) + 1).tolist()
    least = ends if present.size <= BARS else [1, *(end + 1 for end in ends)]
    return [
        Bar(low, high, number, int(count))
        for low, high, number, count in zip(least, [*ends, None], groups, within, strict=False)
        if number
    ]


def measure_sensitive(table: pa.Table, group: list[str], field: str, codes: Codes) -> Sensitivity:
    """Return how well groups hide a field; the table has counts by group and value."""
    counts = np.asarray(table[COUNT])
    if not counts.size:
        return Sensitivity(0, 0.0, 0.0, NO_DISTANCE)
    groups = _number(table, group)
    values, places = np.unique(np.asarray(table[field]), return_inverse=True)
    order = codes.order(values)
    if order is not None:
        ranks = np.empty(order.size, dtype=np.int64)
        ranks[order] = np.arange(order.size)
        places = ranks[places]
    totals = np.bincount(groups, counts)
    entropies = np.log(totals) - np.bincount(groups, counts * np.log(counts)) / totals
    reference = np.bincount(places, counts)
    reference = reference / reference.sum()
    shares = counts / totals[groups]
    if order is None:
        distances = _move_anywhere(groups, places, shares, reference)
    else:
        distances = _move_along(groups, places, shares, reference)
    return Sensitivity(
        distinct=int(np.bincount(groups).min()),
        # A value that is alone has entropy 0, not a little less.
        entropy=float(np.exp(max(0.0, float(entropies.min())))),
        closeness=float(min(1.0, max(0.0, float(distances.max())))),
        distance=NO_DISTANCE if values.size == 1 else "equal" if order is None else "ordered",
    )


def _number(table: pa.Table, group: list[str]) -> Integers:
    """Return the number of each line's group."""
    if not group:
        return np.zeros(table.num_rows, dtype=np.int64)
    frame = pd.DataFrame({name: np.asarray(table[name]) for name in group})
    return frame.groupby(group, sort=False).ngroup().to_numpy().astype(np.int64)


def _move_anywhere(groups: Integers, places: Integers, shares: Floats, reference: Floats) -> Floats:
    """Return half of what shares differ by; absent values differ by their reference."""
    expected = reference[places]
    differences = np.abs(shares - expected) - expected
    return np.asarray((np.bincount(groups, differences) + 1.0) / 2.0)


def _move_along(groups: Integers, places: Integers, shares: Floats, reference: Floats) -> Floats:
    """Return how far shares must move over ordered values, as parts of the way over all.

    Between two values that a group has, its cumulated share is constant while the cumulated
    reference grows, so their differences add up to sums over at most two stretches.
    """
    number = reference.size
    if number == 1:
        return np.zeros(int(groups.max()) + 1)
    order = np.lexsort((places, groups))
    groups, places, shares = groups[order], places[order], shares[order]
    first = np.ones(groups.size, dtype=np.bool_)
    first[1:] = np.diff(groups) != 0
    running = np.cumsum(shares)
    begins = np.flatnonzero(first)
    before = np.repeat((running - shares)[begins], np.diff(np.append(begins, groups.size)))
    reached = running - before
    ends = np.append(places[1:], number)
    ends[np.append(begins[1:], groups.size) - 1] = number
    below = np.cumsum(reference)
    sums = np.concatenate([[0.0], np.cumsum(below)])
    cross = np.clip(np.searchsorted(below, reached), places, ends)
    work = reached * (cross - places) - (sums[cross] - sums[places])
    work += (sums[ends] - sums[cross]) - reached * (ends - cross)
    work[first] += sums[places[first]]
    return np.bincount(groups, work) / (number - 1)
