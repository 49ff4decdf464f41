"""The index of content filters: which of them a record may match, by one predicate of each.

    r.pulse > 120 && r.ward == "3" ──▶ predicate: ward is one of {"3"} ─┐
    record ──▶ for each attribute: equalities, ranges ──────────────────┴▶ serials of candidates

Rules that hold here:
- A predicate is what a matching event surely satisfies: an equality, else the narrowest range. A
  filter without one is among `others`, which any record may match.
- The index may name one too many, never one too few.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from penstock.lang import tree

_EQUAL: Final = "eq"
_MIRRORED: Final = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", _EQUAL: _EQUAL}
_NUMBERS: Final = (int, float)
_PENDING: Final = 64

Key = tuple[str, type]
"""An attribute: its name, and whether its values are texts, numbers or bools."""


class Equality(NamedTuple):
    """One of these values."""

    key: Key
    values: tuple[Any, ...]


class Range(NamedTuple):
    """Numbers from a lowest to a highest, both included."""

    key: Key
    low: float
    high: float


Predicate = Equality | Range


def find_predicate(node: tree.Node) -> Predicate | None:
    """Return what a matching event surely satisfies: an equality, else a range; None: unknown."""
    terms = list(_conjuncts(node))
    for term in terms:
        equality = _as_equality(term)
        if equality is not None:
            return equality
    ranges: dict[Key, Range] = {}
    for term in terms:
        found = _as_range(term)
        if found is not None:
            held = ranges.get(found.key, found)
            ranges[found.key] = Range(
                found.key, max(held.low, found.low), min(held.high, found.high)
            )
    return min(ranges.values(), key=lambda it: it.high - it.low, default=None)


def _conjuncts(node: tree.Node) -> Iterator[tree.Node]:
    if isinstance(node, tree.Logic) and node.kind == "and":
        for term in node.terms:
            yield from _conjuncts(term)
    else:
        yield node


def _as_equality(node: tree.Node) -> Equality | None:
    match node:
        case tree.Apply(operation="in_list", arguments=(item, tree.MakeList(items=items))):
            name = _attribute(item)
            constants = [it.value for it in items if isinstance(it, tree.Constant)]
            if name is None or len(constants) < len(items):
                return None
            return Equality((name, _class_of(constants[0])), tuple(dict.fromkeys(constants)))
        case tree.Logic(kind="or", terms=terms):
            found = [_as_equality(it) for it in terms]
            known = [it for it in found if it is not None]
            if len(known) < len(found) or len({it.key for it in known}) > 1:
                return None
            values = dict.fromkeys(value for it in known for value in it.values)
            return Equality(known[0].key, tuple(values))
        case _:
            compared = _comparison(node)
            if compared is None or compared[1] != _EQUAL:
                return None
            name, _, value = compared
            return Equality((name, _class_of(value)), (value,))


def _as_range(node: tree.Node) -> Range | None:
    compared = _comparison(node)
    if compared is None or _class_of(compared[2]) is not float:
        return None
    name, operation, value = compared
    bound = float(value)
    if operation in {"lt", "le"}:
        return Range((name, float), -math.inf, bound)
    return Range((name, float), bound, math.inf)


def _comparison(node: tree.Node) -> tuple[str, str, Any] | None:
    """Return attribute, operation and constant of a comparison of the two."""
    if not isinstance(node, tree.Apply) or node.operation not in _MIRRORED:
        return None
    left, right = node.arguments
    operation = node.operation
    if isinstance(left, tree.Constant):
        left, right, operation = right, left, _MIRRORED[operation]
    name = _attribute(left)
    if name is None or not isinstance(right, tree.Constant):
        return None
    return name, operation, right.value


def _attribute(node: tree.Node) -> str | None:
    if isinstance(node, tree.Apply) and node.operation == "to_double":
        node = node.arguments[0]
    path = tree.find_path(node)
    return path[1] if path is not None and len(path) > 1 else None


def _class_of(value: Any) -> type:
    """Return what values are compared with: 1 is 1.0 for an index, and is not true."""
    return float if type(value) in _NUMBERS else type(value)


# --- the index ---


class ContentIndex:
    """Finds which filters a record may match, by their predicates."""

    def __init__(self) -> None:
        self._equal: dict[Key, dict[Any, set[int]]] = {}
        self._ranges: dict[Key, RangeIndex] = {}
        self.others: set[int] = set()
        """The filters that any record may match: no search finds them."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, serial: int, predicate: Predicate | None) -> None:
        """Add a filter; None: any record may match it."""
        self._count += 1
        match predicate:
            case Equality(key=key, values=values):
                held = self._equal.setdefault(key, {})
                for value in values:
                    held.setdefault(value, set()).add(serial)
            case Range(key=key, low=low, high=high):
                self._ranges.setdefault(key, RangeIndex()).add(serial, low, high)
            case None:
                self.others.add(serial)

    def discard(self, serial: int, predicate: Predicate | None) -> None:
        """Remove a filter that was added with this predicate."""
        self._count -= 1
        match predicate:
            case Equality(key=key, values=values):
                held = self._equal[key]
                for value in values:
                    held[value].discard(serial)
                    if not held[value]:
                        del held[value]
                if not held:
                    del self._equal[key]
            case Range(key=key):
                self._ranges[key].discard(serial)
                if not len(self._ranges[key]):
                    del self._ranges[key]
            case None:
                self.others.discard(serial)

    def search(self, record: Mapping[str, Any]) -> set[int]:
        """Return the filters that a record may match, the others aside."""
        found: set[int] = set()
        for name, value in record.items():
            key = (name, _class_of(value))
            held = self._equal.get(key)
            if held is not None:
                found.update(held.get(value, ()))
            ranges = self._ranges.get(key)
            if ranges is not None:
                found.update(ranges.holding(float(value)))
        return found


