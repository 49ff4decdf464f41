"""CASTLE against its definition, read off the paper's rules with lists and no arrays.

The model decides for itself which cluster a tuple joins and what becomes of one that is due. How
a large cluster is split, and which of several boxes is drawn, is chance: there it follows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.masks.anonymity.castle import CastleAnonymizer
from penstock.masks.anonymity.domains import NumberDomain
from penstock.masks.anonymity.publication import NONE, Release, StreamParameters
from penstock.masks.anonymity.stream import open_stream

HIGH = 64.0  # a power of two: all losses are exact, so that equal ones are equal
Box = tuple[tuple[float, float], ...]
Tuples = list[tuple[tuple[float, float], int]]


def _loss(box: Box) -> float:
    return sum((high - low) / HIGH for low, high in box) / len(box)


def _join(one: Box, other: Box) -> Box:
    both = zip(one, other, strict=True)
    return tuple((min(a[0], b[0]), max(a[1], b[1])) for a, b in both)


class Watched(CastleAnonymizer):
    """Tells each of its decisions by itself."""

    def __init__(self, parameters: StreamParameters) -> None:
        super().__init__(parameters)
        self.seen: list[Release] = []

    def _expire(self, position: int) -> list[Release]:
        made = super()._expire(position)
        self.seen += made
        return made


class Cluster:
    def __init__(self, point: Box) -> None:
        self.box = point
        self.members: list[int] = []


class Model:
    """Γ, Ω and τ in plain sight."""

    def __init__(self, tuples: Tuples, k: int, delta: int, beta: int, mu: int) -> None:
        self.tuples, self.k, self.delta, self.beta, self.mu = tuples, k, delta, beta, mu
        self.clusters: list[Cluster] = []
        self.omega: list[Box] = []
        self.losses: list[float] = []
        self.next = 0

    def point(self, position: int) -> Box:
        return tuple((value, value) for value in self.tuples[position][0])

    def size(self, cluster: Cluster) -> int:
        return len({self.tuples[it][1] for it in cluster.members})

    def append(self) -> None:
        point, tau = self.point(self.next), self.tau()
        chosen = None
        if self.clusters:
            grown = [_loss(_join(it.box, point)) - _loss(it.box) for it in self.clusters]
            near = [it for it, by in zip(self.clusters, grown, strict=True) if by == min(grown)]
            fine = [it for it in near if _loss(_join(it.box, point)) <= tau]
            if fine or len(self.clusters) >= self.beta:
                chosen = min(fine or near, key=self.size)
        if chosen is None:
            chosen = Cluster(point)
            self.clusters.append(chosen)
        chosen.box = _join(chosen.box, point)
        chosen.members.append(self.next)
        self.next += 1

    def tau(self) -> float:
        recent = self.losses[-self.mu :]
        return float(np.mean(recent)) if recent else 0.0

    def oldest(self) -> int | None:
        held = [it for cluster in self.clusters for it in cluster.members]
        return min(held, default=None)

    def decide(self, position: int) -> tuple[str, list[int]]:
        """Return what becomes of a tuple that is due, and of whom else."""
        cluster = next(it for it in self.clusters if position in it.members)
        if self.size(cluster) >= self.k:
            return "publish", sorted(cluster.members)
        point = self.point(position)
        if any(_join(box, point) == box for box in self.omega):
            return "reuse", [position]
        larger = sum(self.size(it) > self.size(cluster) for it in self.clusters)
        everybody = {self.tuples[it][1] for one in self.clusters for it in one.members}
        if larger > len(self.clusters) / 2 or len(everybody) < self.k:
            return "suppress", [position]
        while self.size(cluster) < self.k:
            others = [it for it in self.clusters if it is not cluster]
            nearest = min(others, key=lambda it: _loss(_join(it.box, cluster.box)))
            cluster.box = _join(cluster.box, nearest.box)
            cluster.members += nearest.members
            self.clusters.remove(nearest)
        return "publish", sorted(cluster.members)

    def follow(self, gone: list[int], boxes: list[Box]) -> None:
        """Let tuples go; `boxes` are those of new groups."""
        for cluster in list(self.clusters):
            cluster.members = [it for it in cluster.members if it not in gone]
            if not cluster.members:
                self.clusters.remove(cluster)
                continue
            cluster.box = self.point(cluster.members[0])
            for position in cluster.members:
                cluster.box = _join(cluster.box, self.point(position))
        self.losses += map(_loss, boxes)
        self.omega += [box for box in boxes if _loss(box) < self.tau()]
        self.omega = self.omega[-self.beta :]


def _describe(release: Release) -> tuple[str, list[int]]:
    if release.suppressed.all():
        return "suppress", release.positions.tolist()
    return "reuse" if release.reused.any() else "publish", sorted(release.positions.tolist())


def _boxes(release: Release) -> list[Box]:
    pairs = zip(release.boxes.lows.T.tolist(), release.boxes.highs.T.tolist(), strict=True)
    return [tuple(zip(*pair, strict=True)) for pair in pairs]


numbers = st.integers(0, 64).map(float)


@given(
    tuples=st.lists(st.tuples(st.tuples(numbers, numbers), st.integers(1, 9)), max_size=60),
    k=st.integers(1, 4),
    delta=st.integers(4, 25),
    beta=st.integers(1, 5),
)
def test_every_decision_is_that_of_the_definition(
    tuples: Tuples, k: int, delta: int, beta: int
) -> None:
    domains = [NumberDomain("x", 0, HIGH), NumberDomain("y", 0, HIGH)]
    mu = 1  # the mean of one loss is exact
    parameters = StreamParameters(
        domains, k=k, delta=delta, beta=beta, mu=mu, algorithm="castle", seed=5
    )
    stream, model = Watched(parameters), Model(tuples, k, delta, beta, mu)

    def compare() -> None:
        for release in stream.seen:
            due = model.oldest()
            assert due is not None
            expected = model.decide(due)
            found = _describe(release)
            assert found == expected
            new = _boxes(release) if found[0] == "publish" else []
            if found[0] == "publish" and len(new) == 1:
                held = next(it for it in model.clusters if due in it.members)
                assert new == [held.box]
            model.follow(found[1], new)
        stream.seen.clear()

    for code, person in tuples:
        stream.feed(np.array([code]).T, np.array([person]))
        model.append()
        compare()
        held = sorted(it for cluster in model.clusters for it in cluster.members)
        assert stream.held_positions.tolist() == held
        clusters = sorted(sorted(it.positions) for it in stream._clusters.values())
        assert clusters == sorted(sorted(it.members) for it in model.clusters)
    stream.flush()
    compare()
    assert model.oldest() is None


def test_the_default_loses_less_than_castle() -> None:
    generator = np.random.default_rng(11)
    count = 6000
    codes = np.array(
        [
            generator.normal(40, 15, count).clip(0, 100),
            generator.exponential(8, count).clip(0, 100),
            np.where(generator.random(count) < 0.8, 0.0, generator.uniform(0, 100, count)),
        ]
    )
    domains = [NumberDomain(name, 0, 100) for name in ("age", "weight", "gain")]
    losses = {}
    for algorithm in ("partition", "castle"):
        given_: dict[str, Any] = {"algorithm": algorithm}
        stream = open_stream(StreamParameters(domains, k=20, delta=1000, **given_))
        done = [stream.feed(codes, np.arange(count)), stream.flush()]
        release = Release.join(len(domains), done)
        assert sorted(release.positions.tolist()) == list(range(count))
        groups = np.bincount(release.places[(release.places != NONE) & ~release.reused])
        assert groups[groups > 0].min() >= 20
        losses[algorithm] = release.total_loss() / count
    assert losses["partition"] < losses["castle"] < 0.5


def test_what_leaves_in_one_call_is_in_an_order_of_chance() -> None:
    parameters = StreamParameters(
        [NumberDomain("x", 0, HIGH)], k=2, delta=20, algorithm="castle", seed=1
    )
    # One person fills no group: each tuple leaves by itself.
    alone = CastleAnonymizer(parameters).feed(np.zeros((1, 200)), np.zeros(200, dtype=np.int64))
    assert alone.suppressed.all()
    steps = np.diff(alone.positions)
    assert 0.35 < (steps > 0).mean() < 0.65
    again = CastleAnonymizer(parameters).feed(np.zeros((1, 200)), np.zeros(200, dtype=np.int64))
    assert again.positions.tolist() == alone.positions.tolist(), "a replay publishes the same"
