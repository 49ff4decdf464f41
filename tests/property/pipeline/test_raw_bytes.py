"""Random tables through whole views: promises hold, and no byte of what they hide is there.

The search goes over every file of a view but for its definitions (`plans`), and for what
only the owner can reach: rows that wait (`state`) and counts of persons (`persons`). Parquet
files are looked at as they are, footers and statistics included, and without compression
and dictionaries too, so that a value in a page cannot hide.
"""

from __future__ import annotations

import io
import json
import stat
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.definitions import DefinitionSet
from penstock.eventlog import Topic
from penstock.model.document import Document
from penstock.pipeline.sinks.commits import ViewFolder
from penstock.pipeline.sinks.published import read_published
from tests.support.scale import scaled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs("java")

PRIVATE = {"steps", "persons"}
ILLNESSES = ("E10", "E11", "E13")
FIELDS = [
    {"name": "pid", "type": "long", "category": "identifier"},
    {"name": "name", "type": "string", "category": "identifier"},
    {"name": "weight", "type": "double", "category": "quasi-identifier"},
    {"name": "place", "type": "string", "category": "quasi-identifier"},
    {"name": "illness", "type": "string", "category": "sensitive"},
    {"name": "note", "type": "int"},
    {"name": "at", "type": "long"},
]
# Leaves never leave by themselves: a region is the least that is told.
PLACES = {
    "value": "Earth",
    "children": [
        {"value": region, "children": [{"value": f"{region}-town-{n}"} for n in range(3)]}
        for region in ("North", "South")
    ],
}
SUPPRESS = {"anonymizer": "suppression", "keys": ["pid", "name"]}
REGION = {"anonymizer": "generalization", "keys": ["place"], "hierarchy": PLACES, "level": 1}
BUCKETS = {"anonymizer": "bucketizing", "keys": ["weight"], "bucket_size": 25}
RISKS = ["quasi-identifier:place", "time:at"]

Row = tuple[int, float, int, int]
rows = st.lists(
    st.tuples(
        st.integers(0, 14),
        st.floats(20, 200).map(lambda value: round(value, 7) + 3e-8),
        st.integers(0, 5),
        st.integers(0, 2),
    ),
    min_size=20,
    max_size=70,
)


def _record(number: int, row: Row) -> dict[str, Any]:
    person, weight, place, illness = row
    region = "North" if place < 3 else "South"
    return {
        "pid": _pid(person),
        "name": f"Hidden Person {person:04}",
        "weight": weight,
        "place": f"{region}-town-{place % 3}",
        "illness": ILLNESSES[illness],
        "note": number,
        "at": number,
    }


def _pid(person: int) -> int:
    return 7_310_550_001_000 + person * 7919


def _views(k: int, delta: int, least: int, t: float) -> dict[str, dict[str, Any]]:
    base = {
        "keys": ["pid", "name"],
        "k": k,
        "delta": delta,
        "quasi_identifiers": [{"key": "weight", "min": 0, "max": 225, "bucket_size": 25}],
    }
    sensitive = [{"key": "illness", "values": list(ILLNESSES)}]
    kinds: dict[str, dict[str, Any]] = {
        "k": {"anonymizer": "k_anonymization", **base},
        "l": {"anonymizer": "l_diversity", **base, "sensitive": sensitive, "l": least},
        # All are held until the end, so that the whole they are compared with is known here.
        "t": {"anonymizer": "t_closeness", **base, "delta": 100, "sensitive": sensitive, "t": t},
    }
    micro = {"anonymizer": "multivariate_microaggregation", "keys": ["weight"], "k": k}
    return {
        **{
            name: {"anonymizers": [REGION, body], "accept_risk": RISKS}
            for name, body in kinds.items()
        },
        "masked": {"anonymizers": [SUPPRESS, REGION, BUCKETS]},
        "masked_too": {"anonymizers": [BUCKETS, REGION, SUPPRESS], "format": "json"},
        "micro": {
            "anonymizers": [SUPPRESS, REGION, {**micro, "shortfall": "hold"}],
            "window": {"size": 20},
        },
    }


