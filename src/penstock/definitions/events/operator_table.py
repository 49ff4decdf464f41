"""The table of compiled operators, and the problems found on the way.

Rules that hold here:
- An operator enters the table only where it has no problem. A problem is noted, and the
  other operators are still compiled.
- Operators with the same text are one: events over the same windows share them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.cep.program import Operator
from penstock.errors import InvalidError, Problem
from penstock.lang import Expression, Scope, Type, compile_expression


class InvalidOperatorError(Exception):
    """The operator has problems; the table has noted them."""


@dataclass(slots=True)
class OperatorTable:
    """Operators by index, one per text, and the problems of those that did not compile."""

    operators: list[Operator] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, operator: Operator) -> int:
        """Add an operator, unless one with its text is there."""
        index = self.known.get(operator.text)
        if index is None:
            index = self.known[operator.text] = len(self.operators)
            self.operators.append(operator)
            self.digests.append(hashlib.blake2s(operator.text.encode(), digest_size=8).hexdigest())
        return index

    def text(self, word: str, inputs: Iterable[int], *details: object) -> str:
        """Return the text of an operator: what it does, and to what."""
        of = " ".join(self.digests[index] for index in inputs)
        return " ; ".join([word, of, *map(str, details)])

    def fault(self, place: str, message: str, fix: str | None = None) -> InvalidOperatorError:
        """Note a problem, and return the error to raise."""
        self.problems.append(Problem(place, message, fix))
        return InvalidOperatorError()

    def compile(
        self, text: str, scope: Scope, place: str, expected: Type | None = None
    ) -> Expression:
        """Compile an expression, or note its problems."""
        try:
            return compile_expression(text, scope, expected)
        except InvalidError as error:
            self.problems += [
                Problem(place, f"{it.place}: {it.message}" if it.place else it.message, it.fix)
                for it in error.problems
            ]
            raise InvalidOperatorError from None
