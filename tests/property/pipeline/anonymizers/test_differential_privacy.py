"""Aggregates with a budget for each person, against a plain model that counts row by row."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.definitions.differential_privacy import UNITS, DifferentialPrivacy
from penstock.masks.fields import Field
from penstock.model.kinds.views import Window
from penstock.pipeline.anonymizers.differential_privacy import (
    NO_GROUP,
    NOBODY,
    SPENT,
    TOO_MANY,
    DifferentialPrivacyStep,
)
from penstock.pipeline.anonymizers.noisy_figures import LaplaceNoise
from penstock.pipeline.anonymizers.stateful import StepOutcome
from penstock.pipeline.anonymizers.windows import LATE
from penstock.pipeline.records.columns import OFFSET, PERSON, SUBJECT, TIME, arrow_schema

SCHEMA = {
    "ward": Field.of("string", optional=True),
    "value": Field.of("double", optional=True),
    "name": Field.of("string", optional=True),
}
WARDS = ("east", "west")
Row = tuple[int, int | None, str | None, float | None]
"""Time, person, ward, value."""

rows = st.lists(
    st.tuples(
        st.integers(-40, 120),
        st.none() | st.integers(0, 6),
        st.none() | st.sampled_from((*WARDS, "elsewhere")),
        st.none() | st.integers(-30, 60).map(lambda number: number / 2) | st.just(float("nan")),
    ),
    max_size=40,
)


class NoNoise:
    """Stands in for the mechanism, so that figures can be compared."""

    def __init__(self, sensitivity: int, epsilon: Fraction) -> None:
        assert sensitivity > 0
        assert epsilon > 0

    def __call__(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return values


def _parameters(**more: Any) -> DifferentialPrivacy:
    return DifferentialPrivacy.model_validate(
        {
            "aggregates": [
                {"name": "records", "mode": "count"},
                {"name": "values", "mode": "count", "key": "value"},
                {"name": "total", "mode": "sum", "key": "value", "min": -5, "max": 20},
                {"name": "mean", "mode": "average", "key": "value", "min": -5, "max": 20},
            ],
            "groups": [{"key": "ward", "values": list(WARDS)}],
            "epsilon": 0.1,
            "budget": 0.3,
            **more,
        }
    )


def _table(given_rows: Sequence[Row], first: int) -> pa.Table:
    columns = {
        "ward": [row[2] for row in given_rows],
        "value": [row[3] for row in given_rows],
        "name": ["Hans"] * len(given_rows),
        OFFSET: list(range(first, first + len(given_rows))),
        PERSON: [row[1] for row in given_rows],
        TIME: [row[0] for row in given_rows],
        SUBJECT: [None] * len(given_rows),
    }
    return pa.table(columns, schema=arrow_schema(SCHEMA, OFFSET, PERSON, TIME, SUBJECT))


def _make(
    parameters: DifferentialPrivacy, window: Window, saved: bytes | None
) -> DifferentialPrivacyStep:
    return DifferentialPrivacyStep(
        parameters, window, SCHEMA, by_arrival=False, saved=saved, make_noise=NoNoise
    )


def _run(
    parameters: DifferentialPrivacy, window: Window, batches: Sequence[Sequence[Row]]
) -> tuple[list[StepOutcome], DifferentialPrivacyStep]:
    """Feed batches, and save and load between them, as a restart would."""
    saved: bytes | None = None
    outcomes = []
    first = 0
    for batch in batches:
        step = _make(parameters, window, saved)
        outcomes.append(step.feed(_table(batch, first), 0))
        saved = step.save()
        first += len(batch)
    step = _make(parameters, window, saved)
    outcomes.append(step.flush())
    assert step.held == 0
    return outcomes, step


class Model:
    """The same in plain loops."""

    def __init__(
        self, parameters: DifferentialPrivacy, size: int, batches: Sequence[Sequence[Row]]
    ) -> None:
        self.parameters = parameters
        self.dead: dict[int, str] = {}
        self.counted: dict[tuple[int, str], list[Row]] = defaultdict(list)
        self.charges: dict[tuple[int, int], int] = Counter()
        inside: dict[int, list[tuple[int, Row]]] = defaultdict(list)
        watermark, offset = -(10**9), 0
        for batch in batches:
            for row in batch:
                start = row[0] // size * size
                if start + size <= watermark:
                    self.dead[offset] = LATE
                else:
                    inside[start].append((offset, row))
                offset += 1
            watermark = max([watermark, *(row[0] for row in batch)])
        self.windows = range(min(inside, default=0), max(inside, default=-size) + 1, size)
        for start in sorted(inside):
            self._count(start, inside[start])

    def _count(self, start: int, members: list[tuple[int, Row]]) -> None:
        renew = self.parameters.renew
        period = 0 if renew is None else start // renew
        fits: dict[int, list[tuple[int, Row]]] = defaultdict(list)
        for place, row in members:
            if row[1] is None:
                self.dead[place] = NOBODY
            elif row[2] not in WARDS:
                self.dead[place] = NO_GROUP
            else:
                fits[row[1]].append((place, row))
        for person, found in fits.items():
            first = found[: self.parameters.contribution]
            self.dead |= dict.fromkeys([place for place, _ in found[len(first) :]], TOO_MANY)
            if (self.charges[period, person] + 1) * 0.1 > float(self.parameters.budget) + 1e-9:
                self.dead |= dict.fromkeys([place for place, _ in first], SPENT)
                continue
            self.charges[period, person] += 1
            for _, row in first:
                self.counted[start, str(row[2])].append(row)


@given(
    batches=st.lists(rows, max_size=4),
    size=st.integers(1, 40),
    contribution=st.integers(1, 3),
    budget=st.sampled_from([0.1, 0.3, 0.7]),
    periods=st.none() | st.integers(1, 4),
)
def test_figures_and_dead_letters_are_those_of_a_plain_loop(
    batches: list[list[Row]], size: int, contribution: int, budget: float, periods: int | None
) -> None:
    parameters = _parameters(
        contribution=contribution, budget=budget, renew=periods and periods * size
    )
    outcomes, step = _run(parameters, Window(size=size), batches)
    model = Model(parameters, size, batches)
    dead = [letter for outcome in outcomes for letter in outcome.dead]
    assert len(dead) == len({letter.offset for letter in dead})
    assert {letter.offset: letter.reason for letter in dead} == model.dead
    table = pa.concat_tables([outcome.rows for outcome in outcomes]).to_pylist()
    assert "name" not in (table[0] if table else {})
    cells = {(int(row["window_start"].timestamp() * 1000), row["ward"]): row for row in table}
    assert len(cells) == len(table)
    assert set(cells) == {(start, ward) for start in model.windows for ward in WARDS}
    for cell, row in cells.items():
        counted = model.counted[cell]
        values = [it[3] for it in counted if it[3] is not None and it[3] == it[3]]
        clipped = [min(max(value, -5), 20) for value in values]
        assert row["records"] == len(counted)
        assert row["values"] == len(values)
        assert row["total"] == sum(clipped)
        mean = sum(clipped) / len(clipped) if clipped else None
        assert row["mean"] == (None if mean is None else pytest.approx(mean, abs=1e-4))
    newest = max((period for period, _ in model.charges), default=0)
    spent = {
        person: charges * UNITS // 10
        for (period, person), charges in model.charges.items()
        if period == newest and charges
    }
    assert step.spent() == spent
    assert all(amount <= parameters.budget_units for amount in spent.values())


@given(
    batches=st.lists(rows, max_size=3),
    size=st.integers(1, 40),
    contribution=st.integers(1, 3),
    person=st.integers(0, 6),
)
def test_a_person_changes_a_window_by_the_declared_bounds_at_most(
    batches: list[list[Row]], size: int, contribution: int, person: int
) -> None:
    parameters = _parameters(contribution=contribution, budget=0.2)
    # With nobody instead of one person, all times stay as they are.
    without = [
        [(row[0], None if row[1] == person else row[1], row[2], row[3]) for row in batch]
        for batch in batches
    ]
    tables = []
    for given_batches in (batches, without):
        outcomes, _ = _run(parameters, Window(size=size), given_batches)
        tables.append(pa.concat_tables([outcome.rows for outcome in outcomes]).to_pylist())
    counts: Counter[Any] = Counter()
    totals: Counter[Any] = Counter()
    for before, after in zip(*tables, strict=True):
        assert (before["window_start"], before["ward"]) == (after["window_start"], after["ward"])
        counts[before["window_start"]] += abs(before["records"] - after["records"])
        totals[before["window_start"]] += abs(before["total"] - after["total"])
    assert all(change <= contribution for change in counts.values())
    assert all(change <= contribution * 20 for change in totals.values())
    assert sum(change > 0 for change in counts.values()) <= 2, "two windows spend the budget"


@given(
    sensitivity=st.integers(1, 2**30),
    epsilon=st.integers(1, 10**8).map(lambda units: Fraction(units, 10**6)),
)
def test_noise_keeps_what_was_asked_for(sensitivity: int, epsilon: Fraction) -> None:
    noise = LaplaceNoise(sensitivity, epsilon)
    assert Fraction(noise.epsilon) <= epsilon
    assert noise.scale == pytest.approx(float(sensitivity / epsilon), rel=1e-9)
