from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from penstock.definitions.differential_privacy import (
    DifferentialPrivacy,
    NoisyAggregate,
)
from penstock.masks.fields import Field
from penstock.model.kinds.views import Window
from penstock.pipeline.anonymizers import noisy_figures
from penstock.pipeline.anonymizers.differential_privacy import SPENT, DifferentialPrivacyStep
from penstock.pipeline.anonymizers.noisy_figures import Scale
from penstock.pipeline.anonymizers.stateful import StepOutcome
from penstock.pipeline.anonymizers.windows import TIMELESS
from penstock.pipeline.records.columns import OFFSET, PERSON, SUBJECT, TIME, arrow_schema

SCHEMA = {"n": Field.of("long", optional=True)}


class Recorded:
    """Noise of zero, which remembers what it was asked to hide."""

    asked: list[tuple[int, Fraction]]

    def __init__(self, sensitivity: int, epsilon: Fraction) -> None:
        self.asked.append((sensitivity, epsilon))

    def __call__(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return values


@pytest.fixture(autouse=True)
def _forget() -> None:
    Recorded.asked = []


def _step(
    *, by_arrival: bool = False, saved: bytes | None = None, grace: int = 0, **more: Any
) -> DifferentialPrivacyStep:
    parameters = DifferentialPrivacy.model_validate(
        {"aggregates": [{"name": "n", "mode": "count"}], "epsilon": 1, "budget": 2, **more}
    )
    window = Window(size=10, grace=grace)
    return DifferentialPrivacyStep(
        parameters, window, SCHEMA, by_arrival=by_arrival, saved=saved, make_noise=Recorded
    )


def _rows(*rows: tuple[int | None, int | None], first: int = 0) -> pa.Table:
    """Make rows of times and persons."""
    columns = {
        "n": [1] * len(rows),
        OFFSET: list(range(first, first + len(rows))),
        PERSON: [row[1] for row in rows],
        TIME: [row[0] for row in rows],
        SUBJECT: [None] * len(rows),
    }
    return pa.table(columns, schema=arrow_schema(SCHEMA, OFFSET, PERSON, TIME, SUBJECT))


def _counts(outcome: StepOutcome) -> dict[int, int]:
    rows = outcome.rows.to_pylist()
    return {round(row["window_start"].timestamp() * 1000): row["n"] for row in rows}


def test_the_clock_ends_windows_of_arrival_also_empty_ones() -> None:
    step = _step(by_arrival=True, grace=5)
    before = step.due
    assert before is None, "before the first record there is nothing to publish"
    assert _counts(step.feed(_rows((3, 1)), 3)) == {}
    assert step.due == 15
    assert _counts(step.feed(_rows(), 15)) == {0: 1}
    assert step.due == 25
    assert _counts(step.feed(_rows(), 47)) == {10: 0, 20: 0, 30: 0}


def test_times_of_events_wait_for_events() -> None:
    step = _step()
    step.feed(_rows((3, 1)), 3)
    assert step.due is None


def test_a_long_silence_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noisy_figures, "MOST_CELLS", 5)
    step = _step()
    assert _counts(step.feed(_rows((1, 1), (51, 2)), 0)) == dict.fromkeys((10, 20, 30, 40), 0) | {
        0: 1
    }
    assert _counts(step.feed(_rows((61, 3), (999, 3), first=2), 0)) == {50: 1, 60: 1}
    assert _counts(step.flush()) == {990: 1}


def test_flushing_again_publishes_nothing_more() -> None:
    step = _step(grace=25)
    assert _counts(step.feed(_rows((1, 1), (12, 2)), 0)) == {}
    assert _counts(step.flush()) == {0: 1, 10: 1}
    assert step.held == 0
    assert _counts(step.flush()) == {}
    again = _step(grace=25, saved=step.save())
    assert _counts(again.feed(_rows((21, 3), first=2), 0)) == {}
    assert _counts(again.flush()) == {20: 1}


def test_what_is_held_is_bounded_by_persons() -> None:
    step = _step(contribution=2)
    for first in range(0, 100, 10):
        outcome = step.feed(_rows(*((1, person % 3) for person in range(10)), first=first), 0)
        assert step.held <= 6
    assert step.held == 6
    assert len(outcome.dead) == 10