class _Node(NamedTuple):
    """The ranges that hold a middle, by both ends; the others lie to its left or right."""

    middle: float
    by_low: list[tuple[float, int]]
    by_high: list[tuple[float, int]]
    left: _Node | None
    right: _Node | None


class RangeIndex:
    """Ranges of numbers, found by a number: a tree that is built anew after enough changes."""

    def __init__(self) -> None:
        self._live: dict[int, tuple[float, float]] = {}
        self._root: _Node | None = None
        self._pending: set[int] = set()
        self._changes = 0

    def __len__(self) -> int:
        return len(self._live)

    def add(self, serial: int, low: float, high: float) -> None:
        """Add a range."""
        self._live[serial] = (low, high)
        self._pending.add(serial)
        self._changed()

    def discard(self, serial: int) -> None:
        """Remove a range."""
        del self._live[serial]
        self._pending.discard(serial)
        self._changed()

    def _changed(self) -> None:
        # As many changes as there are ranges pay for one tree.
        self._changes += 1
        if self._changes > max(_PENDING, len(self._live) // 4):
            self._changes = 0
            self._pending.clear()
            self._root = _build([(low, high, it) for it, (low, high) in self._live.items()])

    def holding(self, value: float) -> Iterator[int]:
        """Yield the ranges that hold a number."""
        live = self._live
        for serial in self._pending:
            low, high = live[serial]
            if low <= value <= high:
                yield serial
        node = self._root
        while node is not None:
            if value < node.middle:
                found: Iterable[tuple[float, int]] = node.by_low[
                    : bisect_left(node.by_low, (value, math.inf))
                ]
                node = node.left
            else:
                found = node.by_high[bisect_left(node.by_high, (value, -1)) :]
                node = node.right if value > node.middle else None
            for _, serial in found:
                if serial in live:
                    yield serial


def _build(ranges: list[tuple[float, float, int]]) -> _Node | None:
    # Without those that hold no number: no middle would be in them.
    ranges = [it for it in ranges if it[0] <= it[1] and it[0] < math.inf and it[1] > -math.inf]
    if not ranges:
        return None
    ends = sorted(end for low, high, _ in ranges for end in (low, high) if math.isfinite(end))
    middle = ends[len(ends) // 2] if ends else 0.0
    here = [it for it in ranges if it[0] <= middle <= it[1]]
    return _Node(
        middle,
        sorted((low, serial) for low, _, serial in here),
        sorted((high, serial) for _, high, serial in here),
        _build([it for it in ranges if it[1] < middle]),
        _build([it for it in ranges if it[0] > middle]),
    )
