"""Type checking of calls: functions, methods, quantifiers; and what all checks share.

Rules that hold here:
- `NodeChecker` is what a check needs of the whole: the scope, the faults so far, conversions,
  and `check` for the parts of a node. `checker` completes it.
- `matches` and `duration` take literals: what they cost, and whether they are right,
  is known when the expression is compiled.
- A time zone is a constant, too, and one that exists.
- `exists` and `all` bind a variable for their body only; it never hides another name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from penstock.errors import quote
from penstock.lang import scalars, syntax, tree
from penstock.lang.errors import (
    MAX_EXACT,
    MAX_QUANTIFIER_DEPTH,
    MAX_VISITS,
    MAX_VISITS_NESTED,
    Fault,
    Span,
    list_names,
    suggest,
)
from penstock.lang.operations import (
    FUNCTIONS,
    METHODS,
    SAME,
    SPECIAL_FUNCTIONS,
    SPECIAL_METHODS,
    ZONED,
    Overload,
    find_overload,
)
from penstock.lang.scalars import RegexError, compile_regex
from penstock.lang.types import (
    BOOL,
    DOUBLE,
    DURATION,
    INT,
    SCALARS,
    STRING,
    TIMESTAMP,
    ListOf,
    MapOf,
    Scalar,
    Scope,
    Type,
)
from penstock.model.time_zones import is_zone


class NodeChecker(ABC):
    """The type checker of one expression, as the check of one node sees it."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.faults: list[Fault] = []
        self.variables: dict[str, tree.Variable] = {}

    def fault(self, span: Span, message: str, fix: str | None = None) -> None:
        """Note that a part of the text is wrong; the node of that part becomes None."""
        self.faults.append(Fault(span, message, fix))

    @abstractmethod
    def check(self, node: syntax.Node) -> tree.Node | None:
        """Return the typed node, or None after noting what is wrong."""

    def check_as(self, node: syntax.Node, wanted: Type, who: str) -> tree.Node | None:
        """Check a node that has to be of one type."""
        checked = self.check(node)
        if checked is None:
            return None
        converted = self.convert(checked, wanted)
        if converted is None:
            fix = None
            if wanted == BOOL and isinstance(checked, tree.Field | tree.Entry | tree.Element):
                fix = "compare it, or ask with has(…) whether it is there"
            self.fault(node.span, f"{who} {wanted}, but this is {checked.type}", fix)
        return converted

    def convert(self, node: tree.Node, wanted: Type) -> tree.Node | None:
        """Return a node as another type where that needs no asking: int as double."""
        if node.type == wanted:
            return node
        if isinstance(node, tree.MakeList) and isinstance(wanted, ListOf):
            items = [self.convert(item, wanted.element) for item in node.items]
            known = tuple(item for item in items if item is not None)
            return tree.MakeList(node.span, wanted, known) if len(known) == len(items) else None
        if node.type != INT or wanted != DOUBLE:
            return None
        if isinstance(node, tree.Constant) and isinstance(node.value, int):
            if abs(node.value) > MAX_EXACT:
                self.fault(node.span, f"{node.value} has no exact double", "write it as a double")
            return tree.Constant(node.span, DOUBLE, float(node.value))
        return tree.Apply(node.span, DOUBLE, "to_double", (node,))

    def apply(self, span: Span, overload: Overload, arguments: list[tree.Node]) -> tree.Node:
        """Apply an overload that fits its arguments."""
        converted = [
            argument if isinstance(parameter, Scalar) and parameter.name not in SCALARS
            else self.convert(argument, parameter) or argument
            for argument, parameter in zip(arguments, overload.parameters, strict=True)
        ]  # fmt: skip
        if overload.operation == SAME:
            return converted[0]
        if overload.swapped:
            converted.reverse()
        return tree.Apply(span, overload.result, overload.operation, tuple(converted))


