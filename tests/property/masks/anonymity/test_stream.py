"""Random streams, parameters and chunkings: what leaves keeps every promise.

The checker is a plain model: it looks only at labels as published, at the raw records, and at
when they left.
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.masks.anonymity.domains import CategoryDomain, Floats, Integers, NumberDomain
from penstock.masks.anonymity.publication import Release, StreamParameters
from penstock.masks.anonymity.rules import (
    Closeness,
    Distance,
    DistinctDiversity,
    EntropyDiversity,
    GroupRule,
    RecursiveDiversity,
)
from penstock.masks.anonymity.stream import open_stream
from tests.support.scale import scaled

PATHS = {
    "Berlin": ("Germany", "Europe", "*"),
    "Potsdam": ("Germany", "Europe", "*"),
    "Paris": ("France", "Europe", "*"),
    "Lima": ("America", "*"),
    "Quito": ("America", "*"),
    "Mars": ("*",),
}
ILLNESSES = ["asthma", "covid", "flu", "none"]
MONOTONE = {"none", "distinct"}


@dataclass(frozen=True)
class Case:
    records: list[tuple[float, int, str, int, str]]  # weight, age, city, person, illness
    parameters: StreamParameters
    chunks: list[int]


def make_rule(kind: str, domain: CategoryDomain) -> list[GroupRule]:
    rules: dict[str, list[GroupRule]] = {
        "none": [],
        "distinct": [DistinctDiversity(0, domain, 2)],
        "entropy": [EntropyDiversity(0, domain, 1.7)],
        "recursive": [RecursiveDiversity(0, domain, 2.5, 2)],
        "close": [Closeness(0, domain, 0.25, Distance.EQUAL)],
        "both": [
            DistinctDiversity(0, domain, 2),
            Closeness(0, domain, 0.3, Distance.HIERARCHICAL),
        ],
    }
    return rules[kind]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    # More than 512 held tuples are cut in another way than fewer.
    count = draw(st.one_of(st.integers(0, 300), st.integers(700, 1200)))
    persons = draw(st.sampled_from([3, 40, 10_000]))
    k = draw(st.integers(1, 12))
    kind = draw(
        st.sampled_from(["none", "none", "distinct", "entropy", "recursive", "close", "both"])
    )
    skew = draw(st.sampled_from([[0.25] * 4, [0.02, 0.08, 0.1, 0.8]]))
    records = [
        (
            float(generator.choice([0.0, 0.0, generator.normal(), generator.exponential(30)])),
            int(generator.integers(17, 91)),
            str(generator.choice(list(PATHS))),
            int(generator.integers(persons)) - 5,
            str(generator.choice(ILLNESSES, p=skew)),
        )
        for _ in range(count)
    ]
    illness = CategoryDomain.flat("illness", ILLNESSES)
    parameters = StreamParameters(
        [
            NumberDomain("weight", -1000, 1000),
            NumberDomain("age", 17, 90, bucket=draw(st.sampled_from([None, 5, 7.5]))),
            CategoryDomain("city", PATHS),
        ],
        k=k,
        delta=draw(st.one_of(st.integers(k, 150), st.integers(600, 900))),
        beta=draw(st.integers(1, 20)),
        mu=draw(st.integers(1, 20)),
        sensitive=[illness],
        rules=make_rule(kind, illness),
        seed=draw(st.integers(0, 100)),
        outliers=draw(st.sampled_from(["suppress", "root"] if kind in MONOTONE else ["suppress"])),
        algorithm=draw(
            st.sampled_from(["partition", "castle"] if kind == "none" else ["partition"])
        ),
    )
    chunks = draw(st.lists(st.integers(1, 120), max_size=8))
    return Case(records, parameters, chunks)


def encode(case: Case) -> tuple[Floats, Integers, Integers]:
    columns = list(zip(*case.records, strict=True)) or [(), (), (), (), ()]
    domains = case.parameters.space.domains
    codes = np.array([domains[place].encode(columns[place]) for place in range(3)])
    illnesses = case.parameters.sensitive[0].encode(columns[4]).astype(np.int64)
    return codes, np.array(columns[3], dtype=np.int64), illnesses[None, :]


def bounds(label: str) -> tuple[float, float]:
    if not label.startswith("["):
        return float(label), float(label)
    low, high = label[1:-1].split(" - ")
    return float(low), float(high)


def keeps(rule: GroupRule, illnesses: Counter[str], seen: Counter[str]) -> bool:
    """Judge a group by the rules' definitions, one value at a time."""
    total, ordered = illnesses.total(), sorted(illnesses.values(), reverse=True)
    if isinstance(rule, DistinctDiversity):
        return len(illnesses) >= rule.l
    if isinstance(rule, EntropyDiversity):
        shares = [count / total for count in ordered]
        return -sum(share * math.log(share) for share in shares) >= math.log(rule.l) - 1e-6
    if isinstance(rule, RecursiveDiversity):
        return ordered[0] < rule.c * sum(ordered[int(rule.l) - 1 :])
    assert isinstance(rule, Closeness)
    # A flat hierarchy makes all distances but to itself 1.
    gaps = [abs(illnesses[name] / total - seen[name] / seen.total()) for name in ILLNESSES]
    return sum(gaps) / 2 <= rule.t + 1e-6


