"""The typed tree: what an expression means. All three forms are made from it.

Rules that hold here:
- Every node has a type, and every operation says which kinds of operands it takes:
  no form decides types for itself.
- Conversions are nodes of their own (`to_double`), never implied.
- Every node may come out missing. `Apply` is missing where an argument is; `Logic`,
  `Has`, `Choice` and `Quantifier` say what they make of missing parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.lang.errors import Span
from penstock.lang.scalars import Regex
from penstock.lang.types import RecordType, Type


@dataclass(frozen=True, slots=True)
class Constant:
    """A value of a scalar type, known when the expression is compiled."""

    span: Span
    type: Type
    value: object


@dataclass(frozen=True, slots=True)
class Root:
    """One of the inputs."""

    span: Span
    type: RecordType
    name: str


@dataclass(frozen=True, slots=True)
class Variable:
    """The element a quantifier looks at; `slot` counts quantifiers from the outside."""

    span: Span
    type: Type
    slot: int


@dataclass(frozen=True, slots=True)
class Field:
    """A declared field of a record."""

    span: Span
    type: Type
    operand: Node
    name: str


@dataclass(frozen=True, slots=True)
class Entry:
    """The value of a key in a map."""

    span: Span
    type: Type
    operand: Node
    key: Node


@dataclass(frozen=True, slots=True)
class Element:
    """The element at an index of a list, counted from 0."""

    span: Span
    type: Type
    operand: Node
    index: Node


@dataclass(frozen=True, slots=True)
class Apply:
    """An operation on arguments; see `operations` for what there is."""

    span: Span
    type: Type
    operation: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Matches:
    """A search for a regular expression."""

    span: Span
    type: Type
    operand: Node
    pattern: Regex


@dataclass(frozen=True, slots=True)
class Logic:
    """Three-valued `and` / `or` of two or more terms."""

    span: Span
    type: Type
    kind: Literal["and", "or"]
    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of two values; missing where the condition is."""

    span: Span
    type: Type
    condition: Node
    yes: Node
    no: Node


@dataclass(frozen=True, slots=True)
class Has:
    """Whether a field, entry or element is there; never missing itself."""

    span: Span
    type: Type
    operand: Node


@dataclass(frozen=True, slots=True)
class Quantifier:
    """Three-valued `or` / `and` of the body over a list of at most `limit` elements."""

    span: Span
    type: Type
    kind: Literal["exists", "all"]
    operand: Node
    slot: int
    body: Node
    limit: int


@dataclass(frozen=True, slots=True)
class MakeList:
    """A list of one or more items; an item may be missing."""

    span: Span
    type: Type
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class MakeMap:
    """A map of one or more entries; a value may be missing."""

    span: Span
    type: Type
    entries: tuple[tuple[str, Node], ...]


Node: TypeAlias = (
    Constant
    | Root
    | Variable
    | Field
    | Entry
    | Element
    | Apply
    | Matches
    | Logic
    | Choice
    | Has
    | Quantifier
    | MakeList
    | MakeMap
)


def list_parts(node: Node) -> tuple[Node, ...]:  # noqa: PLR0911 - one case per node
    """Return the nodes directly below a node."""
    match node:
        case Constant() | Root() | Variable():
            return ()
        case Field(operand=operand) | Matches(operand=operand) | Has(operand=operand):
            return (operand,)
        case Entry(operand=operand, key=key):
            return (operand, key)
        case Element(operand=operand, index=index):
            return (operand, index)
        case Apply(arguments=parts) | Logic(terms=parts) | MakeList(items=parts):
            return parts
        case Choice(condition=condition, yes=yes, no=no):
            return (condition, yes, no)
        case Quantifier(operand=operand, body=body):
            return (operand, body)
        case MakeMap(entries=entries):
            return tuple(value for _, value in entries)


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and all nodes below it."""
    yield node
    for part in list_parts(node):
        yield from walk(part)


def find_path(node: Node) -> tuple[str, ...] | None:
    """Return root and field names of a plain path such as `t.payload.temperature`."""
    match node:
        case Root(name=name):
            return (name,)
        case Field(operand=operand, name=name):
            path = find_path(operand)
            return None if path is None else (*path, name)
        case _:
            return None


def find_references(node: Node) -> Iterator[tuple[str, ...]]:
    """Yield the longest paths from a root that an expression reads."""
    path = find_path(node)
    if path is not None:
        yield path
        return
    for part in list_parts(node):
        yield from find_references(part)


def loops(node: Node) -> bool:
    """Tell whether evaluating a node visits the elements of some list from outside."""
    return any(
        isinstance(part, Quantifier)
        or (
            isinstance(part, Apply)
            and part.operation == "in_list"
            and not isinstance(part.arguments[1], MakeList)
        )
        for part in walk(node)
    )
