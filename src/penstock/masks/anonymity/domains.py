"""Domains: what values a quasi-identifier may have, and what a range of them loses.

    value ──encode──▶ code (float64) ──min, max over a group──▶ low, high ──labels──▶ "[20 - 35]"

All domains together are a space; generalizations are boxes in it.

Rules that hold here:
- Order in the codes is order in the domain, so a group's generalization is a low and a high
  code: of a number a range, of a number in buckets a run of buckets, of a category a run of
  leaves in the order of the tree.
- A value outside the domain has no code: it becomes NaN, and the caller refuses the record.
- The loss of a generalization is 0 for a single value and 1 for the whole domain. A bucket
  alone loses its share of the domain, since it hides the values in it. A category loses as
  much as the lowest node above the run: (leaves below - 1) / (leaves - 1).
- Null is a value like any other where a domain takes it (`WithNull`): it lies before all others, is
  published as null where a group has nothing else, and loses the whole domain where it has.
- Arrays of codes are (quasi-identifiers, tuples), so that one quasi-identifier lies together.
- A box's loss is the mean of its sides' losses.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidError, Problem, UsageError, quote

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

# Beyond this, not every whole number has a float64 of its own, so a range might not
# hold the value that it was made of.
LARGEST: Final = float(1 << 53)
MAX_BUCKETS: Final = 1_000_000
_WHOLE: Final = re.compile("-?[0-9]{1,19}")
_LISTED: Final = frozenset({str, int})
WHOLE: Final = "*"
"""What is published of a number or date that may be any, or null."""
# Up to so many leaves, the losses of all runs of leaves are kept in a table.
TABLED: Final = 256


class Domain(ABC):
    """What one quasi-identifier or sensitive attribute may hold."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    @abstractmethod
    def expected(self) -> str:
        """What a value has to be, for the reason why a record was refused."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many codes there are, from 0; 0 where they are not counted."""

    @property
    @abstractmethod
    def span(self) -> tuple[float, float]:
        """The least and the greatest code."""

    @property
    @abstractmethod
    def signature(self) -> tuple[object, ...]:
        """What codes mean here; two domains with the same one agree on them."""

    @abstractmethod
    def encode(self, values: Iterable[object]) -> Floats:
        """Return the codes; NaN for what is not in the domain."""

    @abstractmethod
    def loss(self, lows: Floats, highs: Floats) -> Floats:
        """Return what publishing these ranges of codes loses, from 0 to 1."""

    def widen(self, lows: Floats, highs: Floats) -> tuple[Floats, Floats]:
        """Return the ranges of codes that are really published for these."""
        return lows, highs

    @abstractmethod
    def labels(self, lows: Floats, highs: Floats) -> list[str | None]:
        """Return the generalizations as they are published."""


