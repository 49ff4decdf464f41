"""Content filters: subscriptions that ask for events with certain attributes only.

    SUBSCRIBE home/+/vitals   r.pulse > 120 && r.ward == "3"
                                      └── access predicate ──▶ index ─┐
    message ──▶ types ──▶ `r`, once for all readers ──────────────────┴▶ candidates ──▶ evaluated

Rules that hold here:
- A filter is an expression over `r`, the attributes of the event. What errs, or is missing, is no
  match: the message is not delivered.
- The index answers for all filters at once which of them a message may match, by one predicate
  of each: an equality, or a range of numbers. It may name one too many, never one too few. What
  it names is evaluated when its own subscriber is served, so that a filter costs its owner.
- A message that few readers ask about is not worth the index: the first are evaluated directly.
- A filter lives as long as a subscription holds it, and no longer: it ends with the subscription,
  not when memory is tidied. Owners share nothing: what one has is
  neither found, counted nor refused because of another.
- Its text is bounded in length and in nodes, an owner's filters in number. What it may cost for one
  message is bounded, too: no quantifier, no sets, one pattern, and no text of any length (`types`).
"""

from __future__ import annotations

import math
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

from penstock.errors import UsageError, quote
from penstock.lang import (
    BOOL,
    Expression,
    ExpressionError,
    RecordType,
    Scope,
    compile_expression,
    tree,
)
from penstock.lang.errors import FaultError
from penstock.lang.operations import SET_OPERATIONS
from penstock.lang.syntax import split_tokens
from penstock.policy.access.objects import Message
from penstock.policy.events.types import EventTypes

ROOT: Final = "r"
TEXT_LIMIT: Final = 1_024
NODE_LIMIT: Final = 100
OWNER_LIMIT: Final = 1_000
"""How many different filters the clients of one user may hold at a gateway."""
PATTERN_LIMIT: Final = 100
"""How many of them may search for a pattern: each takes up to a megabyte."""
DIRECT: Final = 4
"""So many readers of a message are evaluated before the index is asked."""

_EQUAL: Final = "eq"
_MIRRORED: Final = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", _EQUAL: _EQUAL}
_NUMBERS: Final = (int, float)
_SEARCH: Final = "matches"
_COSTLY: Final = SET_OPERATIONS | {"exists", "all"}
"""What looks at every level of a text: one message could keep a gateway busy for minutes."""
_PENDING: Final = 64

Key = tuple[str, type]
"""An attribute: its name, and whether its values are texts, numbers or bools."""


class ContentError(UsageError):
    """A content filter is malformed, or there are too many."""


class ContentLimitError(ContentError):
    """Somebody has as many content filters as they may have."""


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


class CompiledContent:
    """One filter of one owner; `serial` names it in the index."""

    __slots__ = ("__weakref__", "function", "predicate", "searches", "serial", "text")

    def __init__(self, serial: int, expression: Expression) -> None:
        self.serial = serial
        self.text = expression.text
        self.searches = any(isinstance(it, tree.Matches) for it in tree.walk(expression.tree))
        self.predicate = find_predicate(expression.tree)
        self.function = expression.function


class ContentFilter:
    """What events one subscription is for. Once ended it matches nothing; its text stays."""

    __slots__ = ("compiled", "text")

    def __init__(self, compiled: CompiledContent) -> None:
        self.text = compiled.text
        self.compiled: CompiledContent | None = compiled

    def end(self) -> None:
        """Let go of what was compiled."""
        self.compiled = None


class Look:
    """What filters have made of one message."""

    __slots__ = ("asked", "candidates", "generation", "record", "upto")

    def __init__(self, record: Mapping[str, Any], generation: int) -> None:
        self.record = record
        self.generation = generation
        self.asked = 0
        self.candidates: set[int] | None = None
        self.upto = 0
        """The last filter that the candidates know of."""


