"""CASTLE as published (Cao, Carminati, Ferrari, Tan): clusters grow tuple by tuple.

    feed ──▶ the cluster that the tuple enlarges least ─ or a new one, while there are < beta
                 the tuple delta positions back is due:
                   its cluster has ≥ k persons  ──▶ the cluster leaves, split from 2k persons on
                   a box published before fits  ──▶ the tuple leaves under it
                   its cluster is an outlier    ──▶ the tuple is suppressed
                   else                         ──▶ merged with the nearest clusters until ≥ k

`StreamAnonymizer` loses less and is faster; this one is for those who compare, or who have to
use the published algorithm. Both keep the same promises.

Rules that hold here:
- Every tuple leaves once: in a group of at least k persons, under a box that at least k persons
  were published under before, or suppressed.
- Sizes are persons, not tuples. An outlier is a cluster that more than half of all exceed.
- Where several clusters are equal, or buckets and neighbours are drawn, the seed and the number
  of the release decide: a replay does the same.
- A cluster's box is that of the tuples in it. Its bounds must not tell the values of one that
  was suppressed, or whose person opted out, so that it shrinks when a tuple leaves alone.
"""

from __future__ import annotations

from collections import Counter
from typing import Self

import numpy as np
import numpy.typing as npt

from penstock.masks.anonymity.domains import Floats, Integers
from penstock.masks.anonymity.partitions import split_by_neighbours
from penstock.masks.anonymity.publication import (
    NONE,
    Boxes,
    Published,
    Release,
    StreamParameters,
    pack,
    unpack,
)

Generator = np.random.Generator


class _Cluster:
    """Tuples that will leave together: their positions, their persons, and how often each."""

    def __init__(self) -> None:
        self.positions: dict[int, None] = {}
        self.persons: Counter[int] = Counter()

    def add(self, position: int, person: int) -> None:
        self.positions[position] = None
        self.persons[person] += 1

    def remove(self, position: int, person: int) -> None:
        del self.positions[position]
        self.persons[person] -= 1
        if not self.persons[person]:
            del self.persons[person]


