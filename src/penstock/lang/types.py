"""The types of values, the notation that declares them, and the scope of an expression.

    type    = "bool" | "int" | "double" | "string" | "timestamp" | "duration"
            | "list(" type ")" | "map(" type ")"
            | "record{" [ name ":" type { "," name ":" type } ] "}"

Rules that hold here:
- Types are closed: there is no "any", so every expression is checked as a whole.
- The keys of a map are strings. A record is a map whose fields are declared one by
  one; in definitions it may also be written as a mapping from names to types.
- A scope says what an expression may refer to: its roots, and the record that each of them
  is. The standard roots are `s` (subject), `o` (object), `e` (environment) and `t` (the
  message). `t` and part of `e` are built in; definitions add fields, and cannot give
  a built-in field another type.
- Other parts may name roots of their own (a mask looks at one row); the order of the
  roots is the order of the parameters of the generated function.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.errors import InvalidError, Problem, quote
from penstock.lang.errors import (
    MAX_TYPE_DEPTH,
    MAX_TYPE_TEXT,
    ExpressionError,
    Fault,
    FaultError,
    Span,
    list_names,
    suggest,
)
from penstock.lang.scalars import is_text


@dataclass(frozen=True, slots=True)
class Scalar:
    """A type whose values have no parts."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list whose elements have one type."""

    element: Type

    def __str__(self) -> str:
        return f"list({self.element})"


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map from strings to values of one type."""

    value: Type

    def __str__(self) -> str:
        return f"map({self.value})"


@dataclass(frozen=True, slots=True)
class RecordType:
    """A map whose fields are declared one by one, in order."""

    fields: tuple[tuple[str, Type], ...]

    def field(self, name: str) -> Type | None:
        """Return the type of a field, or None where there is no such field."""
        return next((kind for field, kind in self.fields if field == name), None)

    def __str__(self) -> str:
        return "record{" + ", ".join(f"{name}: {kind}" for name, kind in self.fields) + "}"


Type: TypeAlias = Scalar | ListOf | MapOf | RecordType

BOOL: Final = Scalar("bool")
INT: Final = Scalar("int")
DOUBLE: Final = Scalar("double")
STRING: Final = Scalar("string")
TIMESTAMP: Final = Scalar("timestamp")
DURATION: Final = Scalar("duration")
SCALARS: Final = {kind.name: kind for kind in (BOOL, INT, DOUBLE, STRING, TIMESTAMP, DURATION)}
_NOTATIONS: Final = (*SCALARS, "list", "map", "record")

Declaration: TypeAlias = "str | Mapping[str, Declaration]"

_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|[(){}:,])")


def parse_type(declaration: Declaration) -> Type:
    """Return the type that a definition declares, as text or as a mapping of fields."""
    return _declared(declaration, 1)


def parse_record(fields: Mapping[str, Declaration]) -> RecordType:
    """Return the record whose fields are declared by name."""
    return _record(fields, 1)


def _declared(declaration: Declaration, depth: int) -> Type:
    if depth > MAX_TYPE_DEPTH:
        raise _invalid("", f"types nest deeper than {MAX_TYPE_DEPTH} levels")
    if isinstance(declaration, str):
        return _Notation(declaration).parse(depth)
    if isinstance(declaration, Mapping):
        return _record(declaration, depth)
    raise _invalid("", f"a type is text or a mapping of fields, not {type(declaration).__name__}")


def _record(fields: Mapping[str, Declaration], depth: int) -> RecordType:
    names: list[object] = list(fields)  # from a document, so anything may be a key
    for name in names:
        if not isinstance(name, str) or not name or not is_text(name):
            raise _invalid("", f"{quote(name)} cannot name a field: a name is text")
    return RecordType(tuple((name, _declared(kind, depth + 1)) for name, kind in fields.items()))


def _invalid(text: str, message: str) -> ExpressionError:
    return ExpressionError(f"type {quote(text)}", text, [Fault(Span(0, len(text)), message)])


class _Notation:
    """A reader of the notation, one token at a time."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.span = Span(0, 0)
        self.word = ""

    def parse(self, depth: int) -> Type:
        if len(self.text) > MAX_TYPE_TEXT:
            raise _invalid(self.text, f"a type takes at most {MAX_TYPE_TEXT} characters")
        try:
            self._next()
            kind = self._type(depth)
            self._expect("")
        except FaultError as error:
            raise ExpressionError(f"type {quote(self.text)}", self.text, [error.fault]) from None
        return kind

    def _next(self) -> str:
        taken = self.word
        match = _TOKEN.match(self.text, self.at)
        if match:
            self.word, self.span, self.at = match[1], Span(*match.span(1)), match.end()
            return taken
        rest = self.text[self.at :]
        start = self.at + len(rest) - len(rest.lstrip())
        self.word, self.span = "", Span(start, start + 1)
        if rest.strip():
            raise FaultError(self.span, f"unexpected {quote(self.text[start])} in a type")
        return taken

    def _expect(self, token: str) -> None:
        if self.word != token:
            expected = quote(token) if token else "the end of the type"
            raise FaultError(self.span, f"{expected} expected here")
        self._next()

    def _type(self, depth: int) -> Type:
        if depth > MAX_TYPE_DEPTH:
            raise FaultError(self.span, f"types nest deeper than {MAX_TYPE_DEPTH} levels")
        span = self.span
        name = self._next()
        if name in SCALARS:
            return SCALARS[name]
        if name in {"list", "map"}:
            self._expect("(")
            inner = self._type(depth + 1)
            self._expect(")")
            return ListOf(inner) if name == "list" else MapOf(inner)
        if name == "record":
            return self._fields(depth)
        fix = suggest(name, _NOTATIONS) or f"types are {list_names(_NOTATIONS)}"
        raise FaultError(span, f"unknown type {quote(name)}" if name else "a type expected", fix)

    def _fields(self, depth: int) -> RecordType:
        self._expect("{")
        fields: dict[str, Type] = {}
        while self.word != "}":
            if fields:
                self._expect(",")
            span = self.span
            name = self._next()
            if not name.isidentifier():
                raise FaultError(span, "the name of a field expected here")
            if name in fields:
                raise FaultError(span, f"field {quote(name)} is declared twice")
            self._expect(":")
            fields[name] = self._type(depth + 1)
        self._next()
        return RecordType(tuple(fields.items()))


