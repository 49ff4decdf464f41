"""Risk is measured as a naive model does it, and as pycanon judges it."""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycanon import anonymity

from penstock.definitions import DefinitionSet
from penstock.eventlog import EventLog
from penstock.model.document import Document
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.sinks.commits import Commit, Totals, ViewFolder, ViewWriter
from penstock.risk.figures import Knowledge
from penstock.risk.measurement import measure_view
from penstock.risk.tally import Codes, Tally
from tests.support.scale import scaled

FIELDS = [
    {"name": "pid", "type": "int", "category": "identifier"},
    {"name": "zip", "type": "string", "category": "quasi-identifier", "optional": True},
    {"name": "age", "type": "int", "category": "quasi-identifier", "optional": True},
    {"name": "weight", "type": "double", "category": "quasi-identifier", "optional": True},
    {"name": "diagnosis", "type": "string", "category": "sensitive"},
    {"name": "glucose", "type": "int", "category": "sensitive"},
]
SCHEMA = pa.schema(
    [
        ("pid", pa.int32()),
        ("zip", pa.string()),
        ("age", pa.int32()),
        ("weight", pa.float64()),
        ("diagnosis", pa.string()),
        ("glucose", pa.int32()),
    ]
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "pid": st.integers(0, 8),
            "zip": st.sampled_from(["1", "2", "é"]),
            "age": st.integers(-2, 1),
            "weight": st.sampled_from([0.0, -0.0, 1.5]),
            "diagnosis": st.sampled_from(["a", "b", "c"]),
            "glucose": st.integers(-3, 3),
        }
    ),
    min_size=2,
    max_size=60,
)
Row = dict[str, Any]


def publish(folder: Path, batches: list[list[Row]], form: str = "parquet") -> ViewFolder:
    """Write batches as a view that passes records on."""
    stream = Document("stream", "patients", {"fields": FIELDS, "subject": "pid"})
    view = Document("view", "all", {"stream": "patients", "format": form})
    blueprint = Blueprint.find(DefinitionSet.build([stream, view]), "all")
    writer = ViewWriter(folder)
    writer.open()
    (folder / "plans").mkdir()
    plan = folder / "plans" / f"{blueprint.signature}.json"
    plan.write_text(blueprint.to_json(), encoding="utf-8")
    topic = EventLog(folder / "log").topic(blueprint.view.topic)
    totals = Totals()
    for rows in batches:
        begin = topic.next_offset
        target = writer.stage() / "data"
        target.mkdir()
        table = pa.Table.from_pylist(rows, SCHEMA)
        if form == "topic":
            values = [json.dumps(row).encode() for row in rows]
            topic.append(values, [b"%d" % writer.sequence] * len(values))
        elif form == "parquet":
            pyarrow.parquet.write_table(table, target / "part-0.parquet")
        elif form == "json":
            lines = table.to_pandas().to_json(orient="records", lines=True)
            (target / "part-0.json").write_text(lines, encoding="utf-8")
        else:
            table.to_pandas().to_csv(target / "part-0.csv", index=False)
        totals = totals.add(Totals(len(rows), len(rows)))
        plan_name = blueprint.signature
        made = Commit(writer.sequence, plan_name, totals=totals, format=form)
        writer.commit(replace(made, begin=begin))
    writer.close()
    return ViewFolder(folder)


def naive(rows: list[Row], keys: list[str], field: str) -> tuple[int, float, float, list[int]]:
    """Return distinct l, entropy l, t, and persons of the groups, in a few lines."""
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    values = sorted({row[field] for row in rows})
    whole = Counter(row[field] for row in rows)
    distinct, entropy, closeness = [], [], []
    for members in groups.values():
        part = Counter(row[field] for row in members)
        shares = [part[value] / len(members) for value in values]
        distinct.append(len(part))
        entropy.append(math.exp(-sum(p * math.log(p) for p in shares if p)))
        surplus = [p - whole[value] / len(rows) for p, value in zip(shares, values, strict=True)]
        if field == "glucose":
            work = sum(abs(sum(surplus[: i + 1])) for i in range(len(values)))
            closeness.append(work / max(1, len(values) - 1))
        else:
            closeness.append(sum(map(abs, surplus)) / 2)
    persons = [len({row["pid"] for row in members}) for members in groups.values()]
    return min(distinct), min(entropy), max(closeness), persons


