"""The interpreter: walks the tree, and says why where there is no value.

Rules that hold here:
- It is the reference. The generated Python and the Spark Column are right where they
  agree with it, and it is written to be read, not for speed.
- `SEMANTICS` says what each operation does. Its arguments are values of the declared types,
  none of them missing; an operation without a result raises MissingError with the reason.
- Logic is three-valued: `false && missing` is false, `true || missing` is true,
  anything else with a missing part is missing. `exists` is such an `or` over the
  elements, `all` such an `and`, and `in` an `exists` of `==`.
- A list is a set where each of its elements is a value; otherwise it is none.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, assert_never

from penstock.lang import scalars, tree
from penstock.lang.errors import MAX_EXACT, MAX_INT, MAX_NUMERAL, MAX_STRING, MIN_INT
from penstock.lang.operations import BINARY, FUNCTIONS, METHODS, SET_OPERATIONS, UNARY
from penstock.lang.scalars import DOUBLE_PATTERN, INT_PATTERN
from penstock.lang.types import DOUBLE, ListOf, Type
from penstock.lang.values import Evaluation, MissingError, conform, export


def _int(number: int) -> int:
    if not MIN_INT <= number <= MAX_INT:
        raise MissingError("is beyond the range of int (64 bits)")
    return number


def _double(number: float) -> float:
    if not math.isfinite(number):
        raise MissingError("is beyond the range of double")
    return number


def _moment(value: datetime | None) -> datetime:
    if value is None:
        raise MissingError("is beyond the range of timestamp, or no timestamp")
    return value


def _shift(moment: datetime, by: timedelta) -> datetime:
    try:
        return moment + by
    except OverflowError:
        raise MissingError("is beyond the range of timestamp") from None


def _duration(value: timedelta) -> timedelta:
    known = scalars.as_duration(value)
    if known is None:
        raise MissingError("is beyond the range of duration")
    return known


def _multiply_duration(value: timedelta, by: int) -> timedelta:
    try:
        return _duration(value * by)
    except OverflowError:
        raise MissingError("is beyond the range of duration") from None


def _divide_ints(one: int, other: int) -> int:
    if other == 0:
        raise MissingError("divides by zero")
    quotient = abs(one) // abs(other)
    return _int(quotient if (one < 0) == (other < 0) else -quotient)


def _remainder(one: int, other: int) -> int:
    if other == 0:
        raise MissingError("divides by zero")
    rest = abs(one) % abs(other)
    return -rest if one < 0 else rest


def _divide_doubles(one: float, other: float) -> float:
    if other == 0:
        raise MissingError("divides by zero")
    return _double(one / other)


def _join(one: str, other: str) -> str:
    if len(one) + len(other) > MAX_STRING:
        raise MissingError(f"is longer than {MAX_STRING} characters")
    return one + other


def _to_double(number: int) -> float:
    if abs(number) > MAX_EXACT:
        raise MissingError("is an int without an exact double")
    return float(number)


def _truncate(number: float) -> int:
    return _int(math.trunc(number))


def _read_int(numeral: str) -> int:
    if not re.fullmatch(INT_PATTERN, numeral):
        raise MissingError("reads no int")
    return _int(int(numeral))


def _read_double(numeral: str) -> float:
    if len(numeral) > MAX_NUMERAL or not re.fullmatch(DOUBLE_PATTERN, numeral):
        raise MissingError("reads no double")
    return _double(float(numeral))


def _level(topic: str, index: int) -> str:
    levels = topic.split("/")
    if not 0 <= index < len(levels):
        raise MissingError("asks for a level that the topic does not have")
    return levels[index]


def find_element(items: Sequence[Any], index: int) -> Any:
    """Return the element at an index, counted from 0."""
    if not 0 <= index < len(items):
        raise MissingError("is beyond the end of the list")
    return items[index]


def find_entry(entries: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key."""
    if key not in entries:
        raise MissingError("has no such key")
    return entries[key]


def _day_of_year(moment: datetime) -> int:
    return (moment - datetime(moment.year, 1, 1, tzinfo=UTC)) // timedelta(days=1) + 1


def _date(moment: datetime, zone: str) -> int:
    date = scalars.read_date(moment, zone)
    if date is None:
        raise MissingError("is beyond the range of timestamp in that zone")
    return date


