"""Random expressions of a wanted type, as text, and random inputs for them.

Rules that hold here:
- An expression is right by construction, so that every draw tests an evaluation.
- Values come from the edges of their types as often as from the middle, and rows repeat
  the constants of expressions, so that comparisons go both ways.
- Everything is drawn from the `Random` passed in: a seed, or Hypothesis, repeats it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from penstock.lang import (
    BOOL,
    DOUBLE,
    DURATION,
    INT,
    STRING,
    TIMESTAMP,
    ListOf,
    MapOf,
    RecordType,
    Scalar,
    Type,
    build_scope,
)
from penstock.lang.operations import DURATION_UNITS, TIME_PARTS

_FIELDS = {
    "b": "bool",
    "c": "bool",
    "i": "int",
    "j": "int",
    "d": "double",
    "f": "double",
    "x": "string",
    "y": "string",
    "at": "timestamp",
    "since": "timestamp",
    "span": "duration",
    "wait": "duration",
    "bs": "list(bool)",
    "is": "list(int)",
    "ds": "list(double)",
    "xs": "list(string)",
    "ats": "list(timestamp)",
    "spans": "list(duration)",
    "mi": "map(int)",
    "mx": "map(string)",
    "r": "record{i: int, x: string, is: list(int), deep: record{d: double}}",
    "rs": "list(record{i: int, x: string, xs: list(string)})",
}
SCOPE = build_scope(
    s={name: _FIELDS[name] for name in ("b", "i", "x", "xs", "mi", "rs", "bs")},
    o=_FIELDS,
    payload={name: _FIELDS[name] for name in ("d", "f", "x", "span", "ds", "r")},
)
SCALARS: tuple[Scalar, ...] = (BOOL, INT, DOUBLE, STRING, TIMESTAMP, DURATION)

INTS = [0, 1, -1, 2, 3, 7, -7, 12, 59, 2**31, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)]
DOUBLES = [
    0.0,
    -0.0,
    0.5,
    1.0,
    -1.5,
    3.0,
    12.0,
    2.0**53,
    1e308,
    -1e308,
    5e-324,
    2.0**63,
    -(2.0**63),
]
TEXTS = [
    "", "a", "A", "b", "ab", "aB/c", "/", "a/b/", "é", "e\u0301", "É", "ß", "ẞ", "İ", "\u0131", "Σ",
    "ΑΣ", "ǅ", "😀", "\U00010400", "\uffff", "\0", " ", "12", "-7", "007", "1.5", "1e3", "-1e999",
    "NaN", "1\n", "9223372036854775808", "true", "2026-03-01T08:30:15.123456Z",
    "2026-03-01T23:59:59+02:00", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+18:00",
    "2026-02-30T00:00:00Z", "\u212a", "\u1e9e", "2026-03-01", "2026-10-24", "9999-12-31",
]  # fmt: skip
ZONES = ["UTC", "Europe/Rome", "America/Sao_Paulo", "Pacific/Apia", "Asia/Kathmandu"]
PATTERNS = [
    "a",
    "^a",
    "b$",
    "[a-c]+/",
    "^$",
    "é",
    ".",
    "^.$",
    r"\d",
    r"\s",
    r"\pL",
    "(?i)A",
    "(a+)+$",
]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMESTAMPS = [
    _EPOCH,
    _EPOCH - timedelta(microseconds=1),
    datetime(2026, 3, 1, 8, 30, 15, 123456, tzinfo=UTC),
    datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(2023, 10, 29, 0, 30, tzinfo=UTC),
    datetime(2023, 10, 29, 1, 30, tzinfo=UTC),
    datetime.min.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=UTC),
    datetime(1582, 10, 10, tzinfo=UTC),
]
DURATIONS = [
    timedelta(0),
    timedelta(microseconds=1),
    timedelta(microseconds=-1),
    timedelta(hours=1),
    timedelta(days=-1, minutes=3),
    timedelta(days=3652500),
    timedelta(days=-3652500),
    timedelta(milliseconds=-1500),
]
NON_FINITE = [float("nan"), float("inf"), float("-inf")]


def write_text(value: str) -> str:
    """Write a string as a literal of the language."""
    return json.dumps(value, ensure_ascii=False)


def _write_duration(value: timedelta) -> str:
    sign = "-" if value < timedelta(0) else ""
    return f'duration("{sign}{abs(value) // timedelta(microseconds=1)}us")'


_WRITERS: dict[Scalar, Callable[[Any], str]] = {
    BOOL: lambda value: "true" if value else "false",
    INT: str,
    DOUBLE: repr,
    STRING: write_text,
    TIMESTAMP: lambda value: f'timestamp("{value.isoformat().replace("+00:00", "Z")}")',
    DURATION: _write_duration,
}
_EDGES: dict[Scalar, list[Any]] = {
    BOOL: [True, False],
    INT: INTS,
    DOUBLE: DOUBLES,
    STRING: TEXTS,
    TIMESTAMP: TIMESTAMPS,
    DURATION: DURATIONS,
}


class Inputs:
    """Draws values for the roots of SCOPE: values and nulls, and NaN among doubles."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def row(self) -> dict[str, Any]:
        return {name: self.value(record, 0.0) for name, record in SCOPE.roots}

    def value(self, kind: Type, nulls: float = 0.07) -> Any:
        draw = self.random
        if draw.random() < nulls:
            return None
        match kind:
            case RecordType(fields=fields):
                return {name: self.value(inner) for name, inner in fields}
            case ListOf(element=element):
                return [self.value(element, 0.08) for _ in range(draw.choice([0, 1, 2, 2, 3, 4]))]
            case MapOf(value=inner):
                keys = draw.sample(["a", "b", "é", "", "12"], draw.randrange(4))
                return {key: self.value(inner) for key in keys}
            case Scalar():
                return self.scalar(kind)

    def scalar(self, kind: Scalar) -> Any:
        draw = self.random
        if kind == DOUBLE and draw.random() < 0.06:
            return draw.choice(NON_FINITE)
        if draw.random() < 0.6:
            return draw.choice(_EDGES[kind])
        return _DRAWS[kind](draw)


