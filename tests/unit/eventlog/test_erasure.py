"""Records of a person leave the event log; places, lengths and everybody else stay."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.eventlog import Record, Topic
from penstock.eventlog.erasure import LogErasure, erase, make_placeholder
from penstock.eventlog.files import MarkedTopic, format_line, parse_line
from penstock.json_text import ERASED


def of(person: str) -> bytes:
    return json.dumps({"pid": person, "pulse": 70}).encode()


def is_about(person: str) -> Callable[[Record], bool]:
    return lambda record: json.loads(record.value).get("pid") == person


def run(topic: Topic, person: str) -> LogErasure:
    return erase(
        topic, is_about(person), person, needle=person.encode(), keep=lambda: None
    )  # fmt: skip


def test_a_record_leaves_a_placeholder_that_readers_pass_over(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "t", segment=200)
    for number in range(10):
        who = "ann" if number % 3 == 0 else "anna"
        topic.append([of(who)], [who.encode()])
    before = {path.name: path.stat().st_size for path in topic.segments()}
    kept = [record for record in topic.read() if record.key == b"anna"]
    made = run(topic, "ann")
    assert (made.records, made.through) == (4, 10)
    assert {path.name: path.stat().st_size for path in topic.segments()} == before
    assert list(topic.read()) == kept
    places = list(topic.read(erased=True))
    assert [record.offset for record in places] == list(range(10))
    assert [record.key for record in places if record.is_erased] == [b""] * 4
    text = b"".join(path.read_bytes() for path in topic.segments())
    assert b'"ann"' not in text
    assert topic.append([of("eve")]) == range(10, 11)
    assert run(topic, "ann").records == 0


def test_a_slice_that_was_planned_before_still_reads_whole_lines(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "t")
    topic.append([of("ann" if number % 2 else "bob") for number in range(20)])
    pieces = topic.slices(0, 20, size=100)
    run(topic, "ann")
    records = [parse_line(line) for piece in pieces for line in piece.read().splitlines()]
    assert [record.offset for record in records] == list(range(20))
    assert [record.is_erased for record in records] == [False, True] * 10


def test_other_spellings_of_a_name_are_found(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "t")
    escaped = b'{"pid": "\\u0061nn", "pulse": 1}'
    topic.append([escaped, b'{"pid": "ann",\n"pulse": 2}', of("bob")])
    assert run(topic, "ann").records == 2
    assert [json.loads(record.value)["pid"] for record in topic.read()] == ["bob"]


def test_half_a_line_of_a_stopped_writer_goes_too(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "t")
    topic.append([of("bob")])
    (path,) = topic.segments()
    with path.open("ab") as file:
        file.write(b'1\t77\tann\t{"pid": "ann", ')
    run(topic, "ann")
    assert b"ann" not in path.read_bytes()


def test_a_copy_that_somebody_was_killed_over_is_removed(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "t")
    topic.append([of("ann"), of("bob")])

    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        erase(topic, is_about("ann"), "ann", needle=None, keep=stop)
    assert len(list(topic.read())) == 2
    (topic.folder / ".erasing").write_bytes(of("ann"))
    run(topic, "ann")
    assert not (topic.folder / ".erasing").exists()


def test_nothing_that_is_appended_meanwhile_is_lost(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "t", segment=5_000)
    topic.append([of("ann")] * 50)
    done = threading.Event()

    def write() -> None:
        for number in range(200):
            Topic(topic.folder, segment=5_000).append([of(f"p{number}"), of("ann")])
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not done.is_set():
        run(topic, "ann")
    thread.join()
    run(topic, "ann")
    assert [json.loads(it.value)["pid"] for it in topic.read()] == [f"p{n}" for n in range(200)]
    assert topic.next_offset == 450


def test_two_who_erase_at_once_do_not_undo_each_other(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "t", segment=2_000)
    people = [f"p{number}" for number in range(8)]
    for _ in range(40):
        topic.append([of(person) for person in people])
    threads = [threading.Thread(target=run, args=(topic, person)) for person in people[:6]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {json.loads(it.value)["pid"] for it in topic.read()} == {"p6", "p7"}
    assert topic.next_offset == 320


def test_a_chunk_that_is_written_again_finds_what_arrived(tmp_path: Path) -> None:
    topic = Topic(tmp_path / "t")
    note = tmp_path / "feed.json"
    marked = MarkedTopic(topic, note)
    marked._keep(begun=0)  # a crash came between the append and the note
    key = b"feed@"
    topic.append([of("ann"), of("bob")], [key, key])
    run(topic, "ann")
    MarkedTopic(topic, note).write([of("ann"), of("bob"), of("eve")], b"1")
    assert [json.loads(it.value)["pid"] for it in topic.read()] == ["bob", "eve"]


@pytest.mark.parametrize("value", [b"", b"1", b"x" * 7, b"x" * 8, b"x" * 500, b"\n" * 3])
def test_a_placeholder_is_as_long_as_the_line(value: bytes) -> None:
    line = format_line(Record(7, 1_700_000_000_000, b"k", value))
    for key in (b"k", b"other"):
        made = make_placeholder(line, key)
        assert len(made) == len(line)
        record = parse_line(made)
        assert record.is_erased
        assert (record.offset, record.key) == (7, b"" if key == b"k" else b"k")
    assert Record(0, 0, b"", ERASED + b" x").is_erased is False
