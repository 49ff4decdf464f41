"""The index of a topic at Kafka against a plain list of all that was taken in."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.sources import kafka_index
from penstock.pipeline.sources.kafka_index import KafkaIndex

# What happens between two looks: records come, the topic is made anew, the process ends.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
        st.tuples(st.just("anew"), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
        st.tuples(st.just("forget"), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
        st.tuples(st.sampled_from(["open", "torn"]), st.just([0])),
    ),
    max_size=12,
)


Place = tuple[str, int, int]


@given(steps=STEPS, rows=st.integers(1, 8), cut=st.tuples(st.integers(0, 60), st.integers(0, 60)))
def test_every_offset_leads_to_its_place_for_good(
    steps: list[tuple[str, list[int]]], rows: int, cut: tuple[int, int]
) -> None:
    # So that joining happens at all.
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(kafka_index, "JOIN", 1)
        index = KafkaIndex(Path(folder))
        model: list[Place] = []
        name, ends = "t0", dict.fromkeys(range(len(steps[0][1]) if steps else 1), 0)
        lows = dict.fromkeys(range(3), 0)
        for number, (step, counts) in enumerate(steps):
            if step == "torn" and (Path(folder) / kafka_index.FILE).exists():
                with (Path(folder) / kafka_index.FILE).open("ab") as file:
                    file.write(b'{"first":')
            if step in {"open", "torn"}:
                index = KafkaIndex(Path(folder))
                continue
            if step == "anew":
                name, ends = f"t{number}", dict.fromkeys(range(len(counts)), 0)
                lows = dict.fromkeys(range(3), 0)
            if step == "forget":
                for partition, count in enumerate(counts):
                    lows[partition] = min(lows[partition] + count, ends.get(partition, 0))
                counts = []  # noqa: PLW2901 - nothing comes
            before = dict(ends)
            for partition, count in enumerate(counts):
                ends[partition] = ends.get(partition, 0) + count
            reached = index.take_in(name, {it: (lows[it], end) for it, end in ends.items()}, rows)
            fresh = {
                (name, it, offset) for it in ends for offset in range(before.get(it, 0), ends[it])
            }
            assert reached == len(model) + len(fresh)
            places = _places(index, len(model), reached)
            assert set(places) == fresh
            model += places
        start, end = sorted(cut)
        for held in (index, KafkaIndex(Path(folder))):
            assert held.next_offset == len(model)
            for found, place in zip(_places(held, start, end), model[start:end], strict=True):
                # What is gone stays gone, whatever its number leads to.
                assert found == place or (
                    _is_gone(found, name, lows) and _is_gone(place, name, lows)
                )


def _is_gone(place: Place, name: str, lows: dict[int, int]) -> bool:
    topic, partition, offset = place
    return topic != name or offset < lows[partition]


def _places(index: KafkaIndex, start: int, end: int) -> list[Place]:
    found = {}
    for piece in index.locate(start, end):
        for step in range(piece.end - piece.start):
            assert piece.first + step not in found
            found[piece.first + step] = (piece.topic, piece.partition, piece.start + step)
    assert sorted(found) == list(range(start, min(end, index.next_offset)))
    return [found[offset] for offset in sorted(found)]


def test_the_index_is_bounded_by_what_kafka_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_index, "JOIN", 50)
    index = KafkaIndex(tmp_path)
    looks, kept = 10 * kafka_index.JOIN, 100
    for look in range(1, looks + 1):
        low = max(0, look - kept)
        index.take_in("t", dict.fromkeys(range(3), (low, look)), 1000)
    lines = (tmp_path / kafka_index.FILE).read_bytes().count(b"\n")
    assert lines <= 2 * (kafka_index.JOIN + kept)
    assert index.next_offset == KafkaIndex(tmp_path).next_offset == 3 * looks
    newest = 3 * (looks - kept)
    assert _places(index, newest, newest + 3) == [("t", it, looks - kept) for it in range(3)]


def test_looks_that_bring_a_partition_at_a_time_are_joined(tmp_path: Path) -> None:
    index = KafkaIndex(tmp_path)
    for look in range(1, 50):
        index.take_in("t", {0: (0, 0), 1: (0, look)}, 1000)
    assert len(index._lines) == 1
    index.take_in("t", {0: (0, 3), 1: (0, 49)}, 1000)
    assert len(index._lines) == 2
    assert index.locate(49, 52) == [("t", 0, 0, 3, 49)]


def test_who_looks_changes_nothing(tmp_path: Path) -> None:
    KafkaIndex(tmp_path).take_in("t", {0: (0, 3)}, 1000)
    path = tmp_path / kafka_index.FILE
    half = path.read_bytes() + b'{"first":3'
    path.write_bytes(half)
    assert KafkaIndex(tmp_path).next_offset == 3
    assert path.read_bytes() == half
