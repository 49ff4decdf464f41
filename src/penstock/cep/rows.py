"""Rows, and the functions that read groups and values from them.

Rules that hold here:
- A row never changes, but for `alive`: a row of a relation dies when it no longer holds.
- Every row has a number of its own, in the order in which rows came to be; saved and
  loaded rows are told by it.
- A row that lacks part of its group's key belongs to no group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final, TypeAlias

from penstock.cep.algebra import Assignment
from penstock.lang import Expression
from penstock.lang.tree import find_path

Values: TypeAlias = dict[str, Any]
Key: TypeAlias = Any
"""What tells groups apart: the value of one attribute, or a tuple of several."""

FIELD_OF_ROOT: Final = 2


class Row:
    """Something that happened (`at`, in milliseconds since 1970) or that holds since then."""

    __slots__ = ("alive", "at", "uid", "values")

    def __init__(self, uid: int, at: int, values: Values) -> None:
        self.uid = uid
        self.at = at
        self.values = values
        self.alive = True

    def __repr__(self) -> str:
        return f"Row({self.uid}, {self.at}, {self.values})"


def key_reader(by: tuple[str, ...]) -> Callable[[Values], Key]:
    """Return what reads the group of a row; None where part of it is missing."""
    if len(by) == 1:
        (name,) = by
        return lambda values: values[name]

    def read(values: Values) -> Key:
        key = tuple([values[name] for name in by])
        return None if None in key else key

    return read


def evaluator(expression: Expression) -> Callable[..., Any]:
    """Return the fast form of an expression over rows.

    The attributes of rows were checked when the rows were made, so that a plain attribute
    of a single row needs no further look.
    """
    path = find_path(expression.tree)
    if path is not None and len(path) == FIELD_OF_ROOT and len(expression.scope.names) == 1:
        name = path[1]
        return lambda values: values.get(name)
    return expression.function


def shaper(assignments: Sequence[Assignment]) -> Callable[..., Values]:
    """Return what makes the values of a row from rows."""
    names = [assignment.name for assignment in assignments]
    paths = [find_path(assignment.value.tree) for assignment in assignments]
    plain = [path[1] for path in paths if path is not None and len(path) == FIELD_OF_ROOT]
    single = all(len(assignment.value.scope.names) == 1 for assignment in assignments)
    if single and 1 < len(plain) == len(names):
        take = itemgetter(*plain)
        return lambda values: dict(zip(names, take(values), strict=True))
    parts = [(assignment.name, evaluator(assignment.value)) for assignment in assignments]
    if len(parts) == 1:
        ((only, function),) = parts
        return lambda *rows: {only: function(*rows)}
    return lambda *rows: {name: function(*rows) for name, function in parts}