class NumberDomain(Domain):
    """Numbers between two bounds, published as ranges; with a bucket, as runs of buckets."""

    def __init__(self, name: str, low: float, high: float, *, bucket: float | None = None) -> None:
        super().__init__(name)
        problems = []
        if not (-LARGEST <= low < high <= LARGEST):
            fix = f"give two finite numbers between -2^53 and 2^53, not {low!r} and {high!r}"
            problems.append(Problem(f"{name}.bounds", "the low must lie below the high", fix))
        elif bucket is not None and not (bucket > 0 and (high - low) / bucket <= MAX_BUCKETS):
            fix = f"give a positive number that makes at most {MAX_BUCKETS} buckets"
            problems.append(Problem(f"{name}.bucket", f"{bucket!r} is not a bucket size", fix))
        if problems:
            raise InvalidError(f"domain {quote(name)}", problems)
        self.low, self.high, self.bucket = float(low), float(high), bucket
        # The greatest value itself lies in the last bucket, which is closed.
        self._buckets = 0 if bucket is None else max(1, math.ceil((high - low) / bucket))

    @property
    def expected(self) -> str:
        """Name the bounds."""
        return f"a number from {_write(self.low)} to {_write(self.high)}"

    @property
    def size(self) -> int:
        """Count the buckets."""
        return self._buckets

    @property
    def span(self) -> tuple[float, float]:
        """Return the bounds, or the first and the last bucket."""
        return (0.0, self._buckets - 1.0) if self._buckets else (self.low, self.high)

    @property
    def signature(self) -> tuple[object, ...]:
        """Tell bounds and buckets."""
        return "number", self.name, self.low, self.high, self.bucket

    def encode(self, values: Iterable[object]) -> Floats:
        """Return the numbers, or the numbers of their buckets."""
        if isinstance(values, np.ndarray) and values.dtype.kind in "iuf":
            numbers = values.astype(np.float64)
        else:
            numbers = np.array([_number(value) for value in values], dtype=np.float64)
        inside = (numbers >= self.low) & (numbers <= self.high)
        codes = np.where(inside, numbers, np.nan)
        if self.bucket is not None:
            codes = np.minimum(np.floor((codes - self.low) / self.bucket), self._buckets - 1.0)
        return codes

    def loss(self, lows: Floats, highs: Floats) -> Floats:
        """Return the share of the domain that the range covers."""
        if self._buckets:
            return (highs - lows + 1.0) / self._buckets
        return (highs - lows) / (self.high - self.low)

    def labels(self, lows: Floats, highs: Floats) -> list[str | None]:
        """Write ranges, half-open where there are buckets; a single value stands alone."""
        if self.bucket is not None:
            lows = self.low + lows * self.bucket
            highs = np.minimum(self.low + (highs + 1.0) * self.bucket, self.high)
        return [
            _write(low) if low == high else f"[{_write(low)} - {_write(high)}]"
            for low, high in zip(lows.tolist(), highs.tolist(), strict=True)
        ]


