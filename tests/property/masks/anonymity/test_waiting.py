"""A longest wait by the clock, against a plain model: no group too small, no tuple too late.

The model knows when each tuple came in. It looks at labels and at who left when.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.masks.anonymity.domains import CategoryDomain, NumberDomain
from penstock.masks.anonymity.publication import NONE, Release, StreamParameters
from penstock.masks.anonymity.rules import DistinctDiversity, EntropyDiversity
from penstock.masks.anonymity.stream import TupleAnonymizer, open_stream

ILLNESS = CategoryDomain.flat("illness", ["asthma", "covid", "flu"])
VARIANTS: list[dict[str, Any]] = [
    {},
    {"outliers": "root"},
    {"algorithm": "castle"},
    {"algorithm": "castle", "outliers": "root"},
    {"rules": [DistinctDiversity(0, ILLNESS, 2)], "outliers": "root"},
    {"rules": [EntropyDiversity(0, ILLNESS, 1.8)]},
]


@dataclass(frozen=True)
class Batch:
    """Some tuples, and how far the clock moved since the last."""

    after: int
    tuples: list[tuple[int, int, int]]  # age, person, illness


batches = st.lists(
    st.builds(
        Batch,
        st.integers(-3, 25),
        st.lists(
            st.tuples(st.integers(0, 100), st.integers(1, 14), st.integers(0, 2)), max_size=15
        ),
    ),
    max_size=14,
)


class Model:
    """What came in when, what left, and who was published under which labels."""

    def __init__(self, parameters: StreamParameters) -> None:
        self.parameters = parameters
        self.tuples: list[tuple[int, int, int]] = []
        self.waiting: dict[int, int] = {}
        self.persons: dict[str, set[int]] = defaultdict(set)
        self.illnesses: dict[str, set[int]] = defaultdict(set)

    def take(self, batch: Batch, now: int) -> None:
        for one in batch.tuples:
            self.waiting[len(self.tuples)] = now
            self.tuples.append(one)

    def leave(self, release: Release) -> None:
        (labels,) = self.parameters.space.labels(release.boxes.lows, release.boxes.highs)
        members: dict[int, list[int]] = defaultdict(list)
        for position, place in zip(
            release.positions.tolist(), release.places.tolist(), strict=True
        ):
            del self.waiting[position]  # raises, if it left before
            if place != NONE:
                members[place].append(position)
        for place, positions in members.items():
            for position in positions:
                age, person, illness = self.tuples[position]
                label = str(labels[place])
                low, _, high = label.strip("[]").partition(" - ")
                assert float(low) <= age <= float(high or low)
                self.persons[label].add(person)
                self.illnesses[label].add(illness)
        k, rules = self.parameters.demands.k, self.parameters.demands.rules
        assert all(len(them) >= k for them in self.persons.values())
        assert not rules or all(len(them) >= 2 for them in self.illnesses.values())


def _feed(stream: TupleAnonymizer, batch: Batch, now: int) -> Release:
    table = np.array(batch.tuples, dtype=np.int64).reshape(-1, 3)
    return stream.feed(table[:, :1].T.astype(np.float64), table[:, 1], table[:, 2:].T, now=now)


@given(
    batches=batches,
    k=st.integers(2, 5),
    delta=st.integers(5, 60),
    wait=st.integers(1, 40),
    variant=st.sampled_from(VARIANTS),
    beta=st.integers(1, 6),
)
def test_nobody_waits_too_long_and_no_group_is_too_small(
    batches: list[Batch], k: int, delta: int, wait: int, variant: dict[str, Any], beta: int
) -> None:
    parameters = StreamParameters(
        [NumberDomain("age", 0, 100)],
        k=k,
        delta=delta,
        beta=beta,
        sensitive=[ILLNESS],
        max_wait=wait,
        seed=3,
        **variant,
    )
    model, stream, now = Model(parameters), open_stream(parameters), 1000
    for batch in batches:
        now += batch.after
        model.take(batch, now)
        model.leave(_feed(stream, batch, now))
        # Set back, a clock lets nobody wait for longer than from now on.
        model.waiting = {place: min(since, now) for place, since in model.waiting.items()}
        assert sorted(model.waiting) == stream.held_positions.tolist()
        assert all(now - since < wait for since in model.waiting.values())
        expected = min(model.waiting.values()) + wait if model.waiting else None
        assert stream.due == expected
        state = stream.to_bytes()
        stream = open_stream(parameters, state)
        assert stream.to_bytes() == state
    if stream.due is not None:
        model.leave(_feed(stream, Batch(0, []), now + wait))
        assert not model.waiting, "the clock alone lets all of them leave"
    model.leave(stream.flush())
    assert not model.waiting


@given(batches=batches, algorithm=st.sampled_from(["partition", "castle"]))
def test_a_clock_that_stands_still_changes_nothing(batches: list[Batch], algorithm: Any) -> None:
    domain = [NumberDomain("age", 0, 100)]
    given_: dict[str, Any] = {"k": 3, "delta": 20, "sensitive": [ILLNESS], "algorithm": algorithm}
    streams = [
        open_stream(StreamParameters(domain, **given_)),
        open_stream(StreamParameters(domain, max_wait=5, **given_)),
    ]
    for batch in batches:
        one, other = (_feed(stream, batch, 7) for stream in streams)
        assert one.positions.tolist() == other.positions.tolist()
        assert one.places.tolist() == other.places.tolist()