# Scopes

ENVIRONMENT: Final[Mapping[str, Type]] = {
    "time": TIMESTAMP,
    "purpose": STRING,
    "place": STRING,
}
MESSAGE: Final[Mapping[str, Type]] = {
    "topic": STRING,
    "qos": INT,
    "retain": BOOL,
    "size": INT,
    "clientId": STRING,
    "user": STRING,
    "contentType": STRING,
    "properties": MapOf(STRING),
}


@dataclass(frozen=True, slots=True)
class Scope:
    """The roots of an expression, in order, and the record each of them is."""

    roots: tuple[tuple[str, RecordType], ...]
    zone: str | None = None
    """What `e.zone` is, a constant; None: there is no such field."""

    def root(self, name: str) -> RecordType | None:
        """Return the record of a root, or None where there is no such root."""
        return next((record for root, record in self.roots if root == name), None)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the roots, in order."""
        return tuple(name for name, _ in self.roots)


def build_scope(
    *,
    s: Mapping[str, Declaration] | None = None,
    o: Mapping[str, Declaration] | None = None,
    e: Mapping[str, Declaration] | None = None,
    payload: Mapping[str, Declaration] | None = None,
) -> Scope:
    """Return the standard scope with the attributes that definitions declare."""
    message = {**MESSAGE, "payload": parse_record(payload or {})}
    return Scope(
        (
            ("s", parse_record(s or {})),
            ("o", parse_record(o or {})),
            ("e", _extend(ENVIRONMENT, parse_record(e or {}))),
            ("t", RecordType(tuple(message.items()))),
        )
    )


def _extend(built_in: Mapping[str, Type], declared: RecordType) -> RecordType:
    problems = [
        Problem(
            f"e.{name}",
            f"declared as {kind}, but it is built in as {built_in[name]}",
            "leave it out, or give the attribute another name",
        )
        for name, kind in declared.fields
        if name in built_in and built_in[name] != kind
    ]
    if problems:
        raise InvalidError("environment attributes", problems)
    return RecordType(tuple({**built_in, **dict(declared.fields)}.items()))