def check_call(checker: NodeChecker, node: syntax.Call) -> tree.Node | None:
    """Return the typed node of a function or method call, or None after noting a fault."""
    if node.target is None:
        return _check_function(checker, node)
    if node.name in {"exists", "all"}:
        return _check_quantifier(checker, node, node.target)
    if node.name == "matches":
        return _check_matches(checker, node, node.target)
    if node.name not in METHODS:
        checker.check(node.target)
        known = [*METHODS, *SPECIAL_METHODS]
        fix = suggest(node.name, known) or f"methods are {list_names(known, len(known))}"
        if node.name in FUNCTIONS or node.name in SPECIAL_FUNCTIONS:
            fix = f"it is a function: write {node.name}(…)"
        checker.fault(node.name_span, f"unknown method {quote(node.name)}", fix)
        return None
    return _check_overloads(checker, node, METHODS[node.name], (node.target, *node.arguments))


def _check_function(checker: NodeChecker, node: syntax.Call) -> tree.Node | None:
    if node.name == "has":
        return _check_has(checker, node)
    if node.name == "duration":
        return _check_duration(checker, node)
    if node.name not in FUNCTIONS:
        known = [*FUNCTIONS, *SPECIAL_FUNCTIONS]
        fix = suggest(node.name, known) or f"functions are {list_names(known)}"
        if node.name in METHODS or node.name in SPECIAL_METHODS:
            fix = f"it is a method: write value.{node.name}(…)"
        checker.fault(node.name_span, f"unknown function {quote(node.name)}", fix)
        return None
    checked = _check_overloads(checker, node, FUNCTIONS[node.name], node.arguments)
    if isinstance(checked, tree.Apply) and checked.operation == "timestamp_from_string":
        return _fold_timestamp(checker, checked)
    return checked


def _check_overloads(
    checker: NodeChecker,
    node: syntax.Call,
    overloads: tuple[Overload, ...],
    operands: tuple[syntax.Node, ...],
) -> tree.Node | None:
    checked = [checker.check(operand) for operand in operands]
    arguments = [argument for argument in checked if argument is not None]
    if len(arguments) < len(checked):
        return None
    kinds = [argument.type for argument in arguments]
    overload = find_overload(overloads, kinds)
    if overload is not None:
        if overload.operation in ZONED and not _check_zone(checker, arguments[-1]):
            return None
        return checker.apply(node.span, overload, arguments)
    method = node.target is not None
    shown = ", ".join(map(str, kinds[1:] if method else kinds))
    on = f" of {kinds[0]}" if method else ""
    ways = " or ".join(_describe(node.name, overload, method=method) for overload in overloads)
    checker.fault(node.name_span, f"{node.name}{on} does not take ({shown})", f"it is {ways}")
    return None


def _check_zone(checker: NodeChecker, zone: tree.Node) -> bool:
    if isinstance(zone, tree.Constant) and is_zone(zone.value):
        return True
    shown = f"{quote(zone.value)} is no time zone" if isinstance(zone, tree.Constant) else (
        "a time zone is a literal"
    )  # fmt: skip
    checker.fault(zone.span, shown, 'name one of the IANA database, such as "Europe/Rome"')
    return False


def _describe(name: str, overload: Overload, *, method: bool) -> str:
    kinds = [str(kind) for kind in overload.parameters]
    target = f"{kinds.pop(0)}." if method else ""
    return f"{target}{name}({', '.join(kinds)}) → {overload.result}"


def _fold_timestamp(checker: NodeChecker, node: tree.Apply) -> tree.Node | None:
    argument = node.arguments[0]
    if not isinstance(argument, tree.Constant):
        return node
    moment = scalars.read_timestamp(str(argument.value))
    if moment is None:
        checker.fault(
            argument.span,
            f"{quote(argument.value)} is not a timestamp",
            'write it like "2026-03-01T08:00:00Z" or "2026-03-01T08:00:00.5+02:00"',
        )
        return None
    return tree.Constant(node.span, TIMESTAMP, moment)