def check_release(case: Case, release: Release, fed: int, earlier: set[tuple[str, ...]]) -> None:
    """Check one release against the records; `earlier` holds what was published before."""
    labels = list(zip(*case.parameters.space.labels(*release.boxes[:2]), strict=True))
    new: dict[int, list[int]] = defaultdict(list)
    for position, place, reused in zip(
        release.positions.tolist(), release.places.tolist(), release.reused.tolist(), strict=True
    ):
        if place == -1:
            assert not reused
            continue
        weight, age, city, _, _ = case.records[position]
        low, high = bounds(labels[place][0])
        assert low <= weight <= high
        low, high = bounds(labels[place][1])
        assert low <= age <= high
        assert labels[place][2] in (city, *PATHS[city])
        if not reused:
            new[place].append(position)
    seen = Counter(record[4] for record in case.records[:fed])
    for place, members in new.items():
        records = [case.records[position] for position in members]
        assert len({record[3] for record in records}) >= case.parameters.demands.k
        by_tuples = Counter(record[4] for record in records)
        by_persons = Counter(illness for _, illness in {(r[3], r[4]) for r in records})
        for rule in case.parameters.demands.rules:
            assert keeps(rule, by_tuples, seen)
            assert keeps(rule, by_persons, seen)
        earlier.add(labels[place])
    for place, reused in zip(release.places.tolist(), release.reused.tolist(), strict=True):
        assert not reused or labels[place] in earlier
    if not all(isinstance(rule, DistinctDiversity) for rule in case.parameters.demands.rules):
        assert not release.reused.any()


def in_order(release: Release) -> Release:
    order = np.argsort(release.positions)
    return release._replace(
        positions=release.positions[order],
        places=release.places[order],
        reused=release.reused[order],
    )


def run(case: Case, chunks: list[int]) -> list[Release]:
    """Feed in chunks, each to an heir of the state after the last, then the rest, then flush."""
    codes, persons, illnesses = encode(case)
    stream = open_stream(case.parameters)
    releases, start = [], 0
    for chunk in chunks:
        part = slice(start, start + chunk)
        releases.append(stream.feed(codes[:, part], persons[part], illnesses[:, part]))
        state = stream.to_bytes()
        stream = open_stream(case.parameters, state)
        assert stream.to_bytes() == state
        start += chunk
    releases.append(stream.feed(codes[:, start:], persons[start:], illnesses[:, start:]))
    releases.append(stream.flush())
    assert not stream.held_positions.size
    return releases


@settings(deadline=None, max_examples=scaled(100), suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_what_leaves_keeps_every_promise(case: Case) -> None:
    codes, persons, illnesses = encode(case)
    stream = open_stream(case.parameters)
    earlier: set[tuple[str, ...]] = set()
    left: list[int] = []
    for fed in range(1, len(case.records) + 1):
        now = slice(fed - 1, fed)
        release = stream.feed(codes[:, now], persons[now], illnesses[:, now])
        check_release(case, release, fed, earlier)
        left += release.positions.tolist()
        held = stream.held_positions
        assert not held.size or fed - held[0] < case.parameters.delta
        if release.positions.size:
            assert sorted([*left, *held.tolist()]) == list(range(fed))
    release = stream.flush()
    check_release(case, release, len(case.records), earlier)
    left += release.positions.tolist()
    assert sorted(left) == list(range(len(case.records)))


@settings(deadline=None, max_examples=scaled(80), suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_neither_chunks_nor_restarts_change_what_leaves(case: Case) -> None:
    axes = len(case.parameters.space)
    whole = Release.join(axes, run(case, []))
    parts = Release.join(axes, run(case, case.chunks))
    if case.parameters.algorithm == "castle":
        # Tuples that leave by themselves are mixed with the others of the call.
        whole, parts = in_order(whole), in_order(parts)
    assert np.array_equal(whole.positions, parts.positions)
    assert np.array_equal(whole.places, parts.places)
    assert np.array_equal(whole.reused, parts.reused)
    for one, other in zip(whole.boxes, parts.boxes, strict=True):
        assert np.array_equal(one, other)


@settings(deadline=None, max_examples=scaled(60))
@given(cases())
def test_loss_is_what_the_labels_say(case: Case) -> None:
    release = Release.join(len(case.parameters.space), run(case, []))
    domains = case.parameters.space.domains
    assert isinstance(domains[1], NumberDomain)
    below = Counter(name for leaf, path in PATHS.items() for name in (leaf, *path))
    labels = zip(*case.parameters.space.labels(*release.boxes[:2]), strict=True)
    for loss, (weight, age, city) in zip(release.boxes.losses.tolist(), labels, strict=True):
        expected = (bounds(weight)[1] - bounds(weight)[0]) / 2000
        low, high = bounds(age)
        size = domains[1].bucket
        # The last bucket may be cut short by the domain's end; it counts as a whole one.
        expected += (
            (high - low) / 73
            if size is None
            else math.ceil((high - low) / size - 1e-9) / math.ceil(73 / size)
        )
        expected += (below[city] - 1) / (len(PATHS) - 1)
        assert math.isclose(loss, expected / 3, abs_tol=1e-9)