class CastleAnonymizer:
    """Holds tuples in clusters, and releases them k-anonymous."""

    def __init__(self, parameters: StreamParameters) -> None:
        self.parameters = parameters
        axes, delta, beta = len(parameters.space), parameters.delta, parameters.beta
        # All held tuples are among the last delta, so that each has a slot: position % delta.
        self._codes = np.empty((axes, delta))
        self._persons = np.empty(delta, dtype=np.int64)
        self._times = np.empty(delta, dtype=np.int64)
        self._owners = np.full(delta, NONE, dtype=np.int64)
        self._oldest = 0
        self._next = 0
        self._releases = 0
        # Γ: cluster number → its members; boxes stand in one array, to be compared at once.
        self._clusters: dict[int, _Cluster] = {}
        self._lows = np.zeros((axes, beta))
        self._highs = np.zeros((axes, beta))
        self._published = Published(parameters)

    @property
    def next_position(self) -> int:
        """The position that the next tuple gets."""
        return self._next

    @property
    def held_positions(self) -> Integers:
        """The positions of the tuples that have not left yet, oldest first."""
        window = np.arange(self._oldest, self._next)
        held: Integers = window[self._owners[window % self.parameters.delta] != NONE]
        return held

    @property
    def typical_loss(self) -> float:
        """τ: the mean loss of the last mu groups; 0 before the first."""
        return self._published.typical_loss if self._published.recent.size else 0.0

    @property
    def due(self) -> int | None:
        """The time from which on some of what is held has waited too long, if ever."""
        held = self.held_positions
        if self.parameters.max_wait is None or not held.size:
            return None
        return int(self._times[held % self.parameters.delta].min()) + self.parameters.max_wait

    def feed(
        self,
        codes: Floats,
        persons: Integers,
        sensitive: Integers | None = None,
        *,
        now: int = 0,
    ) -> Release:
        """Take tuples in, and return those that leave; see `StreamAnonymizer.feed`."""
        count = int(persons.size)
        if sensitive is None:
            sensitive = np.empty((0, count), dtype=np.int64)
        self.parameters.check(codes, sensitive, count)
        np.minimum(self._times, now, out=self._times)
        releases = []
        for place in range(count):
            self._append(codes[:, place : place + 1], int(persons[place]), now)
            releases += self._release_oldest(self.parameters.delta - 1)
        wait = self.parameters.max_wait
        if wait is not None:
            held = self.held_positions
            late = held[self._times[held % self.parameters.delta] <= now - wait]
            releases += [it for position in late.tolist() for it in self._expire(position)]
            self._pass_by()
        return self._join(releases)

    def flush(self) -> Release:
        """End the stream: everything still held leaves."""
        return self._join(self._release_oldest(0))

    def _join(self, releases: list[Release]) -> Release:
        """Return all that leaves, in an order of chance.

        By the order they were due in, tuples could be paired with those of another view.
        """
        joined = Release.join(len(self.parameters.space), releases)
        generator = np.random.default_rng([self.parameters.seed, self._releases, len(releases)])
        order = generator.permutation(joined.positions.size)
        return joined._replace(
            positions=joined.positions[order],
            places=joined.places[order],
            reused=joined.reused[order],
        )

    def forget(self, gone: npt.NDArray[np.bool_]) -> None:
        """Hold some of the tuples no longer, as if they had never come."""
        for position in self.held_positions[gone].tolist():
            self._drop(position)
        self._pass_by()

    def _append(self, code: Floats, person: int, now: int) -> None:
        """Put a tuple into the cluster that it enlarges least."""
        slot = self._next % self.parameters.delta
        self._codes[:, slot] = code[:, 0]
        self._persons[slot] = person
        self._times[slot] = now
        number = self._choose(code)
        if number is None:
            number = next(it for it in range(self.parameters.beta) if it not in self._clusters)
            self._clusters[number] = _Cluster()
            self._lows[:, number] = self._highs[:, number] = code[:, 0]
        self._lows[:, number] = np.minimum(self._lows[:, number], code[:, 0])
        self._highs[:, number] = np.maximum(self._highs[:, number], code[:, 0])
        self._clusters[number].add(self._next, person)
        self._owners[slot] = number
        self._next += 1

    def _choose(self, code: Floats) -> int | None:
        """Return the best cluster for a tuple; None where a new one is better."""
        if not self._clusters:
            return None
        space, numbers = self.parameters.space, np.fromiter(self._clusters, dtype=np.intp)
        lows, highs = self._lows[:, numbers], self._highs[:, numbers]
        after = space.losses(np.minimum(lows, code), np.maximum(highs, code))
        growth = after - space.losses(lows, highs)
        nearest = np.flatnonzero(growth == growth.min())
        fine = nearest[after[nearest] <= self.typical_loss]
        if not fine.size:
            if len(self._clusters) < self.parameters.beta:
                return None
            fine = nearest
        candidates: list[int] = numbers[fine].tolist()
        return min(candidates, key=lambda it: len(self._clusters[it].persons))

    def _release_oldest(self, held: int) -> list[Release]:
        """Let the oldest tuples leave until so many positions are held, gaps included."""
        releases: list[Release] = []
        while self._next - self._oldest > held:
            releases += self._expire(self._oldest)
            self._pass_by()
        return releases

    def _pass_by(self) -> None:
        """Let the oldest position be one that is held."""
        delta = self.parameters.delta
        while self._oldest < self._next and self._owners[self._oldest % delta] == NONE:
            self._oldest += 1

    def _expire(self, position: int) -> list[Release]:
        """Let a tuple leave that is due, with its cluster or alone."""
        slot = position % self.parameters.delta
        number = int(self._owners[slot])
        if number == NONE:
            return []
        generator = np.random.default_rng([self.parameters.seed, self._releases])
        self._releases += 1
        cluster, k = self._clusters[number], self.parameters.demands.k
        if len(cluster.persons) >= k:
            return [self._publish(number, generator)]
        found = int(self._published.reusable.draw(self._codes[:, slot : slot + 1], generator)[0])
        if found != NONE:
            box = self._published.reusable.take(slice(found, found + 1))
            return [self._release_alone(position, box)]
        sizes = [len(it.persons) for it in self._clusters.values()]
        larger = sum(size > len(cluster.persons) for size in sizes)
        everybody = set().union(*(it.persons for it in self._clusters.values()))
        if larger > len(sizes) / 2 or len(everybody) < k:
            is_open = self._published.root_is_open
            return [self._release_alone(position, self._published.root if is_open else None)]
        self._merge(number)
        return [self._publish(number, generator)]

    def _merge(self, number: int) -> None:
        """Join the nearest clusters to one until it has k persons."""
        space, cluster = self.parameters.space, self._clusters[number]
        while len(cluster.persons) < self.parameters.demands.k:
            others = np.array([it for it in self._clusters if it != number])
            lows = np.minimum(self._lows[:, others], self._lows[:, number : number + 1])
            highs = np.maximum(self._highs[:, others], self._highs[:, number : number + 1])
            nearest = int(space.losses(lows, highs).argmin())
            self._lows[:, number], self._highs[:, number] = lows[:, nearest], highs[:, nearest]
            taken = self._clusters.pop(int(others[nearest]))
            for position in taken.positions:
                slot = position % self.parameters.delta
                cluster.add(position, int(self._persons[slot]))
                self._owners[slot] = number

    def _publish(self, number: int, generator: Generator) -> Release:
        """Let a cluster leave, in groups where it can be split."""
        cluster = self._clusters[number]
        positions = np.fromiter(cluster.positions, dtype=np.int64)
        space = self.parameters.space
        if len(cluster.persons) < 2 * self.parameters.demands.k:
            groups = [positions]
            lows, highs = self._lows[:, [number]], self._highs[:, [number]]
        else:
            slots = positions % self.parameters.delta
            codes, persons = self._codes[:, slots], self._persons[slots]
            rows = split_by_neighbours(space, codes, persons, self.parameters.demands.k, generator)
            groups = [positions[part] for part in rows]
            lows = np.stack([codes[:, part].min(axis=1) for part in rows], axis=1)
            highs = np.stack([codes[:, part].max(axis=1) for part in rows], axis=1)
        lows, highs = space.widen(lows, highs)
        boxes = self._published.add(Boxes(lows, highs, space.losses(lows, highs)))
        places = np.repeat(np.arange(len(groups)), [group.size for group in groups])
        leaves = np.concatenate(groups)
        self._owners[leaves % self.parameters.delta] = NONE
        del self._clusters[number]
        return Release(leaves, places, np.zeros(leaves.size, dtype=np.bool_), boxes)

    def _release_alone(self, position: int, box: Boxes | None) -> Release:
        """Let one tuple leave: under a box that was published before, or suppressed."""
        self._drop(position)
        known = box is not None
        return Release(
            np.array([position]),
            np.array([0 if known else NONE]),
            np.array([known]),
            Boxes.none(len(self.parameters.space)) if box is None else box,
        )

    def _drop(self, position: int) -> None:
        """Hold a tuple no longer."""
        slot = position % self.parameters.delta
        number = int(self._owners[slot])
        cluster = self._clusters[number]
        cluster.remove(position, int(self._persons[slot]))
        self._owners[slot] = NONE
        if not cluster.positions:
            del self._clusters[number]
            return
        rest = self._codes[
            :, np.fromiter(cluster.positions, dtype=np.int64) % self.parameters.delta
        ]
        self._lows[:, number], self._highs[:, number] = rest.min(axis=1), rest.max(axis=1)

    def to_bytes(self) -> bytes:
        """Write the whole state."""
        held = self.held_positions
        slots = held % self.parameters.delta
        numbers = np.fromiter(self._clusters, dtype=np.int64)
        # Where clusters are equal, the one that was opened first is taken: their order counts.
        members = [list(it.positions) for it in self._clusters.values()]
        return pack(
            self.parameters,
            {
                "counters": np.array([self._next, self._releases]),
                "codes": self._codes[:, slots],
                "persons": self._persons[slots],
                "positions": held,
                "times": self._times[slots],
                "clusters": numbers,
                "sizes": np.array([len(it) for it in members], dtype=np.int64),
                "members": np.array([it for part in members for it in part], dtype=np.int64),
                "cluster_lows": self._lows[:, numbers],
                "cluster_highs": self._highs[:, numbers],
                **self._published.arrays(),
            },
        )

    @classmethod
    def from_bytes(cls, parameters: StreamParameters, state: bytes) -> Self:
        """Read a state that was written with the same parameters."""
        parts = unpack(parameters, state)
        stream = cls(parameters)
        stream._next, stream._releases = parts["counters"].tolist()
        slots = parts["positions"] % parameters.delta
        stream._codes[:, slots] = parts["codes"]
        stream._persons[slots] = parts["persons"]
        stream._times[slots] = parts["times"]
        numbers = parts["clusters"]
        stream._lows[:, numbers] = parts["cluster_lows"]
        stream._highs[:, numbers] = parts["cluster_highs"]
        ends = np.cumsum(parts["sizes"], dtype=np.intp)
        parted = np.split(parts["members"], ends)[:-1]
        for number, members in zip(numbers.tolist(), parted, strict=True):
            cluster = stream._clusters[number] = _Cluster()
            for position in members.tolist():
                slot = position % parameters.delta
                cluster.add(position, int(stream._persons[slot]))
                stream._owners[slot] = number
        stream._published.restore(parts)
        stream._oldest = int(parts["positions"][0]) if slots.size else stream._next
        return stream
