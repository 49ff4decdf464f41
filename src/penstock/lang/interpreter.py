"""The plain form: walks the tree and says why where there is no value.

Rules that hold here:
- It is the reference. The generated Python and the Spark Column are right where they
  agree with it, and it is written to be read.
- Logic is three-valued: `false && missing` is false, `true || missing` is true,
  anything else with a missing part is missing. `exists` is such an `or` over the
  elements, `all` such an `and`, and `in` an `exists` of `==`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, assert_never

from penstock.lang import tree
from penstock.lang.operations import BINARY, FUNCTIONS, METHODS, UNARY
from penstock.lang.semantics import SEMANTICS, find_element, find_entry
from penstock.lang.types import ListOf, Type
from penstock.lang.values import MissingError, Outcome, conform, export


def interpret(node: tree.Node, roots: Mapping[str, Any]) -> Outcome:
    """Evaluate a tree on its inputs; a root that is not given is missing."""
    try:
        value = export(_Interpreter(roots).evaluate(node), node.type)
    except MissingError as missing:
        return Outcome(None, missing.reason, missing.span)
    return Outcome(value)


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