class CategoryDomain(Domain):
    """The leaves of a tree, published as the lowest node above all values of a group.

    A whole number is the leaf that writes it: 7 is `7` or `007`, of which a tree has one.
    `paths` gives each leaf its ancestors from the nearest to the root, as `Hierarchy.paths`
    does; the root is the same for all.
    """

    def __init__(self, name: str, paths: Mapping[str, Sequence[str]]) -> None:
        super().__init__(name)
        roots = {path[-1] if path else leaf for leaf, path in paths.items()}
        if len(roots) != 1 or not all(paths.values()):
            found = ", ".join(quote(root) for root in sorted(roots)[:3]) or "none"
            fix = f"let every leaf end at one root above it; the roots are {found}"
            problem = Problem(f"{name}.hierarchy", "the hierarchy is not one tree", fix)
            raise InvalidError(f"domain {quote(name)}", [problem])
        ways = _together([(*reversed(path), leaf) for leaf, path in paths.items()])
        self.leaves = [way[-1] for way in ways]
        self._codes: dict[object, float] = {}
        for code, leaf in enumerate(self.leaves):
            self._codes[leaf] = float(code)
            if _WHOLE.fullmatch(leaf):
                self._codes[int(leaf)] = float(code)
        self._build_nodes(ways)

    @classmethod
    def flat(cls, name: str, values: Iterable[str], root: str = "*") -> CategoryDomain:
        """Make a domain of categories that have nothing in common but the root."""
        return cls(name, dict.fromkeys(values, (root,)))

    def _build_nodes(self, ways: list[tuple[str, ...]]) -> None:
        """Give each node a number, and note for each depth which node a leaf lies under.

        A leaf stands for itself at the depths below it, so that every depth has a node for
        every leaf, and two leaves have a node in common from some depth upwards.
        """
        depths = max(map(len, ways))
        numbers: dict[tuple[str, ...], int] = {}
        first: list[int] = []
        last: list[int] = []
        heights: list[int] = []
        above = np.empty((depths, len(ways)), dtype=np.intp)
        for code, way in enumerate(ways):
            for depth in range(depths):
                prefix = way[: depth + 1]
                node = numbers.setdefault(prefix, len(numbers))
                if node == len(first):
                    first.append(code)
                    last.append(code)
                    heights.append(0)
                last[node] = code
                heights[node] = max(heights[node], len(way) - len(prefix))
                above[depth, code] = node
        self.names = [prefix[-1] for prefix in numbers]
        self.firsts = np.array(first, dtype=np.int64)
        self.lasts = np.array(last, dtype=np.int64)
        self.heights = np.array(heights, dtype=np.int64)
        self.parents = np.array([numbers[prefix[:-1] or prefix] for prefix in numbers])
        self._above = above
        leaves = self.lasts - self.firsts
        self._losses = leaves / max(1, len(ways) - 1)
        self._table: Floats | None = None
        if len(ways) <= TABLED:
            lows, highs = np.divmod(np.arange(float(len(ways) ** 2)), len(ways))
            self._table = self._losses[self._nodes(lows, highs)]

    @property
    def expected(self) -> str:
        """Name the hierarchy; the values may be many."""
        return f"one of the {len(self.leaves)} leaves under {quote(self.names[0])}"

    @property
    def size(self) -> int:
        """Count the leaves."""
        return len(self.leaves)

    @property
    def span(self) -> tuple[float, float]:
        """Return the first and the last leaf."""
        return 0.0, len(self.leaves) - 1.0

    @property
    def signature(self) -> tuple[object, ...]:
        """Tell the nodes and the leaves below each."""
        nodes = zip(self.names, self.firsts.tolist(), self.lasts.tolist(), strict=True)
        return "category", self.name, *nodes

    def encode(self, values: Iterable[object]) -> Floats:
        """Return the numbers of the leaves."""
        codes = self._codes
        return np.array(
            # True is no 1, and what is neither text nor whole need not be hashable.
            [codes.get(it, np.nan) if type(it) in _LISTED else np.nan for it in values],
            dtype=np.float64,
        )

    def _nodes(self, lows: Floats, highs: Floats) -> npt.NDArray[np.intp]:
        """Find the lowest node above each run of leaves: the deepest that both ends share."""
        low, high = lows.astype(np.intp), highs.astype(np.intp)
        nodes: npt.NDArray[np.intp] = self._above[0][low]
        for level in self._above[1:]:
            nodes = np.where(level[low] == level[high], level[low], nodes)
        return nodes

    def loss(self, lows: Floats, highs: Floats) -> Floats:
        """Return the loss of the lowest node above the run."""
        if self._table is None:
            losses: Floats = self._losses[self._nodes(lows, highs)]
            return losses
        return self._table.take((lows * len(self.leaves) + highs).astype(np.intp))

    def widen(self, lows: Floats, highs: Floats) -> tuple[Floats, Floats]:
        """Return all leaves below the node that is published."""
        nodes = self._nodes(lows, highs)
        return self.firsts[nodes].astype(np.float64), self.lasts[nodes].astype(np.float64)

    def labels(self, lows: Floats, highs: Floats) -> list[str | None]:
        """Name the nodes."""
        return [self.names[node] for node in self._nodes(lows, highs).tolist()]


class WithNull(Domain):
    """A domain that has null besides."""

    def __init__(self, inner: Domain) -> None:
        super().__init__(inner.name)
        self.inner = inner
        self._floor, self._ceiling = inner.span
        self.null = self._floor - max(1.0, self._ceiling - self._floor)

    @property
    def expected(self) -> str:
        """Name what the domain has."""
        return f"{self.inner.expected}, or null"

    @property
    def size(self) -> int:
        """Count null, too, where codes are counted."""
        return self.inner.size and self.inner.size + 1

    @property
    def span(self) -> tuple[float, float]:
        """Begin with null."""
        return self.null, self._ceiling

    @property
    def signature(self) -> tuple[object, ...]:
        """Tell that null has a code."""
        return "null", *self.inner.signature

    def encode(self, values: Iterable[object]) -> Floats:
        """Return the codes of values, that of null for None."""
        listed = list(values)
        codes = self.inner.encode(listed)
        codes[[value is None for value in listed]] = self.null
        return codes

    def loss(self, lows: Floats, highs: Floats) -> Floats:
        """Nothing is lost of null alone; with other values, all is."""
        among = self.inner.loss(np.maximum(lows, self._floor), np.maximum(highs, self._floor))
        alone = highs == self.null
        return np.where(lows == self.null, np.where(alone, 0.0, 1.0), among)

    def widen(self, lows: Floats, highs: Floats) -> tuple[Floats, Floats]:
        """Widen null and others to everything."""
        low, high = self.inner.widen(np.maximum(lows, self._floor), np.maximum(highs, self._floor))
        null, alone = lows == self.null, highs == self.null
        return (
            np.where(null, self.null, low),
            np.where(null, np.where(alone, self.null, self._ceiling), high),
        )

    def labels(self, lows: Floats, highs: Floats) -> list[str | None]:
        """Write null as null, and null among others as the whole."""
        everything = self.inner.names[0] if isinstance(self.inner, CategoryDomain) else WHOLE
        null, alone = (lows == self.null).tolist(), (highs == self.null).tolist()
        within = self.inner.labels(np.maximum(lows, self._floor), np.maximum(highs, self._floor))
        return [
            (None if single else everything) if mixed else label
            for mixed, single, label in zip(null, alone, within, strict=True)
        ]


