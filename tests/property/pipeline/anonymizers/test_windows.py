"""Windows and their anonymizers against a plain model that looks at one window at a time."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.definitions.anonymizers import (
    Aggregation,
    MultivariateMicroaggregation,
    Shuffling,
    StatefulAnonymizer,
    UnivariateMicroaggregation,
)
from penstock.masks.fields import Field
from penstock.model.kinds.views import Window
from penstock.pipeline.anonymizers.stateful import StepOutcome
from penstock.pipeline.anonymizers.windows import LATE, WindowStep
from penstock.pipeline.records.columns import OFFSET, PERSON, SUBJECT, TIME, WINDOW, arrow_schema

SCHEMA = {"n": Field.of("int", optional=True), "text": Field.of("string", optional=True)}
Row = tuple[int, int | None, str | None]
"""Time, number, text."""

rows = st.lists(
    st.tuples(
        st.integers(-50, 50),
        st.none() | st.integers(-5, 5),
        st.none() | st.sampled_from("abc"),
    ),
    max_size=30,
)


def _table(given_rows: Sequence[Row], first: int) -> pa.Table:
    columns = {
        "n": [row[1] for row in given_rows],
        "text": [row[2] for row in given_rows],
        OFFSET: list(range(first, first + len(given_rows))),
        PERSON: [0] * len(given_rows),
        TIME: [row[0] for row in given_rows],
        SUBJECT: [None] * len(given_rows),
    }
    return pa.table(columns, schema=arrow_schema(SCHEMA, OFFSET, PERSON, TIME, SUBJECT))


def _run(
    window: Window, anonymizers: Sequence[StatefulAnonymizer], batches: Sequence[Sequence[Row]]
) -> list[StepOutcome]:
    """Feed batches, and save and load between them, as a restart would."""
    saved: bytes | None = None
    outcomes = []
    first = 0
    for batch in batches:
        step = WindowStep(
            window, anonymizers, SCHEMA, by_arrival=False, secret=bytes(32), saved=saved
        )
        outcomes.append(step.feed(_table(batch, first), 0))
        saved = step.save()
        first += len(batch)
    step = WindowStep(window, anonymizers, SCHEMA, by_arrival=False, secret=bytes(32), saved=saved)
    outcomes.append(step.flush())
    assert step.held == 0
    return outcomes


def _expect(
    window: Window, batches: Sequence[Sequence[Row]]
) -> tuple[dict[int, list[int]], list[int]]:
    """Return the offsets in each window, and those that come late."""
    advance = window.advance or window.size
    inside: dict[int, list[int]] = {}
    late = []
    watermark, offset = -(10**9), 0
    for batch in batches:
        times = []
        for time, *_ in batch:
            starts = [
                start
                for start in range(-200, 200, 1)
                if start % advance == 0
                and start <= time < start + window.size
                and start + window.size > watermark
            ]
            for start in starts:
                inside.setdefault(start, []).append(offset)
            if not starts:
                late.append(offset)
            times.append(time)
            offset += 1
        watermark = max([watermark, *(time - window.grace for time in times)])
    return inside, late


windows = st.builds(
    lambda size, parts, grace: Window(size=size * parts, advance=size, grace=grace),
    st.integers(1, 20),
    st.integers(1, 4),
    st.integers(0, 20),
)


def test_the_clock_ends_windows_of_arrival() -> None:
    step = WindowStep(
        Window(size=10, grace=5),
        [Shuffling(keys=("n",))],
        SCHEMA,
        by_arrival=True,
        secret=bytes(32),
    )
    assert step.feed(_table([(3, 1, "a")], 0), 3).rows.num_rows == 0
    assert step.due == 15
    empty = arrow_schema(SCHEMA, OFFSET, PERSON, TIME, SUBJECT).empty_table()
    assert step.feed(empty, 15).rows.num_rows == 1
    assert step.due is None


@given(window=windows, batches=st.lists(rows, max_size=4))
def test_each_window_is_published_once_with_all_its_rows(
    window: Window, batches: list[list[Row]]
) -> None:
    outcomes = _run(window, [Shuffling(keys=("n",))], batches)
    inside, late = _expect(window, batches)
    published: dict[int, list[int]] = {}
    for outcome in outcomes:
        seen = set(outcome.rows[WINDOW].to_pylist())
        assert not seen & published.keys()
        for start, offset in zip(
            outcome.rows[WINDOW].to_pylist(), outcome.rows[OFFSET].to_pylist(), strict=True
        ):
            published.setdefault(start, []).append(offset)
    assert published == inside
    dead = [letter for outcome in outcomes for letter in outcome.dead]
    assert sorted(letter.offset for letter in dead) == late
    assert {letter.reason for letter in dead} <= {LATE}


def _most_frequent(values: list[Any]) -> Any:
    counts = Counter(values)
    return min(value for value in counts if counts[value] == max(counts.values()))


AGGREGATES: dict[str, Callable[[list[Any]], Any]] = {
    "sum": sum,
    "average": lambda values: pytest.approx(statistics.fmean(values)),
    "median": statistics.median,
    "mode": _most_frequent,
    "max": max,
    "min": min,
}


def _aggregate(values: list[Any], mode: str) -> Any:
    if mode == "count":
        return len(values)
    return AGGREGATES[mode](values) if values else None


@given(
    batch=rows,
    size=st.integers(1, 60),
    mode=st.sampled_from(["sum", "median", "average", "max", "min", "count", "mode"]),
)
def test_aggregates_are_those_of_a_plain_loop(batch: list[Row], size: int, mode: str) -> None:
    keys = ("n", "text") if mode in {"count", "mode"} else ("n",)
    anonymizer = Aggregation.model_validate({"keys": list(keys), "aggregation_mode": mode})
    table = pa.concat_tables(
        [outcome.rows for outcome in _run(Window(size=size), [anonymizer], [batch])]
    )
    for start in set(table[WINDOW].to_pylist()):
        members = [row for row in batch if start <= row[0] < start + size]
        for place, key in enumerate(("n", "text"), 1):
            found = [
                value
                for value, at in zip(table[key].to_pylist(), table[WINDOW].to_pylist(), strict=True)
                if at == start
            ]
            raw = [row[place] for row in members]
            if key in keys:
                wanted = _aggregate([value for value in raw if value is not None], mode)
                assert found == [wanted] * len(members)
            else:
                assert found == raw


@given(batch=rows, size=st.integers(1, 60), individually=st.booleans())
def test_shuffling_keeps_the_values_of_a_window(
    batch: list[Row],
    size: int,
    individually: bool,  # noqa: FBT001
) -> None:
    anonymizer = Shuffling.model_validate(
        {"keys": ["n", "text"], "shuffle_individually": individually}
    )
    table = pa.concat_tables(
        [outcome.rows for outcome in _run(Window(size=size), [anonymizer], [batch])]
    )
    for start in set(table[WINDOW].to_pylist()):
        members = [row for row in batch if start <= row[0] < start + size]
        found = [row for row in table.to_pylist() if row[WINDOW] == start]
        assert Counter(row["n"] for row in found) == Counter(row[1] for row in members)
        assert Counter(row["text"] for row in found) == Counter(row[2] for row in members)
        if not individually:
            pairs = Counter((row["n"], row["text"]) for row in found)
            assert pairs == Counter((row[1], row[2]) for row in members)


@given(
    batch=rows,
    size=st.integers(1, 60),
    k=st.integers(2, 5),
    shortfall=st.sampled_from(["suppress", "drop", "hold"]),
    kind=st.sampled_from([UnivariateMicroaggregation, MultivariateMicroaggregation]),
)
def test_fewer_than_k_never_share_a_mean(
    batch: list[Row], size: int, k: int, shortfall: str, kind: type[StatefulAnonymizer]
) -> None:
    anonymizer = kind.model_validate({"keys": ["n"], "k": k, "shortfall": shortfall})
    outcomes = _run(Window(size=size), [anonymizer], [batch])
    table = pa.concat_tables([outcome.rows for outcome in outcomes])
    dead = {letter.offset for outcome in outcomes for letter in outcome.dead}
    assert len(dead) + table.num_rows == len(batch)
    for start in set(table[WINDOW].to_pylist()):
        found = [row for row in table.to_pylist() if row[WINDOW] == start]
        counts = Counter(row["n"] for row in found if row["n"] is not None)
        assert all(count >= k for count in counts.values())
        numbers = [row[1] for row in batch if start <= row[0] < start + size and row[1] is not None]
        if numbers and len(numbers) >= k and shortfall != "hold":
            mean = statistics.fmean(row["n"] for row in found if row["n"] is not None)
            assert mean == pytest.approx(statistics.fmean(numbers))


@given(
    window=windows,
    batches=st.lists(rows, max_size=4),
    k=st.integers(2, 6),
    kind=st.sampled_from([UnivariateMicroaggregation, MultivariateMicroaggregation]),
)
def test_what_is_held_joins_the_next_window(
    window: Window, batches: list[list[Row]], k: int, kind: type[StatefulAnonymizer]
) -> None:
    anonymizer = kind.model_validate({"keys": ["n"], "k": k, "shortfall": "hold"})
    outcomes = _run(window, [anonymizer], batches)
    numbers = [number for batch in batches for _, number, _ in batch]
    inside, late = _expect(window, batches)
    wanted: dict[int, set[int]] = {}
    waiting: set[int] = set()
    for start in sorted(inside):
        waiting |= set(inside[start])
        count = sum(numbers[offset] is not None for offset in waiting)
        if count >= k or (count == 0 and kind is UnivariateMicroaggregation):
            wanted[start], waiting = waiting, set()
    published: dict[int, set[int]] = {}
    for outcome in outcomes:
        assert not set(outcome.rows[WINDOW].to_pylist()) & published.keys()
        for row in outcome.rows.to_pylist():
            assert row[OFFSET] not in published.setdefault(row[WINDOW], set())
            published[row[WINDOW]].add(row[OFFSET])
            assert (row["n"] is None) == (numbers[row[OFFSET]] is None)
        means = Counter((row[WINDOW], row["n"]) for row in outcome.rows.to_pylist())
        assert all(count >= k for (_, mean), count in means.items() if mean is not None)
    assert published == wanted
    dead = sorted(letter.offset for outcome in outcomes for letter in outcome.dead)
    assert dead == sorted([*late, *waiting])
