"""The tree that the parser builds: what the text says, before types give it meaning.

Rules that hold here:
- Nodes are frozen and carry the part of the text they come from.
- `&&` and `||` hold any number of terms, so that a long chain is not a deep tree.
- `depth` counts the nodes from here to the deepest leaf; the parser bounds it, and so
  every later step may recurse.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.lang.errors import Span


@dataclass(frozen=True, slots=True)
class Literal:
    """A bool, int, double or string as written."""

    span: Span
    value: bool | int | float | str
    depth: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True)
class Name:
    """A root or a variable."""

    span: Span
    name: str
    depth: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True)
class Select:
    """A field: `operand.name`; `name_span` is the name alone."""

    span: Span
    operand: Node
    name: str
    name_span: Span
    depth: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Index:
    """An element: `operand[index]`."""

    span: Span
    operand: Node
    index: Node
    depth: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Call:
    """A function `name(arguments)`, or a method `target.name(arguments)`."""

    span: Span
    target: Node | None
    name: str
    name_span: Span
    arguments: tuple[Node, ...]
    depth: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Unary:
    """`!operand` or `-operand`."""

    span: Span
    sign: str
    operand: Node
    depth: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Binary:
    """`left sign right`: a comparison, `in`, or arithmetic; `sign_span` is the sign alone."""

    span: Span
    sign: str
    sign_span: Span
    left: Node
    right: Node
    depth: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Logic:
    """`a && b && …` or `a || b || …`."""

    span: Span
    sign: str
    terms: tuple[Node, ...]
    depth: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Choice:
    """`condition ? yes : no`."""

    span: Span
    condition: Node
    yes: Node
    no: Node
    depth: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class ListLiteral:
    """`[a, b, …]`."""

    span: Span
    items: tuple[Node, ...]
    depth: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class MapLiteral:
    """`{"key": value, …}`."""

    span: Span
    entries: tuple[tuple[Node, Node], ...]
    depth: int = field(compare=False)


Node: TypeAlias = (
    Literal
    | Name
    | Select
    | Index
    | Call
    | Unary
    | Binary
    | Logic
    | Choice
    | ListLiteral
    | MapLiteral
)