def _together(ways: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Bring the leaves of each node together, otherwise in the order given."""
    ranks: dict[tuple[str, ...], int] = {}
    for way in ways:
        for depth in range(1, len(way) + 1):
            ranks.setdefault(way[:depth], len(ranks))
    return sorted(ways, key=lambda way: [ranks[way[: end + 1]] for end in range(len(way))])


def _number(value: object) -> float:
    """Read a number; what is none becomes NaN."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _write(number: float) -> str:
    """Write a number as short as it can be read back."""
    return str(int(number)) if number.is_integer() else repr(number)


class Space:
    """The domains of the quasi-identifiers, in order."""

    def __init__(self, domains: Sequence[Domain]) -> None:
        if not domains:
            raise UsageError(
                "no quasi-identifier is given", fix="name at least one field in quasi_identifiers"
            )
        self.domains = tuple(domains)
        spans = np.array([domain.span for domain in domains])
        self._floor, self._ceiling = spans[:, :1], spans[:, 1:]
        # Losses of numbers and dates are linear in both ends: one product gives their sum.
        count = len(domains)
        self._slope = np.zeros(count)
        self._offset = 0.0
        self._others: list[tuple[int, Domain]] = []
        for place, domain in enumerate(domains):
            if isinstance(domain, CategoryDomain | WithNull):
                self._others.append((place, domain))
                continue
            zero, one = domain.loss(np.zeros(2), np.array([0.0, 1.0])).tolist()
            self._slope[place] = (one - zero) / count
            self._offset += zero / count

    def __len__(self) -> int:
        return len(self.domains)

    @property
    def root(self) -> tuple[Floats, Floats]:
        """The box that holds everything."""
        return self._floor.copy(), self._ceiling.copy()

    def check(self, codes: Floats) -> None:
        """Refuse codes that no value of the domains has."""
        for place, domain in enumerate(self.domains):
            low, high = domain.span
            outside = ~((codes[place] >= low) & (codes[place] <= high))
            if outside.any():
                raise UsageError(
                    f"{int(outside.sum())} tuples have no valid {quote(domain.name)}",
                    fix=f"send records on only if it is {domain.expected}",
                )

    def losses(self, lows: Floats, highs: Floats) -> Floats:
        """Return the loss of each box; lows and highs are (quasi-identifiers, boxes …)."""
        sides = highs - lows
        losses: Floats = self._slope @ sides.reshape(len(sides), -1) + self._offset
        losses = losses.reshape(sides.shape[1:])
        for place, domain in self._others:
            losses = losses + domain.loss(lows[place], highs[place]) / len(self.domains)
        return losses

    def widen(self, lows: Floats, highs: Floats) -> tuple[Floats, Floats]:
        """Return the boxes that are really published for these."""
        if not self._others:
            return lows, highs
        lows, highs = lows.copy(), highs.copy()
        for place, domain in self._others:
            lows[place], highs[place] = domain.widen(lows[place], highs[place])
        return lows, highs

    def labels(self, lows: Floats, highs: Floats) -> list[list[str | None]]:
        """Return for each quasi-identifier the boxes' generalizations as published."""
        return [
            domain.labels(lows[place], highs[place]) for place, domain in enumerate(self.domains)
        ]
