"""Rows through the k-anonymity of a view: k persons in each group, nothing lost, nothing raw."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from penstock.definitions.k_anonymity import KAnonymization, LDiversity, TCloseness
from penstock.masks import Hierarchy
from penstock.masks.fields import Field
from penstock.pipeline.anonymizers.k_anonymity import KAnonymityStep
from penstock.pipeline.records.columns import OFFSET, PERSON, SUBJECT, TIME, arrow_schema

SCHEMA = {
    "pid": Field.of("int"),
    "name": Field.of("string"),
    "age": Field.of("int", optional=True),
    "place": Field.of("string", optional=True),
    "born": Field.of("date", optional=True),
    "seen": Field.of("timestamp", optional=True),
    "note": Field.of("int"),
    "illness": Field.of("string"),
}
PLACES = Hierarchy.model_validate(
    {
        "value": "Earth",
        "children": [
            {"value": "North", "children": [{"value": "Oslo"}, {"value": "Turku"}]},
            {"value": "South", "children": [{"value": "Rome"}, {"value": "Faro"}]},
        ],
    }
)
ILLNESSES = ("E10", "E11", "E13")
LEAVES = {"North": {"Oslo", "Turku"}, "South": {"Rome", "Faro"}}

rows = st.lists(
    st.tuples(
        st.integers(1, 12) | st.none(),
        st.integers(-2, 102) | st.none(),
        st.sampled_from(["Oslo", "Turku", "Rome", "Faro", "Mars", None]),
    ),
    max_size=60,
)
BORN = {"key": "born", "min": "2020-01-01", "max": "2022-06-30"}
SEEN = {"key": "seen", "min": "2020-01-01", "max": "2022-06-30"}
Rows = list[tuple[int | None, int | None, str | None]]


def _table(chosen: Rows, first: int) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "pid": [person or 0 for person, _, _ in chosen],
        "name": [f"secret {person}" for person, _, _ in chosen],
        "age": [age for _, age, _ in chosen],
        "place": [place for _, _, place in chosen],
        "born": [_born(age) for _, age, _ in chosen],
        "seen": [_seen(age) for _, age, _ in chosen],
        "note": list(range(first, first + len(chosen))),
        "illness": [ILLNESSES[(age or 0) % 5 % 3] for _, age, _ in chosen],
        OFFSET: list(range(first, first + len(chosen))),
        PERSON: [person for person, _, _ in chosen],
        TIME: [0] * len(chosen),
        SUBJECT: [None] * len(chosen),
    }
    return pa.table(columns, schema=arrow_schema(SCHEMA, OFFSET, PERSON, TIME, SUBJECT))


def _born(age: int | None) -> date | None:
    return None if age is None or age % 7 == 0 else date(2020, 1, 1) + timedelta(days=9 * age)


def _seen(age: int | None) -> datetime | None:
    born = _born(age)
    if born is None:
        return None
    # Late in the evening, as whoever reads another zone would place it on the next day.
    return datetime(born.year, born.month, born.day, 23, 59, tzinfo=UTC)


def _covers(label: str | None, value: Any, *, buckets: bool = False) -> bool:
    if value is None or label is None:
        return label in {None, "*", "Earth"} and (label is not None or value is None)
    if isinstance(value, date):
        low, _, high = label.strip("[]").partition(" - ")
        if label == "*" or not buckets:
            return label == "*" or low <= str(value)[:10] <= (high or low)
        whole = all(text[8:] == "01" and int(text[5:7]) % 3 == 1 for text in (low, high))
        return whole or high == "2022-06-30"
    if isinstance(value, int):
        if label == "*":
            return True
        low, _, high = label.strip("[]").partition(" - ")
        return int(low) <= value <= int(high or low)
    return label in {"Earth", value} or value in LEAVES.get(label, set())


@given(batches=st.lists(rows, max_size=4), k=st.integers(2, 4), delta=st.integers(4, 30))
def test_groups_have_k_persons_and_every_row_leaves_once(
    batches: list[Rows], k: int, delta: int
) -> None:
    parameters = _parameters(k, delta)
    parameters["quasi_identifiers"] += [{**BORN, "bucket_size": 3, "unit": "months"}, SEEN]
    published, dead = _run(KAnonymization.model_validate(parameters), batches)
    given_rows = [row for batch in batches for row in batch]
    assert sorted([row[OFFSET] for row in published] + dead) == list(range(len(given_rows)))
    persons: dict[tuple[str, ...], set[int]] = {}
    for row in published:
        person, age, place = given_rows[row["note"]]
        assert person is not None
        assert row["pid"] is None
        assert row["name"] == "*"
        assert _covers(row["age"], age)
        assert _covers(row["place"], place)
        assert _covers(row["born"], _born(age))
        assert _covers(row["born"], _born(age), buckets=True)
        assert _covers(row["seen"], _seen(age))
        alike = tuple(row[name] for name in ("age", "place", "born", "seen"))
        persons.setdefault(alike, set()).add(person)
    assert all(len(group) >= k for group in persons.values())


def test_null_is_shared_or_rejected_with_a_true_reason() -> None:
    chosen: Rows = [(person, None, "Oslo") for person in range(3)]
    published, dead = _run(KAnonymization.model_validate(_parameters(3, 3)), [chosen])
    assert [(row["age"], row["place"]) for row in published] == [(None, "Oslo")] * 3
    assert not dead
    rejecting = _parameters(3, 3)
    rejecting["quasi_identifiers"][0]["nulls"] = "reject"
    step = KAnonymityStep(
        KAnonymization.model_validate(rejecting), SCHEMA, {"places": PLACES}, seed=7
    )
    reasons = {letter.reason for letter in step.feed(_table(chosen, 0), 0).dead}
    assert reasons == {"the field 'age' is null, which no group of the view has"}


@given(
    batches=st.lists(rows, max_size=4),
    method=st.sampled_from([{}, {"method": "entropy"}, {"method": "recursive", "c": 2}]),
)
def test_groups_have_l_sensitive_values(batches: list[Rows], method: dict[str, Any]) -> None:
    sensitive = [{"key": "illness", "values": list(ILLNESSES)}]
    more = {"sensitive": sensitive, "l": 2, **method}
    parameters = LDiversity.model_validate({**_parameters(3, 20), **more})
    published, dead = _run(parameters, batches)
    assert len(published) + len(dead) == sum(map(len, batches))
    values: dict[tuple[str, str], set[str]] = {}
    for row in published:
        values.setdefault((row["age"], row["place"]), set()).add(row["illness"])
    assert all(len(group) >= 2 for group in values.values())


@given(
    batches=st.lists(st.tuples(st.integers(0, 9), rows), max_size=6),
    more=st.fixed_dictionaries(
        {
            "algorithm": st.sampled_from(["partition", "castle"]),
            "outliers": st.sampled_from(["suppress", "root"]),
            "max_wait": st.integers(1, 15),
        }
    ),
)
def test_no_row_waits_for_longer_than_it_may(
    batches: list[tuple[int, Rows]], more: dict[str, Any]
) -> None:
    parameters = KAnonymization.model_validate({**_parameters(3, 30), **more})
    came: dict[int, int] = {}
    kept: list[Rows] = [batch for _, batch in batches]
    persons: dict[tuple[str, str], set[int]] = {}
    given_rows = [row for batch in kept for row in batch]
    saved: bytes | None = None
    now = first = 0
    for after, batch in [*batches, (more["max_wait"], [])]:
        now += after
        step = KAnonymityStep(parameters, SCHEMA, {"places": PLACES}, 7, saved)
        came |= {first + place: now for place in range(len(batch))}
        outcome = step.feed(_table(batch, first), now)
        first += len(batch)
        for row in outcome.rows.to_pylist():
            del came[row[OFFSET]]  # raises, if it left before
            person = given_rows[row["note"]][0]
            assert person is not None
            persons.setdefault((row["age"], row["place"]), set()).add(person)
        for letter in outcome.dead:
            del came[letter.offset]
        assert step.held == len(came)
        assert all(now - since < more["max_wait"] for since in came.values())
        assert step.due == (min(came.values()) + more["max_wait"] if came else None)
        saved = step.save()
    assert not came
    assert all(len(group) >= 3 for group in persons.values())


@given(batches=st.lists(rows, max_size=3))
def test_t_closeness_loses_no_row(batches: list[Rows]) -> None:
    sensitive = [{"key": "illness", "values": list(ILLNESSES)}]
    parameters = TCloseness.model_validate({**_parameters(2, 20), "sensitive": sensitive, "t": 0.3})
    published, dead = _run(parameters, batches)
    assert len(published) + len(dead) == sum(map(len, batches))


def _parameters(k: int, delta: int) -> dict[str, Any]:
    return {
        "keys": ["pid", "name"],
        "quasi_identifiers": [
            {"key": "age", "min": 0, "max": 100},
            {"key": "place", "hierarchy": "places"},
        ],
        "k": k,
        "delta": delta,
    }


def _run(parameters: KAnonymization, batches: list[Rows]) -> tuple[list[dict[str, Any]], list[int]]:
    """Feed batches, and save and load between them, as a restart would."""
    saved: bytes | None = None
    published: list[dict[str, Any]] = []
    dead: list[int] = []
    first = 0
    for batch in [*batches, None]:
        step = KAnonymityStep(parameters, SCHEMA, {"places": PLACES}, 7, saved)
        outcome = step.flush() if batch is None else step.feed(_table(batch, first), 0)
        first += len(batch or ())
        saved = step.save()
        assert step.held <= parameters.delta
        published += outcome.rows.to_pylist()
        dead += [letter.offset for letter in outcome.dead]
    return published, dead