class ContentFilters:
    """The content filters of all subscriptions of a gateway."""

    def __init__(self, types: EventTypes | None = None, *, direct: int = DIRECT) -> None:
        self.types = types or EventTypes()
        self._direct = direct
        self._index = ContentIndex()
        self._held: dict[str, weakref.WeakValueDictionary[Any, CompiledContent]] = {}
        self._last = 0
        # A filter may end in the midst of anything, by the garbage collector: it is put aside.
        self._ended: deque[tuple[str, int, Predicate | None]] = deque()

    def __len__(self) -> int:
        self._tidy()
        return len(self._index)

    @property
    def in_use(self) -> bool:
        """Whether somebody may have a filter."""
        return bool(self._held)

    def check(
        self, text: str, filter_: str, visible: Callable[[str], bool] = lambda _: True
    ) -> None:
        """Refuse a text that is no filter for messages of these topics; say so in one line."""
        self._compile(text, self.types.describe(filter_, visible))

    def hold(
        self, owner: str, text: str, filter_: str, visible: Callable[[str], bool] | None = None
    ) -> ContentFilter:
        """Return the filter of an owner for messages of these topics, made if it has none.

        With `visible`, errors tell of no type that the owner could not read.
        """
        if visible is not None:
            self.check(text, filter_, visible)
        record = self.types.describe(filter_)
        held = self._held.get(owner)
        known = held.get((text, record)) if held is not None else None
        if known is not None:
            return ContentFilter(known)
        try:
            expression = self._compile(text, record)
        except ContentError:
            if visible is None:
                raise
            # It is right by the types that the owner may read: the others are not to be named.
            raise ContentError(
                "what the content filter asks for has no single type under this topic filter",
                fix="subscribe to fewer topics",
            ) from None
        self._tidy()
        held = self._held.get(owner)
        if held is None:
            held = self._held[owner] = weakref.WeakValueDictionary()
        if len(held) >= OWNER_LIMIT:
            raise ContentLimitError(
                f"there are {OWNER_LIMIT} different content filters of yours",
                fix="end subscriptions, or let clients use the same filters",
            )
        made = CompiledContent(self._last + 1, expression)
        if made.searches and sum(it.searches for it in held.values()) >= PATTERN_LIMIT:
            raise ContentLimitError(
                f"there are {PATTERN_LIMIT} different content filters of yours that have a pattern",
                fix="compare with ==, startsWith or contains, or end subscriptions",
            )
        self._last = made.serial
        held[text, record] = made
        self._index.add(made.serial, made.predicate)
        ended = (owner, made.serial, made.predicate)
        weakref.finalize(made, self._ended.append, ended).atexit = False
        return ContentFilter(made)

    def admits(self, content: ContentFilter, message: Message) -> bool:
        """Tell whether a message matches a filter."""
        compiled, look = content.compiled, message.look
        if compiled is None:
            return False
        if look is None or look.generation != self.types.generation:
            look = message.look = Look(self.types.read(message), self.types.generation)
        look.asked += 1
        if look.candidates is None and look.asked > self._direct:
            self._tidy()
            look.candidates, look.upto = self._index.search(look.record), self._last
        if (
            look.candidates is not None
            and compiled.predicate is not None
            and compiled.serial <= look.upto
            and compiled.serial not in look.candidates
        ):
            return False
        try:
            return compiled.function(look.record) is True
        except Exception:  # noqa: BLE001 - whatever goes wrong, the answer is no
            return False

    def candidates(self, record: Mapping[str, Any]) -> set[int]:
        """Return the serials of the filters that a record may match: one search for all."""
        self._tidy()
        return self._index.search(record) | self._index.others

    def _compile(self, text: str, record: RecordType) -> Expression:
        if len(text) > TEXT_LIMIT:
            raise ContentError(
                f"a content filter has {len(text)} characters; at most {TEXT_LIMIT} are taken",
                fix="write a shorter one, or several subscriptions",
            )
        if not record.fields:
            raise ContentError(
                "no type of messages is known to you under this filter",
                fix="leave the content filter out, or subscribe where a stream declares fields",
            )
        _check_cost(text)
        try:
            made = compile_expression(text, Scope(((ROOT, record),)), BOOL)
        except ExpressionError as error:
            raise _in_one_line(error) from None
        nodes = sum(1 for _ in tree.walk(made.tree))
        if nodes > NODE_LIMIT:
            raise ContentError(
                f"a content filter has {nodes} parts; at most {NODE_LIMIT} are taken",
                fix="write a simpler one",
            )
        return made

    def _tidy(self) -> None:
        """Take filters out that nobody holds any more."""
        while self._ended:
            owner, serial, predicate = self._ended.popleft()
            self._index.discard(serial, predicate)
            if owner in self._held and not len(self._held[owner]):
                del self._held[owner]


def _check_cost(text: str) -> None:
    """Refuse what may take long, before anything of it is compiled."""
    try:
        tokens = split_tokens(text)
    except FaultError:
        return  # the compiler says what is wrong
    called = [name.value for name, sign in pairwise(tokens) if sign.value == "("]
    costly = sorted(_COSTLY.intersection(it for it in called if isinstance(it, str)))
    if costly:
        raise ContentError(
            f"a content filter has no {costly[0]}: it would look at each level of a text",
            fix="compare attributes, with .level(…), .includes(…) or .contains(…) for texts",
        )
    if called.count(_SEARCH) > 1:
        raise ContentError(
            "a content filter has more than one pattern",
            fix='join them in one: .matches(r"…|…")',
        )


def _in_one_line(error: ExpressionError) -> ContentError:
    """Say what is wrong without the drawing: reason strings have no lines."""
    told = [
        f"at character {it.span.start + 1}: {it.message}" + (f" ({it.fix})" if it.fix else "")
        for it in error.faults[:3]
    ]
    shown = quote("".join(c if c.isprintable() else " " for c in error.text))
    return ContentError(
        f"the content filter {shown} is wrong, {'; '.join(told)}",
        fix="correct it, and subscribe again",
    )


# --- the predicate that a filter is found by ---


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
