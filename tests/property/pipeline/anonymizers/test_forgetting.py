"""People who opt out while steps hold their rows: nothing of them is published afterwards."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from penstock.definitions.anonymizers import Shuffling, UnivariateMicroaggregation
from penstock.definitions.differential_privacy import DifferentialPrivacy
from penstock.definitions.k_anonymity import KAnonymization, TCloseness
from penstock.masks.fields import Field
from penstock.model.kinds.views import Window
from penstock.pipeline.anonymizers.differential_privacy import DifferentialPrivacyStep
from penstock.pipeline.anonymizers.k_anonymity import KAnonymityStep
from penstock.pipeline.anonymizers.stateful import StatefulStep, StepOutcome
from penstock.pipeline.anonymizers.windows import WindowStep
from penstock.pipeline.records.columns import OFFSET, PERSON, SUBJECT, TIME, arrow_schema

GONE = "the person opted out"
SCHEMA = {"age": Field.of("int"), "illness": Field.of("string")}
MakeStep = Callable[[bytes | None], StatefulStep]

people = st.lists(st.integers(1, 9), max_size=40)


def _rows(persons: list[int], first: int) -> pa.Table:
    count = len(persons)
    columns = {
        "age": [person * 7 % 50 for person in persons],
        "illness": ["ab"[person % 2] for person in persons],
        OFFSET: list(range(first, first + count)),
        PERSON: persons,
        TIME: list(range(first, first + count)),
        SUBJECT: [person * 1000 for person in persons],
    }
    return pa.table(columns, schema=arrow_schema(SCHEMA, OFFSET, PERSON, TIME, SUBJECT))


def _run(
    make: MakeStep, before: list[int], gone: set[int], after: list[int]
) -> tuple[StepOutcome, list[StepOutcome]]:
    """Feed, forget, and feed again; the step is saved and loaded between, as a restart would."""
    step = make(None)
    first = step.feed(_rows(before, 0), 0)
    step = make(step.save())
    forgotten = step.forget(np.array(sorted(gone), dtype=np.int64) * 1000, GONE)
    assert all(before[letter.offset] in gone for letter in forgotten)
    assert step.forget(np.array(sorted(gone), dtype=np.int64) * 1000, GONE) == []
    step = make(step.save())
    staying = [person for person in after if person not in gone]
    later = [step.feed(_rows(staying, len(before)), 0), step.flush()]
    assert step.held == 0
    later[0].dead += forgotten
    return first, later


def _k_step(saved: bytes | None) -> StatefulStep:
    body = {
        "keys": [],
        "quasi_identifiers": [{"key": "age", "min": 0, "max": 50}],
        "k": 3,
        "delta": 15,
    }
    return KAnonymityStep(KAnonymization.model_validate(body), SCHEMA, {}, 7, saved)


def _castle_step(saved: bytes | None) -> StatefulStep:
    body = {
        "keys": [],
        "quasi_identifiers": [{"key": "age", "min": 0, "max": 50}],
        "k": 3,
        "delta": 15,
        "algorithm": "castle",
        "outliers": "root",
    }
    return KAnonymityStep(KAnonymization.model_validate(body), SCHEMA, {}, 7, saved)


def _close_step(saved: bytes | None) -> StatefulStep:
    body = {
        "keys": [],
        "quasi_identifiers": [{"key": "age", "min": 0, "max": 50}],
        "k": 2,
        "delta": 15,
        "t": 0.5,
        "sensitive": [{"key": "illness", "values": ["a", "b"]}],
    }
    return KAnonymityStep(TCloseness.model_validate(body), SCHEMA, {}, 7, saved)


def _window_step(saved: bytes | None) -> StatefulStep:
    return WindowStep(
        Window(size=12, advance=6, grace=3),
        [Shuffling(keys=("age",))],
        SCHEMA,
        by_arrival=False,
        secret=bytes(32),
        saved=saved,
    )


def _holding_step(saved: bytes | None) -> StatefulStep:
    return WindowStep(
        Window(size=5),
        [UnivariateMicroaggregation(keys=("age",), k=4, shortfall="hold")],
        SCHEMA,
        by_arrival=False,
        secret=bytes(32),
        saved=saved,
    )


@given(
    make=st.sampled_from([_k_step, _castle_step, _close_step, _window_step, _holding_step]),
    before=people,
    gone=st.sets(st.integers(1, 9), max_size=4),
    after=people,
)
def test_nothing_of_them_is_published_and_every_row_is_accounted_for(
    make: MakeStep, before: list[int], gone: set[int], after: list[int]
) -> None:
    first, later = _run(make, before, gone, after)
    persons = before + [person for person in after if person not in gone]
    published = [offset for outcome in later for offset in outcome.rows[OFFSET].to_pylist()]
    assert gone.isdisjoint(persons[offset] for offset in published)
    early = first.rows[OFFSET].to_pylist()
    dead = [letter.offset for outcome in (first, *later) for letter in outcome.dead]
    assert {*early, *published, *dead} == set(range(len(persons)))


@given(
    make=st.sampled_from([_k_step, _castle_step]),
    before=people,
    gone=st.sets(st.integers(1, 9), max_size=4),
    after=people,
)
def test_groups_have_k_persons_without_them(
    make: MakeStep, before: list[int], gone: set[int], after: list[int]
) -> None:
    first, later = _run(make, before, gone, after)
    persons = before + [person for person in after if person not in gone]
    groups: dict[str, set[int]] = {}
    for outcome in (first, *later):
        for row in outcome.rows.to_pylist():
            groups.setdefault(row["age"], set()).add(persons[row[OFFSET]])
    assert all(len(group) >= 3 for group in groups.values())


def test_they_do_not_count_in_figures() -> None:
    # So large an epsilon that there is no noise to speak of.
    body = {"aggregates": [{"name": "n", "mode": "count"}], "epsilon": 100, "budget": 1000}

    def make(saved: bytes | None) -> StatefulStep:
        return DifferentialPrivacyStep(
            DifferentialPrivacy.model_validate(body),
            Window(size=100),
            SCHEMA,
            by_arrival=False,
            saved=saved,
        )

    _, later = _run(make, [1, 2, 3], {2}, [4])
    assert [row["n"] for outcome in later for row in outcome.rows.to_pylist()] == [3]
    assert [letter.offset for outcome in later for letter in outcome.dead] == [1]