_DRAWS: dict[Scalar, Callable[[Random], Any]] = {
    BOOL: lambda draw: draw.choice([True, False]),
    INT: lambda draw: draw.choice([draw.randint(-20, 20), draw.getrandbits(63) - 2**62]),
    DOUBLE: lambda draw: draw.choice([draw.randint(-20, 20) / 4, draw.uniform(-1e19, 1e19)]),
    STRING: lambda draw: "".join(draw.choice(TEXTS[:20]) for _ in range(draw.randrange(4))),
    TIMESTAMP: lambda draw: _EPOCH + timedelta(microseconds=draw.randint(-(10**16), 10**17)),
    DURATION: lambda draw: timedelta(microseconds=draw.randint(-(10**14), 10**14)),
}


class Expressions:
    """Draws expressions over SCOPE."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.variables: dict[str, Type] = {}

    def draw(self, kind: Type, depth: int) -> str:
        """Return the text of an expression of a type, at most so many levels deep."""
        if isinstance(kind, ListOf):
            return self._list(kind, depth)
        if isinstance(kind, MapOf):
            return self._map(kind, depth)
        if not isinstance(kind, Scalar):
            raise TypeError(kind)
        if depth <= 0 or self.random.random() < 0.12:
            return self._leaf(kind)
        ways = _WAYS[kind]
        return self.random.choice(ways)(self, depth - 1)

    def literal(self, kind: Scalar) -> str:
        return _WRITERS[kind](self.random.choice(_EDGES[kind]))

    def path(self, kind: Type) -> str | None:
        """Return a variable, field, entry or element of a type."""
        found = [name for name, known in self.variables.items() if known == kind]
        for root, record in [*SCOPE.roots, *self.variables.items()]:
            found += _paths(root, record, kind)
        return self.random.choice(found) if found else None

    def _leaf(self, kind: Scalar) -> str:
        if self.random.random() < 0.7:
            return self.path(kind) or self.literal(kind)
        return self.literal(kind)

    def choice(self, kind: Type, depth: int) -> str:
        parts = (self.draw(BOOL, depth), self.draw(kind, depth), self.draw(kind, depth))
        return "({} ? {} : {})".format(*parts)

    def taken(self, kind: Scalar, depth: int) -> str:
        """Return an element of a list or an entry of a map."""
        if self.random.random() < 0.5:
            index = self.random.choice(["0", "1", "2", self.draw(INT, depth)])
            return f"{self.draw(ListOf(kind), depth)}[{index}]"
        key = self.random.choice(['"a"', '"é"', self.draw(STRING, depth)])
        return f"{self.draw(MapOf(kind), depth)}[{key}]"

    def _list(self, kind: ListOf, depth: int) -> str:
        path = self.path(kind)
        roll = self.random.random()
        if path and (roll < 0.6 or depth <= 0):
            return path
        if kind.element == STRING and roll < 0.7:
            return f"{self.draw(STRING, depth - 1)}.levels()"
        if path and roll < 0.8:
            return self.choice(kind, depth - 1)
        if depth > 0 and roll < 0.93:
            return self.combined(kind, self.random.choice(["union", "intersect", "minus"]), depth)
        items = [self.draw(kind.element, depth - 1) for _ in range(self.random.randint(1, 3))]
        return f"[{', '.join(items)}]"

    def combined(self, kind: ListOf, operation: str, depth: int) -> str:
        """Return what two lists come to as sets."""
        one, other = self.draw(kind, depth - 1), self.draw(kind, depth - 1)
        if self.random.random() < 0.2:
            other = one  # equal sets are rare between random lists
        return f"{one}.{operation}({other})"

    def _map(self, kind: MapOf, depth: int) -> str:
        path = self.path(kind)
        if path and (self.random.random() < 0.6 or depth <= 0):
            return path
        keys = self.random.sample(["a", "b", "é", ""], self.random.randint(1, 3))
        entries = [f"{write_text(key)}: {self.draw(kind.value, depth - 1)}" for key in keys]
        return f"{{{', '.join(entries)}}}"

    def quantified(self, depth: int) -> str:
        if len(self.variables) >= 2:
            return self.draw(BOOL, depth)
        name = f"v{len(self.variables)}"
        record = _record_type("rs")
        kind = self.random.choice([*SCALARS, record, STRING, INT])
        if self.random.random() < 0.1:
            items, kind = self.draw(MapOf(INT), 0), STRING
        elif isinstance(kind, RecordType):
            items = self.path(ListOf(kind)) or "o.rs"
        else:
            items = self.draw(ListOf(kind), depth)
        self.variables[name] = kind
        body = self.draw(BOOL, depth)
        del self.variables[name]
        return f"{items}.{self.random.choice(['exists', 'all'])}({name}, {body})"

    def joined(self, depth: int) -> str:
        sign = self.random.choice([" && ", " || "])
        return (
            f"({sign.join(self.draw(BOOL, depth) for _ in range(self.random.choice([2, 2, 3])))})"
        )

    def compared(self, depth: int) -> str:
        sign = self.random.choice(["==", "!=", "<", "<=", ">", ">="])
        kind = self.random.choice(SCALARS[1:] if sign in {"<", "<=", ">", ">="} else SCALARS)
        other = self.random.choice([INT, DOUBLE]) if kind == DOUBLE else kind
        if self.random.random() < 0.2:
            # The same twice, or nearly: equality is rare between random values.
            text = self.draw(kind, depth)
            return f"({text} {sign} {text})"
        left, right = self.draw(kind, depth), self.draw(other, depth)
        return f"({left} {sign} {self._exact(right)})"

    def _exact(self, text: str) -> str:
        # An int literal without an exact double is refused where a double is wanted.
        digits = text.strip("(- )")
        return f"({text} + 0)" if digits.isdigit() and int(digits) > 2**53 else text

    def within(self, depth: int) -> str:
        kind = self.random.choice(SCALARS)
        return f"({self.draw(kind, depth)} in {self.draw(ListOf(kind), depth)})"

    def asked(self, depth: int) -> str:
        kind = self.random.choice([*SCALARS, ListOf(INT), MapOf(STRING), _record_type("r")])
        path = self.path(kind)
        if isinstance(kind, Scalar) and (path is None or self.random.random() < 0.4):
            return f"has({self.taken(kind, depth)})"
        return f"has({path})" if path and ("." in path or "[" in path) else "has(o.i)"

    def arithmetic(self, kind: Scalar, signs: list[str], depth: int) -> str:
        other = self.random.choice([INT, DOUBLE]) if kind == DOUBLE else kind
        left, right = self.draw(kind, depth), self.draw(other, depth)
        return f"({left} {self.random.choice(signs)} {self._exact(right)})"

    def searched(self, depth: int) -> str:
        method = self.random.choice(["contains", "startsWith", "endsWith", "includes"])
        return f"{self.draw(STRING, depth)}.{method}({self.draw(STRING, depth)})"


def _record_type(name: str) -> Type:
    record = SCOPE.root("o")
    kind = record.field(name) if record else None
    if kind is None:
        raise KeyError(name)
    return kind.element if isinstance(kind, ListOf) else kind


def _paths(prefix: str, kind: Type, wanted: Type) -> list[str]:
    if not isinstance(kind, RecordType):
        return []
    found = []
    for name, inner in kind.fields:
        path = f"{prefix}.{name}"
        if inner == wanted:
            found.append(path)
        found += _paths(path, inner, wanted)
        if inner == MapOf(wanted):
            found.append(f"{path}.a")
    return found


_Way = Callable[[Expressions, int], str]
_MINUS = "(- {})"
_WAYS: dict[Scalar, list[_Way]] = {
    BOOL: [
        Expressions.joined,
        Expressions.joined,
        Expressions.compared,
        Expressions.compared,
        Expressions.compared,
        Expressions.within,
        Expressions.within,
        Expressions.quantified,
        Expressions.quantified,
        Expressions.asked,
        Expressions.searched,
        lambda it, depth: it.combined(ListOf(it.random.choice(SCALARS)), "subset", depth),
        lambda it, depth: f"!({it.draw(BOOL, depth)})",
        lambda it, depth: it.choice(BOOL, depth),
        lambda it, depth: it.taken(BOOL, depth),
        lambda it, depth: f"({it.draw(STRING, depth)} in {it.draw(MapOf(INT), depth)})",
        lambda it, depth: (
            f"{it.draw(STRING, depth)}.matches({write_text(it.random.choice(PATTERNS))})"
        ),
    ],
    INT: [
        lambda it, depth: it.arithmetic(INT, ["+", "-", "*", "/", "%"], depth),
        lambda it, depth: it.arithmetic(INT, ["+", "-", "*", "/", "%"], depth),
        lambda it, depth: _MINUS.format(it.draw(INT, depth)),
        lambda it, depth: it.choice(INT, depth),
        lambda it, depth: it.taken(INT, depth),
        lambda it, depth: f"size({it.draw(STRING, depth)})",
        lambda it, depth: (
            f"{it.draw(ListOf(it.random.choice([INT, STRING, DOUBLE])), depth)}.size()"
        ),
        lambda it, depth: f"{it.draw(MapOf(STRING), depth)}.size()",
        lambda it, depth: f"int({it.draw(DOUBLE, depth)})",
        lambda it, depth: f"int({it.draw(STRING, depth)})",
        lambda it, depth: f"int({it.draw(TIMESTAMP, depth)})",
        lambda it, depth: f"{it.draw(TIMESTAMP, depth)}.{it.random.choice(TIME_PARTS)}()",
        lambda it, depth: f"{it.draw(DURATION, depth)}.{it.random.choice(DURATION_UNITS)}()",
        lambda it, depth: f'{it.draw(TIMESTAMP, depth)}.date("{it.random.choice(ZONES)}")',
    ],
    DOUBLE: [
        lambda it, depth: it.arithmetic(DOUBLE, ["+", "-", "*", "/"], depth),
        lambda it, depth: it.arithmetic(DOUBLE, ["+", "-", "*", "/"], depth),
        lambda it, depth: _MINUS.format(it.draw(DOUBLE, depth)),
        lambda it, depth: it.choice(DOUBLE, depth),
        lambda it, depth: it.taken(DOUBLE, depth),
        lambda it, depth: f"double({it.draw(INT, depth)})",
        lambda it, depth: f"double({it.draw(STRING, depth)})",
    ],
    STRING: [
        lambda it, depth: f"({it.draw(STRING, depth)} + {it.draw(STRING, depth)})",
        lambda it, depth: f"{it.draw(STRING, depth)}.lower()",
        lambda it, depth: f"{it.draw(STRING, depth)}.level({it.draw(INT, depth)})",
        lambda it, depth: f"{it.draw(STRING, depth)}.level({it.random.randrange(3)})",
        lambda it, depth: f"string({it.draw(it.random.choice([INT, BOOL]), depth)})",
        lambda it, depth: it.choice(STRING, depth),
        lambda it, depth: it.taken(STRING, depth),
    ],
    TIMESTAMP: [
        lambda it, depth: f"({it.draw(TIMESTAMP, depth)} + {it.draw(DURATION, depth)})",
        lambda it, depth: f"({it.draw(DURATION, depth)} + {it.draw(TIMESTAMP, depth)})",
        lambda it, depth: f"({it.draw(TIMESTAMP, depth)} - {it.draw(DURATION, depth)})",
        lambda it, depth: f"timestamp({it.draw(INT, depth)})",
        lambda it, depth: f'timestamp({it.draw(STRING, depth)} + "")',
        lambda it, depth: f'timestamp({it.draw(STRING, depth)}, "{it.random.choice(ZONES)}")',
        lambda it, depth: it.choice(TIMESTAMP, depth),
        lambda it, depth: it.taken(TIMESTAMP, depth),
    ],
    DURATION: [
        lambda it, depth: f"({it.draw(TIMESTAMP, depth)} - {it.draw(TIMESTAMP, depth)})",
        lambda it, depth: it.arithmetic(DURATION, ["+", "-"], depth),
        lambda it, depth: f"({it.draw(DURATION, depth)} * {it.draw(INT, depth)})",
        lambda it, depth: f"({it.draw(INT, depth)} * {it.draw(DURATION, depth)})",
        lambda it, depth: _MINUS.format(it.draw(DURATION, depth)),
        lambda it, depth: it.choice(DURATION, depth),
        lambda it, depth: it.taken(DURATION, depth),
    ],
}
