"""k-anonymity of a stream whose tuples may wait at most delta positions; its algorithms by name.

    feed ──▶ held: up to delta tuples ──the oldest is due──▶ partition ──▶ groups of ≥ k persons
                     ▲                                          │
                     └── those that fit in no group, if young ──┤
                                 old: a box published before, drawn at random, or suppressed

The oldest is due when delta positions are held from it on, or when it has waited `max_wait`.

CASTLE grows clusters tuple by tuple and publishes the one whose tuple is due. Here all held
tuples are cut into groups at once when the oldest is due, and all leave: every group is made
from delta tuples, and the work per tuple is small and the same however long the stream is.

Rules that hold here:
- Every tuple leaves once: published in a group that fulfils the demands, published under a
  box that at least k persons were published under before, or suppressed.
- A tuple at position p leaves before the one at p + delta is taken in, and in the first call
  whose `now` is `max_wait` or more after that of the call it came in with.
- Without `max_wait`, how the tuples are divided among calls of `feed` changes nothing, nor does
  a restart from `to_bytes`: randomness comes from the seed and the number of the release alone.
- What waited too long hastens the others: all that is held is cut together, since groups made
  of the due tuples alone would be wider, or none. A young tuple without a group waits on.
- Tuples leave in an order of chance: the order they came in would pair them with those of
  another view of the stream, one by one.
- Memory is bounded by delta and beta.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, Self

import numpy as np
import numpy.typing as npt

from penstock.masks.anonymity.castle import CastleAnonymizer
from penstock.masks.anonymity.domains import Floats, Integers
from penstock.masks.anonymity.partitions import Rows, partition
from penstock.masks.anonymity.publication import (
    NONE,
    Boxes,
    Published,
    Release,
    StreamParameters,
    pack,
    unpack,
)
from penstock.masks.anonymity.rules import Booleans, Census

# Leaving tuples out to mend a group takes at most about this many steps.
MENDING_STEPS: Final = 200


class StreamAnonymizer:
    """Holds tuples, and releases them k-anonymous."""

    def __init__(self, parameters: StreamParameters) -> None:
        self.parameters = parameters
        space, delta = parameters.space, parameters.delta
        self._codes = np.empty((len(space), delta))
        self._persons = np.empty(delta, dtype=np.int64)
        self._sensitive = np.empty((len(parameters.sensitive), delta), dtype=np.int64)
        self._positions = np.empty(delta, dtype=np.int64)
        self._times = np.empty(delta, dtype=np.int64)
        self._held = 0
        self._next = 0
        self._releases = 0
        # How often each sensitive value was seen: what t-closeness compares with.
        self._seen: list[Floats] = [np.zeros(domain.size) for domain in parameters.sensitive]
        self._published = Published(parameters)

    @property
    def next_position(self) -> int:
        """The position that the next tuple gets."""
        return self._next

    @property
    def held_positions(self) -> Integers:
        """The positions of the tuples that have not left yet, oldest first."""
        return self._positions[: self._held].copy()

    @property
    def due(self) -> int | None:
        """The time from which on some of what is held has waited too long, if ever."""
        if self.parameters.max_wait is None or not self._held:
            return None
        return int(self._times[: self._held].min()) + self.parameters.max_wait

    @property
    def typical_loss(self) -> float:
        """The mean loss of the last mu groups."""
        return self._published.typical_loss

    def feed(
        self,
        codes: Floats,
        persons: Integers,
        sensitive: Integers | None = None,
        *,
        now: int = 0,
    ) -> Release:
        """Take tuples in, and return those that leave.

        Codes are (quasi-identifiers, tuples), persons one number each, sensitive codes
        (attributes, tuples). Positions count on from `next_position`. `now` is what the clock
        says, in the unit of `max_wait`.
        """
        count = int(persons.size)
        if sensitive is None:
            sensitive = np.empty((0, count), dtype=np.int64)
        self.parameters.check(codes, sensitive, count)
        # A clock that was set back must not let anybody wait for longer.
        np.minimum(self._times[: self._held], now, out=self._times[: self._held])
        releases = []
        done = 0
        while done < count:
            oldest = self._positions[0] if self._held else self._next
            room = int(oldest) + self.parameters.delta - self._next
            part = slice(done, min(done + room, count))
            self._append(codes[:, part], persons[part], sensitive[:, part], now)
            done = part.stop
            if self._next - self._positions[0] >= self.parameters.delta:
                half = self._positions[0] + (self.parameters.delta + 1) // 2
                releases.append(self._release(self._positions[: self._held] < half))
        wait = self.parameters.max_wait
        if wait is not None:
            overdue = self._times[: self._held] <= now - wait
            if overdue.any():
                releases.append(self._release(overdue))
        return Release.join(len(self.parameters.space), releases)

    def flush(self) -> Release:
        """End the stream: everything still held leaves."""
        return self._release(np.ones(self._held, dtype=np.bool_))

    def forget(self, gone: npt.NDArray[np.bool_]) -> None:
        """Hold some of the tuples no longer, as if they had never come."""
        held = self._held
        if not gone.any():
            return
        for column, line in enumerate(self._sensitive[:, :held]):
            self._seen[column] -= np.bincount(line[gone], minlength=self._seen[column].size)
        self._keep(np.flatnonzero(~gone))

    def _append(self, codes: Floats, persons: Integers, sensitive: Integers, now: int) -> None:
        """Hold tuples."""
        start, end = self._held, self._held + persons.size
        self._codes[:, start:end] = codes
        self._persons[start:end] = persons
        self._sensitive[:, start:end] = sensitive
        self._positions[start:end] = np.arange(self._next, self._next + persons.size)
        self._times[start:end] = now
        for column, line in enumerate(sensitive):
            self._seen[column] += np.bincount(line, minlength=self._seen[column].size)
        self._held = end
        self._next += persons.size

    def _release(self, due: Booleans) -> Release:
        """Cut what is held into groups; what fits in none leaves if it is due."""
        held, space = self._held, self.parameters.space
        if not held:
            return Release.none(len(space))
        codes, positions = self._codes[:, :held], self._positions[:held]
        census = Census(self._persons[:held], self._sensitive[:, :held])
        generator = np.random.default_rng([self.parameters.seed, self._releases])
        chosen = self._choose(census, generator)
        groups = partition(
            space, codes[:, chosen], census.take(chosen), self.parameters.demands, self._seen
        )
        places = np.full(held, NONE, dtype=np.int64)
        for number, group in enumerate(groups):
            places[chosen[group]] = number
        boxes = self._published.add(self._box(codes, [chosen[group] for group in groups]))

        left_over = places == NONE
        stays = left_over & ~due
        reused = np.zeros(held, dtype=np.bool_)
        stragglers = np.flatnonzero(left_over & ~stays)
        if stragglers.size and self.parameters.may_reuse:
            open_boxes = self._published.open_boxes
            drawn = open_boxes.draw(codes[:, stragglers], generator)
            found = drawn != NONE
            used, numbers = np.unique(drawn[found], return_inverse=True)
            places[stragglers[found]] = numbers + len(boxes)
            reused[stragglers[found]] = True
            boxes = boxes.join(open_boxes.take(used))
        leaves = generator.permutation(np.flatnonzero(~stays))
        release = Release(positions[leaves], places[leaves], reused[leaves], boxes)
        self._keep(np.flatnonzero(stays))
        self._releases += 1
        return release

    def _choose(self, census: Census, generator: np.random.Generator) -> Rows:
        """Return the rows that fulfil the demands together; as many as a few steps can find.

        Where one sensitive value is too frequent, tuples with it are left out until it is
        not. Where this cannot help, no rows are left.
        """
        rows = np.arange(len(census))
        demands = self.parameters.demands
        while census.count(rows) >= demands.k:
            broken = census.broken(demands, rows, self._seen)
            if broken is None:
                return rows
            rule, counts = broken
            value = rule.crowded(counts, self._seen[rule.column])
            if value is None:
                break
            crowd = rows[census.sensitive[rule.column, rows] == value]
            fewest = max(1, crowd.size // 20, rows.size // MENDING_STEPS)
            rows = np.setdiff1d(rows, generator.permutation(crowd)[:fewest])
            if not crowd.size:
                break
        return np.empty(0, dtype=np.intp)

    def _box(self, codes: Floats, groups: list[Rows]) -> Boxes:
        """Return the groups' boxes as they are published."""
        space = self.parameters.space
        if not groups:
            return Boxes.none(len(space))
        ordered = codes[:, np.concatenate(groups)]
        starts = np.cumsum([0, *(group.size for group in groups[:-1])])
        lows, highs = space.widen(
            np.minimum.reduceat(ordered, starts, axis=1),
            np.maximum.reduceat(ordered, starts, axis=1),
        )
        return Boxes(lows, highs, space.losses(lows, highs))

    def _keep(self, rows: Rows) -> None:
        """Hold these rows alone."""
        self._held = rows.size
        self._codes[:, : rows.size] = self._codes[:, rows]
        self._persons[: rows.size] = self._persons[rows]
        self._sensitive[:, : rows.size] = self._sensitive[:, rows]
        self._positions[: rows.size] = self._positions[rows]
        self._times[: rows.size] = self._times[rows]

    def to_bytes(self) -> bytes:
        """Write the whole state."""
        held = self._held
        times = {} if self.parameters.max_wait is None else {"times": self._times[:held]}
        return pack(
            self.parameters,
            {
                **times,
                "counters": np.array([self._next, self._releases]),
                "codes": self._codes[:, :held],
                "persons": self._persons[:held],
                "sensitive": self._sensitive[:, :held],
                "positions": self._positions[:held],
                "seen": np.concatenate([np.empty(0), *self._seen]),
                **self._published.arrays(),
            },
        )

    @classmethod
    def from_bytes(cls, parameters: StreamParameters, state: bytes) -> Self:
        """Read a state that was written with the same parameters."""
        parts = unpack(parameters, state)
        stream = cls(parameters)
        held = stream._held = int(parts["positions"].size)
        stream._next, stream._releases = parts["counters"].tolist()
        stream._codes[:, :held] = parts["codes"]
        stream._persons[:held] = parts["persons"]
        stream._sensitive[:, :held] = parts["sensitive"]
        stream._positions[:held] = parts["positions"]
        stream._times[:held] = parts.get("times", 0)
        ends = np.cumsum([domain.size for domain in parameters.sensitive], dtype=np.intp)
        stream._seen = np.split(parts["seen"], ends)[:-1]
        stream._published.restore(parts)
        return stream