@pytest.mark.timeout(900)
@settings(max_examples=scaled(2))
@given(
    table=rows,
    k=st.integers(2, 5),
    delta=st.integers(10, 40),
    least=st.integers(2, 3),
    t=st.floats(0.2, 0.6),
)
def test_promises_hold_and_nothing_raw_is_in_any_file(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    table: list[Row],
    k: int,
    delta: int,
    least: int,
    t: float,
) -> None:
    folder = tmp_path_factory.mktemp("views")
    views = _views(k, delta, least, t)
    records = [_record(number, row) for number, row in enumerate(table)]
    _run(spark, folder, views, records)
    for name in views:
        view = ViewFolder(folder / name)
        published = list(read_published(view))
        dead = [letter["offset"] for letter in view.dead_letters()]
        everything = list(range(len(table) + 2))
        assert sorted([row["note"] for row in published] + dead) == everything, name
        # The mean of some weights may be another's, by chance.
        _find_raw(view.folder, records, weights=name != "micro")
        if name in {"k", "l", "t"}:
            _check_groups(published, table, k, least if name == "l" else 1, t if name == "t" else 1)


@pytest.mark.parametrize("field", ["pid", "name", "weight", "place"])
def test_the_search_finds_a_raw_value_in_a_page(tmp_path: Path, field: str) -> None:
    records = [_record(number, (number % 5, 60.125 + number, 2, 1)) for number in range(40)]
    table = pa.table({field: [record[field] for record in records]})
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "part.parquet"
    pyarrow.parquet.write_table(table, path, compression="zstd", write_statistics=False)
    with pytest.raises(AssertionError, match=r"part\.parquet"):
        _find_raw(tmp_path, records, weights=True)


def _run(
    spark: SparkSession, folder: Path, views: dict[str, Any], records: list[dict[str, Any]]
) -> None:
    from penstock.model.kinds import Stream  # noqa: PLC0415 - loads Spark
    from penstock.pipeline.anonymizers.blueprint import Blueprint  # noqa: PLC0415
    from penstock.pipeline.sources.event_log import TopicSource  # noqa: PLC0415
    from penstock.pipeline.views.stream_runner import StreamRunner  # noqa: PLC0415
    from penstock.pipeline.views.view_runner import ViewRunner  # noqa: PLC0415

    stream = Document("stream", "people", {"fields": FIELDS, "subject": "pid", "time": "at"})
    documents = [
        Document("view", name, {"stream": "people", **body}) for name, body in views.items()
    ]
    known = DefinitionSet.build([stream, *documents])
    topic = Topic(folder / "log")
    # Two of them are bad, so that there are dead letters which could tell too much.
    bad = {**records[0], "weight": records[0]["name"]}
    topic.append([json.dumps(record).encode() for record in records])
    topic.append([json.dumps(bad).encode(), json.dumps({**bad, "place": "Nowhere"}).encode()])
    source = TopicSource(topic)
    runner = StreamRunner(spark, known.of(Stream)["people"], source, folder / "c", 100)
    for name in views:
        runner.add(ViewRunner(spark, Blueprint.find(known, name), folder / name, bytes(32)))
    runner.catch_up()
    for name in views:
        runner.remove(name, flush=True)
    assert not runner.failures


def _check_groups(
    published: list[dict[str, Any]], table: list[Row], k: int, least: int, t: float
) -> None:
    """Count persons, values and distances in groups of equal quasi-identifiers."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in published:
        groups[row["weight"]].append(table[row["note"]])
    for members in groups.values():
        assert len({person for person, *_ in members}) >= k
        illnesses = Counter(illness for *_, illness in members)
        assert len(illnesses) >= least
        whole = Counter(illness for *_, illness in table)
        apart = sum(abs(illnesses[one] / len(members) - whole[one] / len(table)) for one in whole)
        assert apart / 2 <= t + 1e-9


def _find_raw(folder: Path, records: list[dict[str, Any]], *, weights: bool) -> None:
    needles: dict[bytes, str] = {}
    for record in records:
        for text in (record["name"], str(record["pid"]), record["place"]):
            needles[text.encode()] = text
        needles[struct.pack("<q", record["pid"])] = "pid in binary"
        if weights:
            needles[struct.pack("<d", record["weight"])] = "weight in binary"
            needles[repr(record["weight"]).encode()] = "weight as text"
    for path, content in _contents(folder):
        found = [what for needle, what in needles.items() if needle in content]
        assert not found, (path.name, found)


def _contents(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder).parts[0]
        if path.is_dir() or place == "plans":
            continue
        if place in PRIVATE:
            # Others can reach neither the file nor the folder above.
            assert not stat.S_IMODE((folder / place).stat().st_mode) & 0o077
            continue
        yield path, path.read_bytes()
        if path.suffix == ".parquet":
            plain = io.BytesIO()
            table = pyarrow.parquet.read_table(path)
            pyarrow.parquet.write_table(table, plain, compression="none", use_dictionary=False)
            yield path, plain.getvalue()
