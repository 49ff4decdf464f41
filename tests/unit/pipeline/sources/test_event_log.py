"""The event log as a source of Spark, as far as no session is needed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.errors import UnavailableError
from penstock.eventlog import Record, Topic
from penstock.eventlog.files import format_line
from penstock.pipeline.records.columns import MILLISECONDS, OFFSET, VALUE
from penstock.pipeline.sources.event_log import (
    LogReader,
    LogStreamReader,
    Position,
    TopicSource,
    count_behind,
    parse,
)
from tests.support.scale import scaled

VALUES = st.one_of(st.binary(max_size=40), st.sampled_from([b"=", b"=YQ==", b"{}"]))


def _read(batches: list[pa.RecordBatch]) -> list[tuple[int, bytes]]:
    return [(row[OFFSET], row[VALUE]) for batch in batches for row in batch.to_pylist()]


@settings(max_examples=scaled(30))
@given(values=st.lists(VALUES, min_size=1, max_size=20))
def test_any_bytes_that_the_log_takes_come_back(values: list[bytes]) -> None:
    lines = b"".join(format_line(Record(n, 7, b"key", value)) for n, value in enumerate(values))
    batches = list(parse(lines))
    assert _read(batches) == list(enumerate(values))
    assert {row[MILLISECONDS] for batch in batches for row in batch.to_pylist()} == {7}


def test_batches_are_bounded_and_can_be_read_again(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "t")
    topic.append([b"%d" % number for number in range(10)])
    reader = LogStreamReader({"folder": str(topic.folder), "rows": "3"})
    assert reader.initialOffset() == {"offset": 0}
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(3)
    end = reader.latestOffset({"offset": 2}, limit)
    assert end == {"offset": 5}
    assert reader.latestOffset({"offset": 9}, limit) == {"offset": 10}
    assert reader.latestOffset({"offset": 10}, limit) == {"offset": 10}
    assert reader.latestOffset({"offset": 2}, ReadAllAvailable()) == {"offset": 10}
    wanted = [(number, b"%d" % number) for number in range(10)]
    for _ in range(2):
        pieces = reader.partitions({"offset": 2}, end)
        assert [row for piece in pieces for row in _read(list(reader.read(piece)))] == wanted[2:5]
    reader.prepareForTriggerAvailableNow()
    topic.append([b"later"])
    assert reader.latestOffset({"offset": 9}, limit) == {"offset": 10}, "what came later can wait"
    batch = LogReader({"folder": str(topic.folder)})
    found = [row for piece in batch.partitions() for row in _read(list(batch.read(piece)))]
    assert found == [*wanted, (10, b"later")]


def test_what_the_log_has_forgotten_is_told(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "t", segment=1)
    for number in range(4):
        topic.append([b"%d" % number])
    min(topic.folder.glob("*.log")).unlink()
    reader = LogStreamReader({"folder": str(topic.folder), "rows": "9"})
    assert reader.initialOffset() == {"offset": topic.first_offset}
    source = TopicSource(topic)
    source.check(Position(tmp_path, ""))
    source.check(Position(tmp_path, '{"offset": 1}'))
    for look in (
        lambda: reader.partitions({"offset": 0}, {"offset": 4}),
        lambda: source.check(Position(tmp_path, '{"offset": 0}')),
    ):
        with pytest.raises(UnavailableError, match="has forgotten the records 0 to 0 of 't'"):
            look()


def test_how_much_is_behind_a_place(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "t")
    topic.append([b"1", b"2", b"3"])
    assert count_behind(topic, "") == 3
    assert count_behind(topic, '{"offset": 1}') == 2
