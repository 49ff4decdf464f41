"""After an erasure no byte of the person is left, and everybody else is as before.

The model is a list of rows: those of the person go, whatever the person is called.
"""

from __future__ import annotations

import csv
import json
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.document import Document
from penstock.rights.dispatch.message import Outcome
from penstock.rights.erasure.scan import make_pattern
from penstock.store.database import Database
from tests.support.rights.erasing import STREAM, Installation

# Names that contain each other, with wildcards, separators, quotes and line ends in them.
NAMES = [
    "ann", "anna", "an", "a", "ann/1", "ann+", "#", "*", "%", "ann.*", "ann\tb", "ann\nb", "ann=",
    "=ann", '"ann"', "ann\\", "Ann", "ånn", "~erased~", "1", "{}", "a,b", "ann@", "null",
]  # fmt: skip
STRUCTURAL = {"1", "~erased~", "=", "{}", "null", "a,b"}
FORMATS = ["parquet", "json", "csv", "avro", "delta", "topic"]
ROWS = st.lists(
    st.fixed_dictionaries(
        {"pid": st.sampled_from(NAMES), "ward": st.sampled_from(["north", "w;2", "é"]),
         "pulse": st.integers(0, 300)}
    ),
    max_size=30,
)  # fmt: skip


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    path = tmp_path_factory.mktemp("store") / "penstock.db"
    with Database.open(f"sqlite:///{path}") as opened:
        yield opened


@given(
    rows=ROWS, person=st.sampled_from(NAMES), cut=st.integers(0, 30), form=st.sampled_from(FORMATS)
)
def test_the_rows_of_a_person_go_and_all_others_stay(
    database: Database, rows: list[dict[str, Any]], person: str, cut: int, form: str
) -> None:
    view = Document("view", "all", {"stream": "vitals", "format": form})
    key = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        place = Installation(folder, database, Document("stream", "vitals", STREAM), view)
        data = place.config.pipeline.folder / "all" / "data"
        data.mkdir(parents=True)
        for part in (rows[:cut], rows[cut:]):
            place.record("vitals", *part)
            publish(place, form, data, part)
        assert place.erase(person, key).outcome is Outcome.DONE
        others = [row for row in rows if row["pid"] != person]
        log = place.events.topic("vitals")
        assert [json.loads(it.value) for it in log.read()] == others
        assert [it.offset for it in log.read(erased=True)] == list(range(len(rows)))
        assert in_order(published(place, form, data)) == in_order(others)
        check_bytes(folder, person, others)
        proof = place.evidence(person, key)
        assert proof.is_intact
        counts = {it["place"]: it for it in proof.content["erased"]}
        assert counts["event log of vitals"]["records"] == len(rows) - len(others)


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def publish(place: Installation, form: str, data: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as a view does."""
    if not rows:
        return
    table, number = pa.Table.from_pylist(rows), len(list(data.iterdir()))
    path = data / f"{number:012}-000.{form}"
    if form == "parquet":
        pyarrow.parquet.write_table(table, path)
    elif form == "json":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    elif form == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(
                file, rows[0], escapechar="\\", doublequote=False, lineterminator="\n"
            )
            writer.writeheader()
            writer.writerows(rows)
    elif form == "avro":
        schema = {
            "type": "record", "name": "View",
            "fields": [{"name": "pid", "type": "string"}, {"name": "ward", "type": "string"},
                       {"name": "pulse", "type": "int"}],
        }  # fmt: skip
        with path.open("wb") as file:
            fastavro.writer(file, schema, rows, codec="deflate")
    elif form == "delta":
        write_deltalake(data, table, mode="append")
    else:
        place.record("vitals-all", *rows)


def published(place: Installation, form: str, data: Path) -> list[dict[str, Any]]:
    """Read rows as readers do."""
    if form == "topic":
        return [json.loads(it.value) for it in place.events.topic("vitals-all").read()]
    if form == "delta":
        known = DeltaTable.is_deltatable(str(data))
        return DeltaTable(data).to_pyarrow_table().to_pylist() if known else []
    found: list[dict[str, Any]] = []
    for path in sorted(data.glob(f"*.{form}")):
        if form == "parquet":
            found += pyarrow.parquet.read_table(path).to_pylist()
        elif form == "json":
            found += [json.loads(line) for line in path.read_text().splitlines()]
        elif form == "avro":
            with path.open("rb") as file:
                found += list(fastavro.reader(file))  # type: ignore[arg-type]
        else:
            with path.open(newline="") as text:
                rows = csv.DictReader(text, escapechar="\\", doublequote=False)
                found += [{**row, "pulse": int(row["pulse"])} for row in rows]
    return found


def check_bytes(folder: Path, person: str, others: list[dict[str, Any]]) -> None:
    """No file holds the name as a word, unless it stands in somebody else's row, or means more."""
    pattern = make_pattern(person)
    told = json.dumps(others, ensure_ascii=False) + "".join(row["pid"] for row in others)
    if person in STRUCTURAL or pattern.search(told.encode()):
        return
    texts = [*folder.rglob("*.log"), *folder.rglob("data/*.json"), *folder.rglob("data/*.csv")]
    for path in texts:
        assert not pattern.search(path.read_bytes()), path.name
