"""The part of the checker that knows functions and methods.

Rules that hold here:
- `matches` and `duration` take literals: what they cost, and whether they are right,
  is known when the expression is compiled.
- `exists` and `all` bind a variable for their body only; it never hides another name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from penstock.errors import quote
from penstock.lang import moments, syntax, tree
from penstock.lang.errors import list_names, suggest
from penstock.lang.limits import MAX_QUANTIFIER_DEPTH, MAX_VISITS, MAX_VISITS_NESTED
from penstock.lang.operations import (
    FUNCTIONS,
    METHODS,
    SPECIAL_FUNCTIONS,
    SPECIAL_METHODS,
    Overload,
    find_overload,
)
from penstock.lang.patterns import PatternError, compile_pattern
from penstock.lang.types import BOOL, DURATION, STRING, TIMESTAMP, ListOf, MapOf, Type

if TYPE_CHECKING:
    from penstock.lang.checker import Checker


def check_call(checker: Checker, node: syntax.Call) -> tree.Node | None:
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


def _check_function(checker: Checker, node: syntax.Call) -> tree.Node | None:
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
    checker: Checker,
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
        return checker.apply(node.span, overload, arguments)
    method = node.target is not None
    shown = ", ".join(map(str, kinds[1:] if method else kinds))
    on = f" of {kinds[0]}" if method else ""
    ways = " or ".join(_describe(node.name, overload, method=method) for overload in overloads)
    checker.fault(node.name_span, f"{node.name}{on} does not take ({shown})", f"it is {ways}")
    return None


def _describe(name: str, overload: Overload, *, method: bool) -> str:
    kinds = [str(kind) for kind in overload.parameters]
    target = f"{kinds.pop(0)}." if method else ""
    return f"{target}{name}({', '.join(kinds)}) → {overload.result}"


def _fold_timestamp(checker: Checker, node: tree.Apply) -> tree.Node | None:
    argument = node.arguments[0]
    if not isinstance(argument, tree.Constant):
        return node
    moment = moments.read_timestamp(str(argument.value))
    if moment is None:
        checker.fault(
            argument.span,
            f"{quote(argument.value)} is no timestamp",
            'write it like "2026-03-01T08:00:00Z" or "2026-03-01T08:00:00.5+02:00"',
        )
        return None
    return tree.Constant(node.span, TIMESTAMP, moment)


def _check_duration(checker: Checker, node: syntax.Call) -> tree.Node | None:
    text = _literal_text(node)
    value = None if text is None else moments.read_duration(text)
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


def _check_has(checker: Checker, node: syntax.Call) -> tree.Node | None:
    operand = checker.check(node.arguments[0]) if len(node.arguments) == 1 else None
    if len(node.arguments) == 1 and operand is None:
        return None
    if not isinstance(operand, tree.Field | tree.Entry | tree.Element):
        checker.fault(node.span, "has asks for a field or an element", "write has(o.field)")
        return None
    return tree.Has(node.span, BOOL, operand)


def _check_matches(checker: Checker, node: syntax.Call, target: syntax.Node) -> tree.Node | None:
    operand = checker.check_as(target, STRING, "matches searches")
    text = _literal_text(node)
    if text is None:
        checker.fault(node.span, "matches takes a pattern as a literal", 'write .matches(r"…")')
        return None
    try:
        pattern = compile_pattern(text)
    except PatternError as error:
        checker.fault(
            node.arguments[0].span,
            f"not a pattern: {error}",
            "patterns have RE2 syntax, without look-around and back-references",
        )
        return None
    return operand and tree.Matches(node.span, BOOL, operand, pattern)


def _check_quantifier(checker: Checker, node: syntax.Call, target: syntax.Node) -> tree.Node | None:
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
    checker: Checker, node: syntax.Call
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