class TupleAnonymizer(Protocol):
    """Holds tuples, and releases them k-anonymous."""

    def __init__(self, parameters: StreamParameters) -> None:
        """Begin a stream."""

    @property
    def next_position(self) -> int:
        """The position that the next tuple gets."""

    @property
    def held_positions(self) -> Integers:
        """The positions of the tuples that have not left yet, oldest first."""

    @property
    def due(self) -> int | None:
        """The time from which on some of what is held has waited too long, if ever."""

    def feed(
        self,
        codes: Floats,
        persons: Integers,
        sensitive: Integers | None = None,
        *,
        now: int = 0,
    ) -> Release:
        """Take tuples in, and return those that leave."""

    def flush(self) -> Release:
        """End the stream: everything still held leaves."""

    def forget(self, gone: npt.NDArray[np.bool_]) -> None:
        """Hold some of the tuples no longer, as if they had never come."""

    def to_bytes(self) -> bytes:
        """Write the whole state."""

    @classmethod
    def from_bytes(cls, parameters: StreamParameters, state: bytes) -> Self:
        """Read a state that was written with the same parameters."""


ALGORITHMS: Final[Mapping[str, type[TupleAnonymizer]]] = {
    "partition": StreamAnonymizer,
    "castle": CastleAnonymizer,
}


def open_stream(parameters: StreamParameters, state: bytes | None = None) -> TupleAnonymizer:
    """Return the anonymizer that the parameters ask for, as it was or from the beginning."""
    kind = ALGORITHMS[parameters.algorithm]
    return kind(parameters) if state is None else kind.from_bytes(parameters, state)