def test_what_cannot_be_placed_is_a_dead_letter() -> None:
    outcome = _step().feed(_rows((None, 1), (2**62, 1), (5, 1)), 0)
    assert [(letter.offset, letter.reason) for letter in outcome.dead] == [
        (0, TIMELESS),
        (1, TIMELESS),
    ]


def test_budgets_outlive_a_change_of_definition() -> None:
    before = _step()
    before.feed(_rows((1, 1), (2, 2), (11, 1), (25, 3)), 0)
    before.flush()
    # Half of the budget was spent twice by 1 and once by 2 and 3; now windows cost less.
    after = _step(epsilon=0.5)
    after.inherit(before.save())
    outcome = after.feed(_rows((31, 1), (32, 2), (41, 2), (51, 2), (61, 9), first=4), 0)
    assert _counts(outcome) == {30: 1, 40: 1, 50: 0}
    assert [(letter.offset, letter.reason) for letter in outcome.dead] == [(4, SPENT), (7, SPENT)]
    assert after.spent() == {1: 2 * 10**9, 2: 2 * 10**9, 3: 10**9}


def test_epsilon_is_shared_evenly_and_noise_hides_all_records_of_a_person() -> None:
    _step(
        aggregates=[
            {"name": "records", "mode": "count"},
            {"name": "total", "mode": "sum", "key": "n", "min": -1, "max": 4},
            {"name": "mean", "mode": "average", "key": "n", "min": 0, "max": 8},
        ],
        epsilon=0.1,
        contribution=3,
    )
    share = Fraction(1, 40)
    grid = 2**20
    assert Recorded.asked == [
        (3, share),
        (3 * grid, share),
        (3 * grid, share),
        (3, share),
    ]


@pytest.mark.parametrize(
    ("low", "high", "mode"),
    [(0, 1e15, "sum"), (-1e-9, 1e-9, "average"), (99, 100, "average"), (-7, -3, "sum")],
)
def test_the_grid_holds_bounds_of_any_size(low: float, high: float, mode: str) -> None:
    aggregate = NoisyAggregate.model_validate(
        {"name": "x", "mode": mode, "key": "n", "min": low, "max": high}
    )
    scale = Scale.of(aggregate)
    assert 2**20 <= scale.bound <= 2**21
    values = np.array([low, high, -np.inf, np.inf, (low + high) / 2])
    placed = scale.place(values, low, high)
    assert np.abs(placed).max() <= scale.bound
    restored = scale.centre + placed * scale.unit
    expected = np.clip(values, low, high)
    assert restored == pytest.approx(expected, abs=scale.unit)


def test_figures_have_the_noise_that_was_declared() -> None:
    parameters = DifferentialPrivacy.model_validate(
        {
            "aggregates": [
                {"name": "records", "mode": "count"},
                {"name": "mean", "mode": "average", "key": "n", "min": 10, "max": 20},
            ],
            "groups": [{"key": "ward", "values": [str(number) for number in range(500)]}],
            "epsilon": 1.5,
            "budget": 2,
            "contribution": 4,
        }
    )
    schema = {"ward": Field.of("string"), "n": Field.of("long", optional=True)}
    step = DifferentialPrivacyStep(parameters, Window(size=10), schema, by_arrival=False)
    columns = {"ward": ["7"], "n": [15], OFFSET: [0], PERSON: [1], TIME: [5], SUBJECT: [9]}
    step.feed(pa.table(columns, schema=arrow_schema(schema, OFFSET, PERSON, TIME, SUBJECT)), 0)
    rows = step.flush().rows.to_pylist()
    assert len(rows) == 500
    # Four records, three shares of 1.5: a scale of 8. Ten standard deviations of the mean.
    sizes = [abs(row["records"]) for row in rows]
    assert abs(sum(sizes) / 500 - 8) < 10 * 8 / 500**0.5
    means = [row["mean"] for row in rows]
    assert all(mean is None or 10 <= mean <= 20 for mean in means)
    assert {mean is None for mean in means} == {True, False}
