"""The event log as a source of Spark, as far as no session is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import UnavailableError
from penstock.eventlog import Topic
from penstock.pipeline.sources.event_log import LogReader, Position, TopicSource


def test_batches_are_bounded_and_can_be_read_again(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "t")
    topic.append([b"%d" % number for number in range(10)])
    reader = LogReader(topic, 3)
    assert reader.first() == {"offset": 0}
    end = reader.latest({"offset": 2})
    assert end == {"offset": 5}
    assert reader.latest({"offset": 9}) == {"offset": 10}
    assert reader.latest({"offset": 10}) == {"offset": 10}
    assert LogReader(topic, 0).latest({"offset": 2}) == {"offset": 2}
    assert LogReader(topic).latest({"offset": 2}) == {"offset": 10}
    assert LogReader(topic, 3, '{"offset": 7}').first() == {"offset": 7}
    for _ in range(2):
        lines = b"".join(piece.read() for piece in reader.plan({"offset": 2}, end))
        assert [line.split(b"\t")[3] for line in lines.splitlines()] == [b"2", b"3", b"4"]
    reader.bound()
    topic.append([b"later"])
    assert reader.latest({"offset": 9}) == {"offset": 10}, "what came later can wait"
    assert LogReader(topic).latest({"offset": 9}) == {"offset": 11}


def test_what_the_log_has_forgotten_is_told(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "t", segment=1)
    for number in range(4):
        topic.append([b"%d" % number])
    min(topic.folder.glob("*.log")).unlink()
    reader = LogReader(topic, 9)
    assert reader.first() == {"offset": 0}
    source = TopicSource(topic)
    source.check(Position(tmp_path, '{"offset": 1}'))
    assert source.count_behind(Position(tmp_path, "")) == 3
    for look in (
        lambda: reader.plan({"offset": 0}, {"offset": 4}),
        lambda: source.check(Position(tmp_path, '{"offset": 0}')),
        lambda: source.check(Position(tmp_path, "")),
        source.check_whole,
    ):
        with pytest.raises(UnavailableError, match="has forgotten the records 0 to 0 of 't'"):
            look()


def test_how_much_is_behind_a_place(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "t")
    topic.append([b"1", b"2", b"3"])
    source = TopicSource(topic)
    assert source.count_behind(Position(tmp_path, "")) == 3
    assert source.count_behind(Position(tmp_path, '{"offset": 1}')) == 2