def _check_duration(checker: NodeChecker, node: syntax.Call) -> tree.Node | None:
    text = _literal_text(node)
    value = None if text is None else scalars.read_duration(text)
    if value is None:
        shown = "" if text is None else f"{quote(text)} is no duration: "
        checker.fault(
            node.span,
            f"{shown}duration takes a literal of numbers and units",
            'units are d h m s ms us, such as duration("1h30m"); multiply by an int: '
            'o.days * duration("1d")',
        )
        return None
    return tree.Constant(node.span, DURATION, value)


def _literal_text(node: syntax.Call) -> str | None:
    if len(node.arguments) == 1 and isinstance(node.arguments[0], syntax.Literal):
        value = node.arguments[0].value
        return value if isinstance(value, str) else None
    return None


def _check_has(checker: NodeChecker, node: syntax.Call) -> tree.Node | None:
    operand = checker.check(node.arguments[0]) if len(node.arguments) == 1 else None
    if len(node.arguments) == 1 and operand is None:
        return None
    if not isinstance(operand, tree.Field | tree.Entry | tree.Element):
        checker.fault(node.span, "has asks for a field or an element", "write has(o.field)")
        return None
    return tree.Has(node.span, BOOL, operand)


def _check_matches(
    checker: NodeChecker, node: syntax.Call, target: syntax.Node
) -> tree.Node | None:
    operand = checker.check_as(target, STRING, "matches searches")
    text = _literal_text(node)
    if text is None:
        checker.fault(node.span, "matches takes a pattern as a literal", 'write .matches(r"…")')
        return None
    try:
        pattern = compile_regex(text)
    except RegexError as error:
        checker.fault(
            node.arguments[0].span,
            f"not a pattern: {error}",
            "patterns have RE2 syntax, without look-around and back-references",
        )
        return None
    return operand and tree.Matches(node.span, BOOL, operand, pattern)


def _check_quantifier(
    checker: NodeChecker, node: syntax.Call, target: syntax.Node
) -> tree.Node | None:
    operand = checker.check(target)
    variable, body = _split_arguments(checker, node)
    if operand is None or variable is None or body is None:
        return None
    element: Type
    if isinstance(operand.type, MapOf):
        operand = tree.Apply(operand.span, ListOf(STRING), "keys", (operand,))
        element = STRING
    elif isinstance(operand.type, ListOf):
        element = operand.type.element
    else:
        message = f"{node.name} looks into a list or map, not {operand.type}"
        checker.fault(node.name_span, message)
        return None
    slot = len(checker.variables)
    checker.variables[variable.name] = tree.Variable(variable.span, element, slot)
    checked = checker.check_as(body, BOOL, f"{node.name} asks for")
    del checker.variables[variable.name]
    if checked is None:
        return None
    limit = MAX_VISITS_NESTED if tree.loops(checked) else MAX_VISITS
    kind: Literal["exists", "all"] = "exists" if node.name == "exists" else "all"
    return tree.Quantifier(node.span, BOOL, kind, operand, slot, checked, limit)


def _split_arguments(
    checker: NodeChecker, node: syntax.Call
) -> tuple[syntax.Name | None, syntax.Node | None]:
    match node.arguments:
        case (syntax.Name() as variable, body):
            if variable.name in checker.variables or variable.name in checker.scope.names:
                message = f"{quote(variable.name)} is taken"
                checker.fault(variable.span, message, "name the variable otherwise")
            elif len(checker.variables) >= MAX_QUANTIFIER_DEPTH:
                message = f"exists and all nest at most {MAX_QUANTIFIER_DEPTH} deep"
                checker.fault(node.name_span, message)
            else:
                return variable, body
        case _:
            fix = f'write list.{node.name}(x, x == "a")'
            checker.fault(node.name_span, f"{node.name} takes a variable and a condition", fix)
    return None, None
