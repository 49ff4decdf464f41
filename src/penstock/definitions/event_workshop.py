"""Where operators of events are made: those that are there, and what is wrong with others.

Rules that hold here:
- An operator exists only where nothing is wrong with it; what is wrong is noted, and the
  others are still looked at.
- Operators with the same text are one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock.cep.algebra import Operator
from penstock.errors import InvalidError, Problem
from penstock.lang import Expression, Scope, Type, compile_expression


class FaultyError(Exception):
    """What was asked for has problems, which are noted."""


@dataclass(slots=True)
class Workshop:
    """Operators in the making, and what is wrong with them."""

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

    def fault(self, place: str, message: str, fix: str | None = None) -> FaultyError:
        """Note what is wrong."""
        self.problems.append(Problem(place, message, fix))
        return FaultyError()

    def compile(
        self, text: str, scope: Scope, place: str, expected: Type | None = None
    ) -> Expression:
        """Compile an expression, or note what is wrong with it."""
        try:
            return compile_expression(text, scope, expected)
        except InvalidError as error:
            self.problems += [
                Problem(place, f"{it.place}: {it.message}" if it.place else it.message, it.fix)
                for it in error.problems
            ]
            raise FaultyError from None
