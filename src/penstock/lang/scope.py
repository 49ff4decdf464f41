"""What an expression may refer to: the roots and the types of their fields.

Rules that hold here:
- The standard roots are `s` (subject), `o` (object), `e` (environment) and `t` (the
  message). `t` and part of `e` are built in; definitions add fields, and cannot give
  a built-in field another type.
- Other parts may name roots of their own (a mask looks at one row); the order of the
  roots is the order of the parameters of the generated function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.errors import InvalidError, Problem
from penstock.lang.types import (
    BOOL,
    INT,
    STRING,
    TIMESTAMP,
    Declaration,
    MapOf,
    Record,
    Type,
    parse_record,
)

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

    roots: tuple[tuple[str, Record], ...]

    def root(self, name: str) -> Record | None:
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
            ("t", Record(tuple(message.items()))),
        )
    )


def _extend(built_in: Mapping[str, Type], declared: Record) -> Record:
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
    return Record(tuple({**built_in, **dict(declared.fields)}.items()))
