from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PenstockError, UsageError
from penstock.eventlog import EventLog, Topic
from penstock.eventlog.files import DamagedLogError, parse_line
from penstock.json_text import ERASED
from tests.support.scale import scaled


def _values(topic: Topic, start: int = 0) -> list[bytes]:
    return [record.value for record in topic.read(start)]


def test_records_come_back_in_order_with_their_offsets(tmp_path: Path) -> None:
    topic = EventLog(tmp_path).topic("patients")
    assert topic.next_offset == 0
    assert topic.append([b"a", b"b"], [b"k", b""], milliseconds=5) == range(2)
    assert topic.append([b"c"]) == range(2, 3)
    assert topic.append([]) == range(3, 3)
    assert [tuple(record)[:1] + tuple(record)[2:] for record in topic.read()] == [
        (0, b"k", b"a"),
        (1, b"", b"b"),
        (2, b"", b"c"),
    ]
    assert next(iter(topic.read())).milliseconds == 5
    assert _values(topic, 1) == [b"b", b"c"]
    assert [record.value for record in topic.read(1, 1)] == [b"b"]
    assert EventLog(tmp_path).topics() == ["patients"]


def test_what_a_stopped_writer_left_is_cut_off(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "t")
    topic.append([b"a", b"b"])
    (path,) = (tmp_path / "t").glob("*.log")
    with path.open("ab") as file:
        file.write(b"2\t77\t\thalf of a rec")
    assert _values(topic) == [b"a", b"b"]
    assert topic.next_offset == 2
    assert topic.append([b"c"]) == range(2, 3)
    assert _values(topic) == [b"a", b"b", b"c"]


def test_what_is_too_long_is_refused_and_nothing_else(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "t")
    with pytest.raises(UsageError, match="too long"):
        topic.append([b"fine", b"x" * (1 << 20) + b"x"])
    with pytest.raises(UsageError, match="too long"):
        topic.append([b"fine"], [b"k" * 5000])
    assert topic.next_offset == 0
    longest = b"\0" * (1 << 20)
    topic.append([longest, b"=", b"last"], [b"\n" * (1 << 12), b"=\t", b""])
    assert _values(topic) == [longest, b"=", b"last"]
    assert _values(topic, 2) == [b"last"]
    assert [record.key for record in topic.read(1)] == [b"=\t", b""]


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc"])
def test_names_that_lead_elsewhere_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="not a name for a topic"):
        EventLog(tmp_path).topic(name)


def test_a_damaged_line_is_told(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "t")
    topic.append([b"a"])
    (path,) = (tmp_path / "t").glob("*.log")
    path.write_bytes(b"rubbish\n")
    with pytest.raises(DamagedLogError):
        topic.append([b"b"])


def _append_many(folder: str, mark: bytes) -> None:
    for number in range(10):
        Topic(Path(folder)).append([b"%b%d" % (mark, number)] * 3)


def test_several_processes_append_without_gaps(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=_append_many, args=(str(tmp_path / "t"), mark))
        for mark in (b"a", b"b")
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    records = list(Topic(tmp_path / "t").read())
    assert [record.offset for record in records] == list(range(60))
    for mark in (b"a", b"b"):
        own = [record.value for record in records if record.value.startswith(mark)]
        assert own == [b"%b%d" % (mark, number) for number in range(10) for _ in range(3)]


@settings(max_examples=scaled(50))
@given(
    batches=st.lists(
        st.lists(
            st.one_of(
                # What begins as an erased record does reads as one.
                st.binary(max_size=60).filter(lambda it: not it.startswith(ERASED)),
                st.sampled_from([b"=", b"=YQ==", b""]),
            )
        ),
        max_size=8,
    ),
    segment=st.integers(1, 200),
    size=st.integers(1, 300),
    data=st.data(),
)
def test_any_stretch_is_found_again(
    batches: list[list[bytes]],
    segment: int,
    size: int,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    topic = Topic(tmp_path_factory.mktemp("log") / "t", segment=segment)
    for batch in batches:
        topic.append(batch)
    wanted = [value for batch in batches for value in batch]
    start = data.draw(st.integers(0, len(wanted) + 1))
    end = data.draw(st.integers(0, len(wanted) + 1))
    pieces = b"".join(piece.read() for piece in topic.slices(start, end, size))
    lines = pieces.split(b"\n")[:-1]
    assert [parse_line(line).value for line in lines] == wanted[start:end]
    assert _values(topic, start) == wanted[start:]
