"""The way in: text and scope become an Expression that can be evaluated.

Rules that hold here:
- An Expression is right: one that is not cannot be made. Problems are raised all at
  once, shown under the text.
- Its forms have one meaning. `evaluate` explains; `function` is for the hot path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from penstock.lang import tree
from penstock.lang.checker import Checker
from penstock.lang.errors import ExpressionError, Fault, FaultError
from penstock.lang.interpreter import interpret
from penstock.lang.parser import parse
from penstock.lang.python import generate
from penstock.lang.types import Scope, Type
from penstock.lang.values import Evaluation


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