def _join_sets(operation: str, one: set[Any], other: set[Any]) -> Any:
    match operation:
        case "subset":
            return all(element in other for element in one)
        case "union":
            found = [*one, *(element for element in other if element not in one)]
        case "intersect":
            found = [element for element in one if element in other]
        case _:
            found = [element for element in one if element not in other]
    return sorted(found)


def _count(**unit: int) -> Callable[[timedelta], int]:
    return lambda value: scalars.count_units(value, timedelta(**unit))


SEMANTICS: Final[Mapping[str, Callable[..., Any]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "not": operator.not_,
    "neg_int": lambda a: _int(-a),
    "add_int": lambda a, b: _int(a + b),
    "sub_int": lambda a, b: _int(a - b),
    "mul_int": lambda a, b: _int(a * b),
    "div_int": _divide_ints,
    "mod_int": _remainder,
    "neg_double": operator.neg,
    "add_double": lambda a, b: _double(a + b),
    "sub_double": lambda a, b: _double(a - b),
    "mul_double": lambda a, b: _double(a * b),
    "div_double": _divide_doubles,
    "add_string": _join,
    "add_time": _shift,
    "sub_time": lambda a, b: _shift(a, -b),
    "sub_times": lambda a, b: _duration(a - b),
    "add_duration": lambda a, b: _duration(a + b),
    "sub_duration": lambda a, b: _duration(a - b),
    "neg_duration": operator.neg,
    "mul_duration": _multiply_duration,
    "to_double": _to_double,
    "int_from_double": _truncate,
    "int_from_string": _read_int,
    "int_from_timestamp": scalars.to_seconds,
    "double_from_string": _read_double,
    "string_from_int": str,
    "string_from_bool": lambda a: "true" if a else "false",
    "timestamp_from_string": lambda a: _moment(scalars.read_timestamp(a)),
    "timestamp_from_int": lambda a: _moment(scalars.from_seconds(a)),
    "moment_in_zone": lambda a, b: _moment(scalars.read_moment(a, b)),
    "date_in_zone": _date,
    "contains": operator.contains,
    "starts_with": str.startswith,
    "ends_with": str.endswith,
    "lower": scalars.lower,
    "levels": lambda a: a.split("/"),
    "level": _level,
    "includes": lambda a, b: any(b in level for level in a.split("/")),
    "size_string": len,
    "size_list": len,
    "size_map": len,
    "in_map": lambda a, b: a in b,
    "keys": list,
    "year": lambda a: a.year,
    "month": lambda a: a.month,
    "day": lambda a: a.day,
    "hour": lambda a: a.hour,
    "minute": lambda a: a.minute,
    "second": lambda a: a.second,
    "millisecond": lambda a: a.microsecond // 1000,
    "dayOfWeek": lambda a: a.isoweekday(),
    "dayOfYear": _day_of_year,
    "days": _count(days=1),
    "hours": _count(hours=1),
    "minutes": _count(minutes=1),
    "seconds": _count(seconds=1),
    "milliseconds": _count(milliseconds=1),
}


def interpret(node: tree.Node, roots: Mapping[str, Any]) -> Evaluation:
    """Evaluate a tree on its inputs; a root that is not given is missing."""
    try:
        value = export(_Interpreter(roots).evaluate(node), node.type)
    except MissingError as missing:
        return Evaluation(None, missing.reason, missing.span)
    return Evaluation(value)


class _Interpreter:
    def __init__(self, roots: Mapping[str, Any]) -> None:
        self.roots = roots
        self.elements: dict[int, Any] = {}

    def evaluate(self, node: tree.Node) -> Any:
        """Return the value of a node; raise MissingError where it has none."""
        try:
            return self._evaluate(node)
        except MissingError as missing:
            if missing.span is None:
                missing.span = node.span
                missing.reason = f"{_name(node)} {missing.reason}"
            raise

    def _evaluate(self, node: tree.Node) -> Any:  # noqa: C901, PLR0911, PLR0912 - one case per node
        match node:
            case tree.Constant(value=value):
                return value
            case tree.Root():
                return conform(self.roots.get(node.name), node.type)
            case tree.Variable():
                return conform(self.elements[node.slot], node.type)
            case tree.Field():
                return conform(self.evaluate(node.operand).get(node.name), node.type)
            case tree.Entry():
                entries, key = self.evaluate(node.operand), self.evaluate(node.key)
                return conform(find_entry(entries, key), node.type)
            case tree.Element():
                items, index = self.evaluate(node.operand), self.evaluate(node.index)
                return conform(find_element(items, index), node.type)
            case tree.Apply(operation="in_list"):
                return self._member(node)
            case tree.Apply() if node.operation in SET_OPERATIONS:
                one, other = (self._set(argument) for argument in node.arguments)
                return _join_sets(node.operation, one, other)
            case tree.Apply():
                arguments = [self.evaluate(argument) for argument in node.arguments]
                return SEMANTICS[node.operation](*arguments)
            case tree.Matches():
                return node.pattern.search(self.evaluate(node.operand))
            case tree.Logic():
                return _fold(self.evaluate, node.terms, decisive=node.kind == "or")
            case tree.Choice():
                chosen = node.yes if self.evaluate(node.condition) else node.no
                return self.evaluate(chosen)
            case tree.Has():
                return self._has(node)
            case tree.Quantifier():
                return self._quantify(node)
            case tree.MakeList():
                return [self._part(item) for item in node.items]
            case tree.MakeMap():
                return {key: self._part(value) for key, value in node.entries}
            case _:
                assert_never(node)

    def _part(self, node: tree.Node) -> Any:
        """Return a part of a list or map, which may be missing without the whole being so."""
        try:
            return self.evaluate(node)
        except MissingError:
            return None

    def _has(self, node: tree.Has) -> bool:
        try:
            self.evaluate(node.operand)
        except MissingError:
            return False
        return True

    def _member(self, node: tree.Apply) -> bool:
        item, items = self.evaluate(node.arguments[0]), self.evaluate(node.arguments[1])
        kind = _element_type(node.arguments[1].type)
        return _fold(lambda element: bool(conform(element, kind) == item), items, decisive=True)

    def _set(self, node: tree.Node) -> set[Any]:
        """Return the elements of a list, all of which are values; 0.0 stands for -0.0."""
        kind = _element_type(node.type)
        found = {conform(element, kind) for element in self.evaluate(node)}
        return {element + 0.0 for element in found} if kind == DOUBLE else found

    def _quantify(self, node: tree.Quantifier) -> bool:
        items = self.evaluate(node.operand)
        if len(items) > node.limit:
            raise MissingError(f"ranges over more than {node.limit} elements")

        def body(element: Any) -> bool:
            self.elements[node.slot] = element
            return bool(self.evaluate(node.body))

        return _fold(body, items, decisive=node.kind == "exists")


def _fold(ask: Callable[[Any], bool], things: Iterable[Any], *, decisive: bool) -> bool:
    """Join answers: one decisive answer decides; else a missing one is missing."""
    first: MissingError | None = None
    for thing in things:
        try:
            if ask(thing) is decisive:
                return decisive
        except MissingError as missing:
            first = first or missing
    if first is not None:
        raise first
    return not decisive


def _element_type(kind: Type) -> Type:
    if not isinstance(kind, ListOf):
        raise TypeError(f"the checker let {kind} pass as a list")
    return kind.element


# How an operation is written: `/`, `int(…)`, `.level(…)`.
_SHOWN = {
    "in_list": "in",
    "in_map": "in",
    **{
        overload.operation: form.format(name)
        for table, form in (
            (FUNCTIONS, "{}(…)"),
            (METHODS, ".{}(…)"),
            (BINARY, "{}"),
            (UNARY, "{}"),
        )
        for name, overloads in table.items()
        for overload in overloads
    },
}


def _name(node: tree.Node) -> str:
    """Name a node in a reason: its path where it has one, else what it does."""
    path = tree.find_path(node)
    if path is not None:
        return ".".join(path)
    match node:
        case tree.Apply(operation=operation):
            return _SHOWN.get(operation, operation)
        case tree.Entry(operand=operand) | tree.Element(operand=operand):
            return f"a part of {_name(operand)}"
        case tree.Quantifier(kind=kind):
            return kind
        case _:
            return "a part"
