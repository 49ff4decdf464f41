"""Shards against plain models: the same promises and figures for any number of them, in any order.

Values go between shards here as Spark would move them, in an order of chance; a run is done twice,
and once more from the state that was kept between micro-batches.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.definitions import DefinitionSet
from penstock.errors import UsageError
from penstock.model.document import Document
from penstock.pipeline.anonymizers import blueprint as blueprints
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.anonymizers.noisy_figures import NoisyFigures
from penstock.pipeline.anonymizers.stateful import read_table
from penstock.pipeline.dataframes.shard_step import REPORT, ShardState, ShardStep, input_schema
from penstock.pipeline.dataframes.shards import REASON, pack_rows, write_signal
from penstock.pipeline.dataframes.view import count_shards
from penstock.pipeline.records.columns import OFFSET, PERSON, WINDOW
from penstock.pipeline.records.opt_outs import ERASED, REFUSED
from tests.property.pipeline.anonymizers.test_differential_privacy import NoNoise
from tests.support.scale import scaled

SECRET = bytes(range(32))
KEYS = (0, 7, 3, 11, 5)
STREAM = Document(
    "stream",
    "visits",
    {
        "fields": [
            {"name": "pid", "type": "int", "category": "identifier"},
            {"name": "age", "type": "int", "category": "quasi-identifier"},
            {"name": "ward", "type": "string"},
            {"name": "pulse", "type": "int", "optional": True},
            {"name": "dose", "type": "double", "optional": True},
            {"name": "at", "type": "long"},
        ],
        "subject": "pid",
        "time": "at",
    },
)
LEAST = 3
K: dict[str, Any] = {
    "anonymizer": "k_anonymization",
    "keys": ["pid"],
    "quasi_identifiers": [{"key": "age", "min": 0, "max": 120}],
    "k": LEAST,
    "delta": 20,
}

MIXED: dict[str, Any] = {**K, "sensitive": [{"key": "ward", "values": ["east", "west"]}]}


class Record(NamedTuple):
    person: int
    age: int
    ward: str
    pulse: int | None
    dose: float | None
    at: int


records = st.builds(
    Record,
    st.integers(0, 30),
    st.integers(0, 120),
    st.sampled_from(["east", "west"]),
    st.none() | st.integers(-5, 90),
    st.none() | st.integers(-8, 8).map(lambda number: number / 4),
    st.integers(0, 60),
)
few = settings(max_examples=scaled(25))
batches = st.lists(st.lists(records, max_size=30), min_size=1, max_size=4)


def define(window: dict[str, Any] | None, *anonymizers: dict[str, Any]) -> Blueprint:
    body: dict[str, Any] = {"stream": "visits", "anonymizers": list(anonymizers)}
    body["accept_risk"] = ["time:at"] if window is None else []
    if window is not None:
        body["window"] = window
    return Blueprint.find(DefinitionSet.build([STREAM, Document("view", "v", body)]), "v")


class Cluster:
    """Shards that are fed micro-batches, with what Spark would keep of them."""

    def __init__(self, blueprint: Blueprint, shards: int, seed: int = 0) -> None:
        self.keys = KEYS[:shards]
        self.blueprint = blueprint
        self.states: dict[int, ShardState] = {}
        self.lists: dict[int, bytes] = {}
        self.read = 0
        self._random = random.Random(seed)

    def feed(
        self, rows: Sequence[Record], *, again: bool = True, **signal: Any
    ) -> list[dict[str, Any]]:
        """Run a micro-batch, once and, where that must lead to the same, once more."""
        values = self._pack(rows)
        if signal:
            values += [(key, write_signal(order=0, **signal)) for key in self.keys]
        before = dict(self.states), dict(self.lists)
        made, states, lists = self._run(values)
        if again:
            self.states, self.lists = before
            assert self._run(values) == (made, states, lists)
        self.states, self.lists = states, lists
        self.read += len(rows)
        found: list[dict[str, Any]] = made
        return found

    def _pack(self, rows: Sequence[Record]) -> list[tuple[int, bytes]]:
        schema = input_schema(self.blueprint, located=True)
        lines = [self._line(place, row) for place, row in enumerate(rows, self.read)]
        self._random.shuffle(lines)
        half = len(lines) // 2
        told = self.blueprint.is_windowed and len(self.keys) > 1
        found: list[tuple[int, bytes]] = []
        for task in (lines[:half], lines[half:]):
            batches = [pa.RecordBatch.from_pylist(task, schema=schema)] if task else []
            for value in pack_rows(batches, self.keys, PERSON, told=told):
                found += zip(*map(pa.Array.to_pylist, value.columns), strict=True)
        return found

    @staticmethod
    def _line(place: int, row: Record) -> dict[str, Any]:
        return {
            "pid": row.person,
            **row._asdict(),
            "penstock:offset": place,
            "penstock:order": place,
            "penstock:person": row.person,
            "penstock:time": row.at,
            "penstock:subject": row.person,
            "shard": row.person,
        }

    def _run(self, values: list[tuple[int, bytes]]) -> Any:
        self._random.shuffle(values)
        step = ShardStep(self.blueprint, SECRET, self.keys, located=True, reports=True)
        sent: dict[int, list[pa.Table]] = defaultdict(list)
        states, lists = dict(self.states), dict(self.lists)
        for key in self.keys:
            own = [value for target, value in values if target == key]
            if not own:
                continue
            kept = self.lists.get(key, b"")
            made = step.run(key, own, states.get(key), load_opted_out=partial(bytes, kept))
            for target, value in made.values:
                sent[target].append(read_table(value))
            states[key] = made.state
            if made.opted_out is not None:
                lists[key] = made.opted_out
        found = []
        for _, tables in sorted(sent.items()):
            self._random.shuffle(tables)
            for table in step.combine(tables) if step.combines else tables:
                found += table.to_pylist()
        return sorted(found, key=repr), states, lists


def published(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in made if row[REASON] is None and row[REPORT] is None]


def refused(made: list[dict[str, Any]]) -> dict[int, str]:
    return {row[OFFSET]: row[REASON] for row in made if row[REASON] is not None}


@pytest.mark.parametrize("shards", [1, 2, 5])
@few
@given(given_batches=batches, data=st.data())
def test_groups_have_k_persons_in_any_number_of_shards(
    shards: int, given_batches: list[list[Record]], data: st.DataObject
) -> None:
    cluster = Cluster(define(None, K), shards, data.draw(st.integers(0, 99)))
    found = [row for batch in given_batches for row in cluster.feed(batch)]
    found += cluster.feed([], flush=True)
    people = [record.person for batch in given_batches for record in batch]
    groups = defaultdict(set)
    for row in published(found):
        groups[row["age"]].add(people[row[OFFSET]])
    assert all(len(group) >= LEAST for group in groups.values())
    left = [row[OFFSET] for row in published(found)] + list(refused(found))
    assert sorted(left) == list(range(len(people)))
    assert not any(state.held for state in cluster.states.values())


@pytest.mark.parametrize("shards", [1, 2, 5])
@few
@given(given_batches=batches, seed=st.integers(0, 99))
def test_groups_are_diverse_in_any_number_of_shards(
    shards: int, given_batches: list[list[Record]], seed: int
) -> None:
    cluster = Cluster(define(None, {**MIXED, "anonymizer": "l_diversity", "l": 2}), shards, seed)
    found = [row for batch in given_batches for row in cluster.feed(batch)]
    found += cluster.feed([], flush=True)
    given_records = [record for batch in given_batches for record in batch]
    groups = defaultdict(list)
    for row in published(found):
        groups[row["age"]].append(given_records[row[OFFSET]])
    for group in groups.values():
        assert len({record.person for record in group}) >= LEAST
        assert {record.ward for record in group} == {"east", "west"}
    assert len(published(found)) + len(refused(found)) == len(given_records)


@few
@given(rows=st.lists(records, max_size=40), t=st.sampled_from([0.1, 0.3]))
def test_groups_are_close_to_all_records_since_they_are_not_divided(
    rows: list[Record], t: float
) -> None:
    close = define(None, {**MIXED, "anonymizer": "t_closeness", "t": t})
    session: Any = None  # not asked
    assert count_shards(session, close, 4) == 1
    cluster = Cluster(close, 1)
    found = [*cluster.feed(rows), *cluster.feed([], flush=True)]
    groups = defaultdict(list)
    for row in published(found):
        groups[row["age"]].append(rows[row[OFFSET]].ward == "east")
    for group in groups.values():
        share = sum(record.ward == "east" for record in rows) / len(rows)
        assert abs(sum(group) / len(group) - share) <= t + 1e-9
    assert len(published(found)) + len(refused(found)) == len(rows)


MODES: dict[str, Callable[[list[Any]], Any]] = {
    "sum": lambda values: sum(values) if values else None,
    "count": len,
    "average": lambda values: sum(values) / len(values) if values else None,
    "min": lambda values: min(values, default=None),
    "max": lambda values: max(values, default=None),
}


def windows_of(rows: list[list[Record]], size: int, advance: int) -> Iterator[tuple[int, int]]:
    """Yield the windows that records are published with, and those records; a plain model."""
    watermark, offset = -(10**9), 0
    for batch in rows:
        for record in batch:
            for start in range(-size, 70, 1):
                inside = start % advance == 0 and start <= record.at < start + size
                if inside and start + size > watermark:
                    yield start, offset
            offset += 1
        watermark = max([watermark, *(record.at for record in batch)])


@pytest.mark.parametrize("mode", MODES)
@few
@given(given_batches=batches, shards=st.integers(1, 5), data=st.data())
def test_an_aggregate_is_that_of_the_whole_window(
    mode: str, given_batches: list[list[Record]], shards: int, data: st.DataObject
) -> None:
    advance = data.draw(st.sampled_from([5, 10]))
    aggregation = {"anonymizer": "aggregation", "aggregation_mode": mode, "keys": ["pulse", "dose"]}
    shuffling = {"anonymizer": "shuffling", "keys": ["ward"]}
    blueprint = define({"size": 10, "advance": advance}, aggregation, shuffling)
    assert blueprint.divides
    cluster = Cluster(blueprint, shards, data.draw(st.integers(0, 99)))
    every = [record for batch in given_batches for record in batch]
    inside: dict[int, list[Record]] = defaultdict(list)
    for start, offset in windows_of(given_batches, 10, advance):
        inside[start].append(every[offset])
    left: dict[int, list[dict[str, Any]]] = {}
    for batch in [*given_batches, None]:
        made = cluster.feed(batch) if batch is not None else cluster.feed([], flush=True)
        now = defaultdict(list)
        for row in published(made):
            now[row[WINDOW]].append(row)
        assert not now.keys() & left.keys()
        left.update(now)
    assert {start: len(rows) for start, rows in left.items()} == {
        start: len(rows) for start, rows in inside.items()
    }
    for start, rows in left.items():
        for name in ("pulse", "dose"):
            values = [getattr(it, name) for it in inside[start]]
            expected = MODES[mode]([value for value in values if value is not None])
            assert [row[name] for row in rows] == pytest.approx([expected] * len(rows))


@few
@given(given_batches=batches, data=st.data())
def test_figures_and_budgets_are_the_same_in_any_number_of_shards(
    given_batches: list[list[Record]], data: st.DataObject
) -> None:
    privacy = {
        "anonymizer": "differential_privacy",
        "aggregates": [
            {"name": "records", "mode": "count"},
            {"name": "total", "mode": "sum", "key": "pulse", "min": 0, "max": 60},
            {"name": "mean", "mode": "average", "key": "dose", "min": -1, "max": 1},
        ],
        "groups": [{"key": "ward", "values": ["east", "west"]}],
        "epsilon": 0.1,
        "budget": 0.2,
        "contribution": 2,
    }
    blueprint = define({"size": 10}, privacy)
    seed = data.draw(st.integers(0, 99))
    with pytest.MonkeyPatch.context() as patch:

        def exact(parameters: Any, size: int, schema: Any, _: Any = None) -> NoisyFigures:
            return NoisyFigures(parameters, size, schema, NoNoise)

        patch.setattr(blueprints, "NoisyFigures", exact)
        step = "penstock.pipeline.anonymizers.differential_privacy.NoisyFigures"
        patch.setattr(step, exact)
        alone, divided = Cluster(blueprint, 1, seed), Cluster(blueprint, 4, seed)
        for batch in [*given_batches, None]:
            more = {} if batch is not None else {"flush": True}
            one, other = (it.feed(batch or [], **more) for it in (alone, divided))
            assert _sorted(published(one)) == _sorted(published(other))
            assert refused(one) == refused(other)
    spent: dict[int, int] = {}
    for shard, key in enumerate(divided.keys):
        made = blueprint.make_step(
            SECRET, divided.states[key].step if key in divided.states else None,
            shards=4, shard=shard,
        )  # fmt: skip
        spent |= made.spent()  # type: ignore[union-attr]
    first = alone.states.get(KEYS[0])
    made = blueprint.make_step(SECRET, first.step if first else None)
    assert spent == made.spent()  # type: ignore[union-attr]


def _sorted(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


@few
@given(given_batches=batches, gone=st.sets(st.integers(0, 30)), shards=st.integers(1, 5))
def test_who_opts_out_is_let_go_and_refused_from_then_on(
    given_batches: list[list[Record]], gone: set[int], shards: int
) -> None:
    cluster = Cluster(define(None, {**K, "delta": 1000}), shards)
    first, *rest = given_batches
    cluster.feed(first)
    made = cluster.feed([], opted_out=sorted(gone))
    assert refused(made) == {
        place: REFUSED for place, record in enumerate(first) if record.person in gone
    }
    kept = dict(cluster.lists)
    for batch in rest:
        start = cluster.read
        found = refused(cluster.feed(batch, opted_out=sorted(gone)))
        assert found == {
            start + place: REFUSED for place, record in enumerate(batch) if record.person in gone
        }
    assert cluster.lists == kept
    final = cluster.feed([], flush=True)
    people = [record.person for batch in given_batches for record in batch]
    assert not {people[row[OFFSET]] for row in published(final)} & gone
    again = cluster.feed([first[0]] if first else [], opted_out=[])
    assert not refused(again)


@few
@given(given_batches=batches, gone=st.sets(st.integers(0, 30)), shards=st.integers(1, 5))
def test_who_is_erased_is_forgotten_among_what_is_held_and_no_longer(
    given_batches: list[list[Record]], gone: set[int], shards: int
) -> None:
    cluster = Cluster(define(None, {**K, "delta": 1000}), shards)
    first, *rest = given_batches
    cluster.feed(first)
    made = cluster.feed([], erased=sorted(gone))
    assert refused(made) == {
        place: ERASED for place, record in enumerate(first) if record.person in gone
    }
    for batch in rest:
        assert not refused(cluster.feed(batch))
    final = cluster.feed([], flush=True)
    people = [record.person for batch in given_batches for record in batch]
    told = {row[OFFSET] for row in published(final)} | set(refused(final))
    assert told == {
        place for place, who in enumerate(people) if place >= len(first) or who not in gone
    }


def test_reports_tell_what_is_held_and_when_it_is_due() -> None:
    cluster = Cluster(define(None, {**K, "delta": 100}), 2)
    rows = [Record(person, 30, "east", 1, 1.0, 5) for person in range(10)]
    reports = [row[REPORT] for row in cluster.feed(rows) if row[REPORT]]
    assert [(it["shard"], it["read"], it["held"]) for it in reports] == [(0, 5, 5), (7, 5, 5)]
    made = [row[REPORT] for row in cluster.feed([], flush=True) if row[REPORT]]
    assert [it["held"] for it in made] == [0, 0]
    persons = [read_table(it["groups"])["penstock:persons"].to_pylist() for it in made]
    assert persons == [[5], [5]]


def test_state_of_others_and_damaged_state_are_refused() -> None:
    rows = [Record(person, 30, "east", 1, 1.0, 5) for person in range(4)]
    cluster = Cluster(define(None, {**K, "delta": 100}), 1)
    cluster.feed(rows)
    key, kept = KEYS[0], cluster.states[KEYS[0]]
    for state, words in (
        (kept._replace(step=kept.step[:-1]), "is damaged"),
        (kept._replace(view="w"), "that of the view 'w'"),
        (kept._replace(definitions="others"), "state of other definitions"),
        (kept._replace(shards=2), "another number of shards"),
    ):
        cluster.states[key] = state
        with pytest.raises(UsageError, match=words):
            cluster.feed(rows)
    # What holds nothing may go on as something else.
    cluster.states[key] = kept
    cluster.feed([], flush=True)
    cluster.blueprint = define(None, {**K, "k": 2, "delta": 100})
    cluster.feed(rows)
    assert cluster.states[key].held == len(rows)
