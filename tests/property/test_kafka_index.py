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
        st.tuples(st.sampled_from(["open", "torn"]), st.just([0])),
    ),
    max_size=12,
)


@given(steps=STEPS, rows=st.integers(1, 8), cut=st.tuples(st.integers(0, 60), st.integers(0, 60)))
def test_every_offset_leads_to_its_place_for_good(
    steps: list[tuple[str, list[int]]], rows: int, cut: tuple[int, int]
) -> None:
    # So that joining happens at all.
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(kafka_index, "JOIN", 1)
        index = KafkaIndex(Path(folder))
        model: list[tuple[str, int, int]] = []
        name, ends = "t0", dict.fromkeys(range(len(steps[0][1]) if steps else 1), 0)
        for number, (step, counts) in enumerate(steps):
            if step == "torn" and (Path(folder) / kafka_index.FILE).exists():
                with (Path(folder) / kafka_index.FILE).open("ab") as file:
                    file.write(b'{"first":')
            if step in {"open", "torn"}:
                index = KafkaIndex(Path(folder))
                continue
            if step == "anew":
                name, ends = f"t{number}", dict.fromkeys(range(len(counts)), 0)
            before = dict(ends)
            for partition, count in enumerate(counts):
                ends[partition] = ends.get(partition, 0) + count
            reached = index.take_in(name, {it: (0, end) for it, end in ends.items()}, rows)
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
            assert _places(held, start, end) == model[start:end]


def _places(index: KafkaIndex, start: int, end: int) -> list[tuple[str, int, int]]:
    found = {}
    for piece in index.locate(start, end):
        for step in range(piece.end - piece.start):
            assert piece.first + step not in found
            found[piece.first + step] = (piece.topic, piece.partition, piece.start + step)
    assert sorted(found) == list(range(start, min(end, index.next_offset)))
    return [found[offset] for offset in sorted(found)]
