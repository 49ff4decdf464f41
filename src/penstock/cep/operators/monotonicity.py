"""Whether a condition over a window can come to hold, or cease to, by time alone.

As events leave a sliding window, a maximum or a count falls and a minimum rises. What
compares them with a constant the other way can only cease to hold, and needs no timer: a
healthy patient's readings never wake anybody up.

Rules that hold here:
- The answer errs towards yes: a timer too many changes nothing but the time it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.cep.algebra import Function
from penstock.lang import tree

_FALLING: Final = frozenset({"max", "count", "distinct"})
_UPWARD: Final = frozenset({"gt", "ge"})
_DOWNWARD: Final = frozenset({"lt", "le"})


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
