"""Sources that the driver answers for, with a real Spark: each class of Spark's that they use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from penstock.eventlog import Topic
from penstock.pipeline.records.columns import MILLISECONDS, OFFSET, VALUE
from penstock.pipeline.sources.driver import Offset, read_batch, read_stream
from penstock.pipeline.sources.event_log import LogReader, TopicSource, split_lines
from penstock.pipeline.views.signals import NOTHING, Signals, read_signals, save_numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.needs("java")

VALUES = [
    b"{}",
    b"",
    b"=",
    b"=YQ==",
    b"a\tb\nc\r\n",
    b"\r",
    b"\x00\xff\xfe",
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    "é€😀 \u2028\x85".encode(),
    b" x ",
    b'"\\"',
    b"y" * 300_000,
]
KEYS = [b"", b"key", b"=", b"a\tb", b"\xff"]


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    # A name that a URL and a pattern would have to escape; several files, pieces within a file.
    made = Topic(tmp_path / "a topic%20{b}[c]*", segment=700_000)
    for number in range(4):
        made.append(VALUES, [KEYS[(number + it) % len(KEYS)] for it in range(len(VALUES))])
    return made


def _read(frame: DataFrame) -> list[tuple[int, int, bytes]]:
    rows = frame.select(f"`{OFFSET}`", f"`{MILLISECONDS}`", f"`{VALUE}`").collect()
    return sorted((row[0], row[1], bytes(row[2])) for row in rows)


def _wanted(topic: Topic) -> list[tuple[int, int, bytes]]:
    return [(it.offset, it.milliseconds, it.value) for it in topic.read(0, topic.next_offset)]


def _run(frame: DataFrame, checkpoint: Path, take: Callable[[DataFrame, int], Any]) -> None:
    query = (
        frame.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_any_bytes_that_the_log_takes_come_back(spark: SparkSession, topic: Topic) -> None:
    assert [value for _, _, value in _wanted(topic)] == VALUES * 4
    assert _read(TopicSource(topic).read(spark)) == _wanted(topic)


@pytest.mark.parametrize("piece", [1, 40, 1_000, 400_000])
def test_pieces_of_files_hold_each_line_once(
    spark: SparkSession, topic: Topic, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.sources.event_log.PIECE", piece)
    reader = LogReader(topic)
    assert len(reader.plan({"offset": 0}, {"offset": topic.next_offset})) >= 3
    assert _read(split_lines(read_batch(spark, reader))) == _wanted(topic)


def test_a_stream_has_the_batches_that_its_checkpoint_says(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    found: dict[int, list[tuple[int, int, bytes]]] = {}
    frame = TopicSource(topic).read_stream(spark, 7)
    _run(frame, tmp_path / "checkpoint", lambda it, number: found.update({number: _read(it)}))
    assert [row for _, rows in sorted(found.items()) for row in rows] == _wanted(topic)
    assert {len(rows) for rows in found.values()} <= {7, topic.next_offset % 7}

    before = dict(found)
    topic.append([b"later"])
    _run(frame, tmp_path / "checkpoint", lambda it, number: found.update({number: _read(it)}))
    assert found == {**before, len(before): _wanted(topic)[-1:]}

    # As after a kill before Spark noted the last batch: it has the same records once more.
    last = len(before)
    for path in (tmp_path / "checkpoint" / "commits").glob(f"*{last}*"):
        path.unlink()
    found.clear()
    topic.append([b"not yet"])
    _run(frame, tmp_path / "checkpoint", lambda it, number: found.update({number: _read(it)}))
    assert [value for _, _, value in found[last]] == [b"later"]
    assert [value for _, _, value in found[last + 1]] == [b"not yet"]


def test_signals_come_with_the_batch_that_noted_them(spark: SparkSession, tmp_path: Path) -> None:
    folder, numbers = tmp_path / "signals", list(range(-2, 5_000))
    digest = _save(folder, numbers)
    told = iter(
        [
            {**NOTHING, "order": 1, "opted_out": digest},
            {**NOTHING, "order": 2, "opted_out": digest, "clock": 12, "flush": True},
            {**NOTHING, "order": 3, "erased": [-5, 6]},
        ]
    )
    asked: list[Offset] = []

    def answer(before: Offset) -> Offset:
        asked.append(before)
        return next(told, before)

    found: list[list[Any]] = []
    _run(
        read_signals(spark, Signals(folder, answer)),
        tmp_path / "checkpoint",
        lambda it, _: found.append([tuple(row) for row in it.collect()]),
    )
    assert found == [
        [(1, numbers, None, None, False)],
        [(2, None, None, 12, True)],
        [(3, [], [-5, 6], None, False)],
    ]
    assert asked[0] == NOTHING
    assert [it["order"] for it in asked] == [0, 1, 2, 3]


def _save(folder: Path, numbers: list[int]) -> str:
    import numpy as np  # noqa: PLC0415

    return save_numbers(folder, np.array(numbers, dtype=np.int64))


def test_an_error_ends_the_query_and_is_not_quoted(spark: SparkSession, tmp_path: Path) -> None:
    def answer(before: Offset) -> Offset:
        message = f"rosa said {before}"
        raise ValueError(message)

    frame = read_stream(spark, Signals(tmp_path, answer))
    with pytest.raises(StreamingQueryException, match="ValueError") as raised:
        _run(frame, tmp_path / "checkpoint", lambda it, _: it.count())
    assert "rosa" not in str(raised.value)
