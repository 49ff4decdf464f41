"""Outputs of an aggregate: the conditions on it, and what a step changes in their rows.

As events leave a sliding window, a maximum or a count falls and a minimum rises. A comparison
with a constant the other way can only cease to hold, and needs no timer: a healthy patient's
readings never wake anybody up.

Rules that hold here:
- A condition directly on an aggregate is an output of it, as HAVING is in SQL; the aggregate
  itself is one without a condition.
- Whether time alone can make a condition hold, or cease to, follows from the monotonicity of
  its aggregates. The answer errs towards yes: a timer too many costs time and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock.cep.context import EngineContext, Row, Values, evaluator, shaper
from penstock.cep.operators import Detections, OperatorNode, Rows
from penstock.cep.program import Aggregate, Function, Refine
from penstock.lang import tree
from penstock.lang.tree import find_path

_FALLING: Final = frozenset({"max", "count", "distinct"})
_UPWARD: Final = frozenset({"gt", "ge"})
_DOWNWARD: Final = frozenset({"lt", "le"})


class AggregateOutput(OperatorNode):
    """A condition on an aggregate, or the aggregate itself; the aggregate runs it."""

    def __init__(
        self, index: int, context: EngineContext, spec: Aggregate, refine: Refine | None
    ) -> None:
        super().__init__(index, context)
        self.text = "" if refine is None else refine.text
        where = None if refine is None else refine.where
        assignments = None if refine is None else refine.assignments
        self.where = None if where is None else evaluator(where)
        self.shape: Callable[[Values], Values] | None = (
            None if assignments is None else shaper(assignments)
        )
        self._assignments = assignments
        self.each = refine is None or refine.each
        functions = {value.name: value.function for value in spec.values}
        self.rises = where is not None and can_rise(where.tree, functions)
        self.wavers = self.rises and where is not None and can_fall(where.tree, functions)
        """Whether it can cease to hold and come to hold again, by time alone."""
        self.looked_at = False
        """Whether the end of a row matters to some operator."""
        self.passed_on = False
        """Whether it matters to some operator that a row is raised again."""

    def run(self, detected: Detections) -> None:
        """Do nothing: the aggregate emits the rows of its outputs."""

    def keeps(self, name: str) -> bool:
        """Tell whether rows have an attribute of the group as it is."""
        if self._assignments is None:
            return True
        return any(
            assignment.name == name and (find_path(assignment.value.tree) or ())[1:] == (name,)
            for assignment in self._assignments
        )

    def values_of(self, it: Values) -> Values | None:
        """Return the row's values while the condition holds."""
        if self.where is not None and self.where(it) is not True:
            return None
        return dict(it) if self.shape is None else self.shape(it)


class RowDelta:
    """What one step changes in the rows of one output."""

    __slots__ = ("added", "removed", "replaced", "touched")

    def __init__(self) -> None:
        self.added: Rows = []
        self.replaced: Rows = []
        self.removed: Rows = []
        self.touched: Rows = []

    def raise_again(self, row: Row) -> None:
        """Raise a row that held before, or that took another's place in this step."""
        if row in self.replaced:
            self.replaced.remove(row)
            self.added.append(row)
        elif row not in self.added:
            self.touched.append(row)


def can_rise(condition: tree.Node, functions: Mapping[str, Function]) -> bool:
    """Tell whether a condition may come to hold while events leave; functions by value."""
    return _can_turn(condition, functions, 1)


def can_fall(condition: tree.Node, functions: Mapping[str, Function]) -> bool:
    """Tell whether a condition may cease to hold while events leave and values are there."""
    return _can_turn(condition, functions, -1)


def _can_turn(condition: tree.Node, functions: Mapping[str, Function], way: int) -> bool:
    match condition:
        case tree.Logic(terms=terms):
            return any(_can_turn(term, functions, way) for term in terms)
        case tree.Constant():
            return False
        case tree.Apply(operation=operation, arguments=(one, other)):
            if operation not in _UPWARD | _DOWNWARD:
                return True
            left, right = _direction(one, functions), _direction(other, functions)
            if left is None or right is None:
                return True
            # How far the left side moves against the right one, seen from the comparison.
            apart = left - right if operation in _UPWARD else right - left
            return apart * way > 0
        case _:
            return True


def _direction(node: tree.Node, functions: Mapping[str, Function]) -> int | None:
    """Tell how a side moves as events leave: -1 falls, 0 stays, 1 rises, None unknown."""
    match node:
        case tree.Constant():
            return 0
        case tree.Apply(operation="to_double", arguments=(inner,)):
            return _direction(inner, functions)
        case tree.Field(operand=tree.Root(), name=name):
            function = functions.get(name)
            if function is None:
                return None
            return -1 if function in _FALLING else 1 if function == "min" else None
        case _:
            return None