@settings(deadline=None, max_examples=scaled(60))
@given(st.lists(ROWS, min_size=1, max_size=3), st.sampled_from(["parquet", "json", "csv", "topic"]))
def test_the_figures_are_those_of_a_naive_model(batches: list[list[Row]], form: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        view = publish(Path(folder), batches, form)
        keys = ["zip", "age", "weight"]
        _, risk = measure_view(view, threshold=0.4, log=EventLog(Path(folder) / "log"))
        rows = [row for batch in batches for row in batch]
        for field in ("diagnosis", "glucose"):
            distinct, entropy, closeness, persons = naive(rows, keys, field)
            found = risk.sensitive[field]
            assert found.distinct == distinct
            assert found.entropy == pytest.approx(entropy)
            assert found.closeness == pytest.approx(closeness, abs=1e-9)
        sizes = Counter(tuple(row[key] for key in keys) for row in rows)
        assert risk.persons == Knowledge.PUBLISHED
        assert (risk.records, risk.groups) == (len(rows), len(sizes))
        assert (risk.k, risk.k_records) == (min(persons), min(sizes.values()))
        # In the order that groups came, as the dictionaries keep it.
        risks = [1 / count for count in persons]
        weights = list(sizes.values())
        mean = sum(r * w for r, w in zip(risks, weights, strict=True)) / len(rows)
        above = sum(w for r, w in zip(risks, weights, strict=True) if r > 0.4) / len(rows)
        assert risk.prosecutor.most == max(risks)
        assert risk.prosecutor.mean == pytest.approx(mean)
        assert risk.prosecutor.above == pytest.approx(above)
        assert sum(bar.groups for bar in risk.sizes) == len(sizes)
        assert sum(bar.records for bar in risk.sizes) == len(rows)
        assert risk.exposed == ("pid",)


@settings(deadline=None, max_examples=scaled(25))
@given(ROWS)
def test_the_figures_are_those_of_an_independent_judge(rows: list[Row]) -> None:
    frame = pd.DataFrame(rows)
    keys = ["zip", "age"]
    with tempfile.TemporaryDirectory() as folder:
        _, risk = measure_view(publish(Path(folder), [rows]), keys)
    assert risk.k_records == anonymity.k_anonymity(frame, keys)
    for field, found in risk.sensitive.items():
        assert found.distinct == anonymity.l_diversity(frame, keys, [field])
        # The judge cuts e^entropy off, so that 2 may become 1.
        judged = anonymity.entropy_l_diversity(frame, keys, [field])
        assert judged <= found.entropy + 1e-9 < judged + 2
        if len(set(frame[field])) > 1:  # else the judge divides by zero
            closeness = anonymity.t_closeness(frame, keys, [field])
            assert found.closeness == pytest.approx(closeness, abs=1e-9)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.none() | st.text(max_size=2)), max_size=300))
def test_too_many_groups_are_thinned_out_as_a_whole(pairs: list[tuple[int, str | None]]) -> None:
    number, text = Codes(), Codes()
    tally = Tally(["a"], ["b"], limit=20)
    for start in range(0, len(pairs), 7):
        chunk = pairs[start : start + 7]
        codes = {
            "a": number.encode(pa.array([a for a, _ in chunk], pa.int64())),
            "b": text.encode(pa.array([b for _, b in chunk], pa.string())),
        }
        tally.add(codes, len(chunk))
    table = tally.table()
    kept = set(table["a"].to_pylist())
    whole = Counter((a, b) for a, b in pairs if a in kept)
    assert sorted(table["penstock:count"].to_pylist()) == sorted(whole.values())
    assert table.num_rows == len(whole)
    assert tally.share == 1.0 or len(kept) < len({a for a, _ in pairs})
    if tally.share == 1.0:
        assert sum(whole.values()) == len(pairs)
