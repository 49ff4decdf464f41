"""An expression: from its text and scope to what it means, and to what evaluates it.

Rules that hold here:
- All type errors of an expression are found at once, up to a bound. A node that is wrong
  has no type (None) and causes no further errors above it.
- After the check nothing is left to decide: the three forms only carry out the tree.
- An Expression is right: one that is not cannot be made. Problems are raised all at
  once, shown under the text.
- Its forms have one meaning. `evaluate` explains; `function` is for the hot path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, assert_never

from typing_extensions import override

from penstock.errors import quote
from penstock.lang import syntax, tree
from penstock.lang.calls import NodeChecker, check_call
from penstock.lang.errors import (
    MAX_PROBLEMS,
    ExpressionError,
    Fault,
    FaultError,
    Span,
    list_names,
    suggest,
)
from penstock.lang.interpreter import interpret
from penstock.lang.operations import BINARY, UNARY, find_overload
from penstock.lang.parser import parse
from penstock.lang.python import generate
from penstock.lang.types import (
    BOOL,
    DOUBLE,
    INT,
    STRING,
    ListOf,
    MapOf,
    RecordType,
    Scalar,
    Scope,
    Type,
)
from penstock.lang.values import Evaluation

_LITERALS: Mapping[type, Type] = {bool: BOOL, int: INT, float: DOUBLE, str: STRING}


class Checker(NodeChecker):
    """Checks one expression; `faults` holds what is wrong with it."""

    @override
    def check(self, node: syntax.Node) -> tree.Node | None:  # noqa: C901, PLR0911, PLR0912 - one case per node
        if len(self.faults) >= MAX_PROBLEMS:
            return None
        match node:
            case syntax.Literal():
                return tree.Constant(node.span, _LITERALS[type(node.value)], node.value)
            case syntax.Name():
                return self._name(node)
            case syntax.Select():
                return self._select(node)
            case syntax.Index():
                return self._index(node)
            case syntax.Call():
                return check_call(self, node)
            case syntax.Unary():
                return self._unary(node)
            case syntax.Binary():
                return self._binary(node)
            case syntax.Logic():
                return self._logic(node)
            case syntax.Choice():
                return self._choice(node)
            case syntax.ListLiteral():
                return self._list(node)
            case syntax.MapLiteral():
                return self._map(node)
            case _:
                assert_never(node)

    # Names and paths

    def _name(self, node: syntax.Name) -> tree.Node | None:
        variable = self.variables.get(node.name)
        if variable is not None:
            return tree.Variable(node.span, variable.type, variable.slot)
        record = self.scope.root(node.name)
        if record is not None:
            return tree.Root(node.span, record, node.name)
        known = [*self.variables, *self.scope.names]
        self.fault(
            node.span,
            f"unknown name {quote(node.name)}",
            suggest(node.name, known)
            or f'names are {list_names(known)}; text is written "{node.name}"',
        )
        return None

    def _select(self, node: syntax.Select) -> tree.Node | None:
        operand = self.check(node.operand)
        if operand is None:
            return None
        return self._pick(operand, node.name, node.name_span, node.span)

    def _pick(self, operand: tree.Node, name: str, name_span: Span, span: Span) -> tree.Node | None:
        if isinstance(operand.type, MapOf):
            key = tree.Constant(name_span, STRING, name)
            return tree.Entry(span, operand.type.value, operand, key)
        if isinstance(operand.type, RecordType):
            kind = operand.type.field(name)
            if kind is not None:
                return tree.Field(span, kind, operand, name)
            if (tree.find_path(operand), name) == (("e",), "zone") and self.scope.zone is not None:
                return tree.Constant(span, STRING, self.scope.zone)
            known = [field for field, _ in operand.type.fields]
            path = ".".join(tree.find_path(operand) or ("this record",))
            listed = f"its fields are {list_names(known)}" if known else "it has no fields"
            self.fault(
                name_span, f"{path} has no field {quote(name)}", suggest(name, known) or listed
            )
            return None
        fix = None
        if operand.type == STRING or isinstance(operand.type, ListOf):
            fix = f"methods are called with parentheses: .{name}(…)"
        self.fault(name_span, f"{operand.type} has no fields", fix)
        return None

    def _index(self, node: syntax.Index) -> tree.Node | None:
        operand = self.check(node.operand)
        if operand is None:
            return None
        match operand.type:
            case ListOf(element=element):
                index = self.check_as(node.index, INT, "a list is indexed by")
                return index and tree.Element(node.span, element, operand, index)
            case MapOf(value=value):
                key = self.check_as(node.index, STRING, "a map is indexed by")
                return key and tree.Entry(node.span, value, operand, key)
            case RecordType():
                if isinstance(node.index, syntax.Literal) and isinstance(node.index.value, str):
                    return self._pick(operand, node.index.value, node.index.span, node.span)
                self.fault(
                    node.index.span,
                    "a record is indexed by a string literal",
                    "declare a map(…) where the key is to be computed",
                )
            case _:
                fix = "split a topic with .levels()" if operand.type == STRING else None
                self.fault(node.span, f"{operand.type} cannot be indexed", fix)
        return None

    # Operators

    def _unary(self, node: syntax.Unary) -> tree.Node | None:
        operand = self.check(node.operand)
        if operand is None:
            return None
        overload = find_overload(UNARY[node.sign], [operand.type])
        if overload is None:
            self.fault(node.span, f"{node.sign} does not take {operand.type}")
            return None
        if overload.operation == "neg_double" and isinstance(operand, tree.Constant):
            return tree.Constant(node.span, DOUBLE, -float(str(operand.value)))
        return self.apply(node.span, overload, [operand])

    def _binary(self, node: syntax.Binary) -> tree.Node | None:
        left, right = self.check(node.left), self.check(node.right)
        if left is None or right is None:
            return None
        if node.sign == "in":
            return self._member(node, left, right)
        overload = find_overload(BINARY[node.sign], [left.type, right.type])
        if overload is None:
            self.fault(
                node.sign_span,
                f"{node.sign} does not take {left.type} and {right.type}",
                _operator_fix(node.sign, left.type, right.type),
            )
            return None
        return self.apply(node.span, overload, [left, right])

    def _member(
        self, node: syntax.Binary, item: tree.Node, container: tree.Node
    ) -> tree.Node | None:
        match container.type:
            case ListOf(element=Scalar() as element):
                if item.type == DOUBLE and isinstance(container, tree.MakeList):
                    container = self.convert(container, ListOf(DOUBLE)) or container
                    element = DOUBLE if container.type == ListOf(DOUBLE) else element
                converted = self.convert(item, element)
                if converted is not None:
                    return tree.Apply(node.span, BOOL, "in_list", (converted, container))
            case MapOf() if item.type == STRING:
                return tree.Apply(node.span, BOOL, "in_map", (item, container))
            case _:
                pass
        fix = "the right side is a list, or a map whose keys are asked for"
        if container.type == STRING and item.type == STRING:
            fix = "write text.contains(word)"
        elif isinstance(container.type, ListOf):
            fix = "both sides are of one scalar type; look into other elements with .exists(x, …)"
        self.fault(node.sign_span, f"in does not take {item.type} and {container.type}", fix)
        return None

    def _logic(self, node: syntax.Logic) -> tree.Node | None:
        terms = [self.check_as(term, BOOL, f"{node.sign} joins") for term in node.terms]
        known = tuple(term for term in terms if term is not None)
        if len(known) < len(terms):
            return None
        return tree.Logic(node.span, BOOL, "and" if node.sign == "&&" else "or", known)

    def _choice(self, node: syntax.Choice) -> tree.Node | None:
        condition = self.check_as(node.condition, BOOL, "? asks for")
        yes, no = self.check(node.yes), self.check(node.no)
        if condition is None or yes is None or no is None:
            return None
        kind = _join(yes.type, no.type)
        if kind is None:
            self.fault(node.span, f"? : gives {yes.type} or {no.type}", "give one type both times")
            return None
        return tree.Choice(
            node.span, kind, condition, self.convert(yes, kind) or yes, self.convert(no, kind) or no
        )

    # Literals with parts

    def _list(self, node: syntax.ListLiteral) -> tree.Node | None:
        if not node.items:
            self.fault(node.span, "an empty list has no type", "ask size(…) == 0 of a list")
            return None
        items = self._same_type([*node.items])
        if items is None:
            return None
        return tree.MakeList(node.span, ListOf(items[0].type), tuple(items))

    def _map(self, node: syntax.MapLiteral) -> tree.Node | None:
        if not node.entries:
            self.fault(node.span, "an empty map has no type", "ask size(…) == 0 of a map")
            return None
        keys: dict[str, Span] = {}
        for key, _ in node.entries:
            if not isinstance(key, syntax.Literal) or not isinstance(key.value, str):
                self.fault(key.span, "a key of a map is a string literal")
            elif key.value in keys:
                self.fault(key.span, f"key {quote(key.value)} stands twice")
            else:
                keys[key.value] = key.span
        values = self._same_type([value for _, value in node.entries])
        if values is None or len(keys) < len(values):
            return None
        entries = tuple(zip(keys, values, strict=True))
        return tree.MakeMap(node.span, MapOf(values[0].type), entries)

    def _same_type(self, nodes: list[syntax.Node]) -> list[tree.Node] | None:
        checked = [self.check(node) for node in nodes]
        known = [node for node in checked if node is not None]
        if len(known) < len(nodes):
            return None
        kind: Type = known[0].type
        for node in known[1:]:
            joined = _join(kind, node.type)
            if joined is None:
                self.fault(node.span, f"this is {node.type}, those before it are {kind}")
                return None
            kind = joined
        converted = [self.convert(node, kind) for node in known]
        return [node for node in converted if node is not None]


def _join(one: Type, other: Type) -> Type | None:
    if one == other:
        return one
    return DOUBLE if {str(one), str(other)} == {"int", "double"} else None


def _operator_fix(sign: str, left: Type, right: Type) -> str | None:
    if not isinstance(left, Scalar) or not isinstance(right, Scalar):
        return "compare elements with .exists(x, …), .all(x, …), in or size(…)"
    if STRING in {left, right} and left != right:
        return "convert one side with int(…), double(…), string(…) or timestamp(…)"
    if sign in {"<", "<=", ">", ">="} and left == right == BOOL:
        return "bools have no order"
    return None


@dataclass(frozen=True)
class Expression:
    """A checked expression over the roots of a scope."""

    text: str
    scope: Scope = field(repr=False)
    tree: tree.Node = field(repr=False)

    @property
    def type(self) -> Type:
        """The type of its value."""
        return self.tree.type

    @cached_property
    def references(self) -> frozenset[str]:
        """The longest paths it reads, such as `o.patientId` and `t.payload.pulse`."""
        return frozenset(".".join(path) for path in tree.find_references(self.tree))

    def evaluate(self, **roots: Any) -> Evaluation:
        """Evaluate it plainly, with a reason where the value is missing."""
        return interpret(self.tree, roots)

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The generated form: takes the roots in the order of the scope; None is missing."""
        return generate(self.tree, self.scope.names).function


def compile_expression(text: str, scope: Scope, expected: Type | None = None) -> Expression:
    """Parse and check an expression; `expected` is the type that its place asks for."""
    what = "expression"
    try:
        parsed = parse(text)
    except FaultError as error:
        raise ExpressionError(what, text, [error.fault]) from None
    checker = Checker(scope)
    checked = checker.check(parsed)
    if checked is not None and expected is not None and not checker.faults:
        converted = checker.convert(checked, expected)
        if converted is None and not checker.faults:
            message = f"{expected} is asked for here, but this is {checked.type}"
            checker.faults.append(Fault(parsed.span, message))
        checked = converted
    if checker.faults or checked is None:
        raise ExpressionError(what, text, checker.faults)
    return Expression(text, scope, checked)
