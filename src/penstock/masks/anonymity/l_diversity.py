"""l-diversity: every group has at least l well-represented sensitive values.

Three readings of "well-represented" (Machanavajjhala and others, 2007), weakest first:
- distinct: l different values occur;
- entropy: the entropy of the values is at least log l, so none of them dominates;
- recursive (c, l): the most frequent value occurs less than c times as often as all values
  from the l-th most frequent on together.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from penstock.errors import InvalidError, Problem, quote
from penstock.masks.anonymity.domains import Domain, Floats
from penstock.masks.anonymity.rules import Booleans, GroupRule

# Equal shares have the entropy log l but for rounding.
ROUNDING: Final = 1e-9


class DistinctDiversity(GroupRule):
    """At least l different values."""

    monotone = True

    def __init__(self, column: int, domain: Domain, l: int) -> None:  # noqa: E741
        super().__init__(column, domain)
        self.l = _checked(domain, l)

    @property
    def signature(self) -> tuple[object, ...]:
        """Tell the parameters."""
        return "distinct", self.column, self.l

    def holds(self, counts: Floats, reference: Floats) -> Booleans:  # noqa: ARG002
        """Count the values that occur."""
        return np.asarray(np.count_nonzero(counts, axis=1) >= self.l)

    def crowded(self, counts: Floats, reference: Floats) -> int | None:  # noqa: ARG002
        """Leaving tuples out never adds a value."""
        return None


class EntropyDiversity(GroupRule):
    """Entropy of at least log l."""

    def __init__(self, column: int, domain: Domain, l: float) -> None:  # noqa: E741
        super().__init__(column, domain)
        self.l = _checked(domain, l)

    @property
    def signature(self) -> tuple[object, ...]:
        """Tell the parameters."""
        return "entropy", self.column, self.l

    def holds(self, counts: Floats, reference: Floats) -> Booleans:  # noqa: ARG002
        """Compare the entropy."""
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
        logarithms = np.log(np.where(shares > 0.0, shares, 1.0))
        return np.asarray(-(shares * logarithms).sum(axis=1) >= math.log(self.l) - ROUNDING)

    def crowded(self, counts: Floats, reference: Floats) -> int | None:  # noqa: ARG002
        """Name the most frequent value."""
        return int(counts.argmax())


class RecursiveDiversity(GroupRule):
    """The most frequent value is outweighed, c times, by the rare ones."""

    def __init__(self, column: int, domain: Domain, c: float, l: int) -> None:  # noqa: E741
        super().__init__(column, domain)
        self.l = _checked(domain, l)
        if not 0.0 < c < math.inf:
            problem = Problem(f"{domain.name}.c", f"{c!r} is not positive", "give a number above 0")
            raise InvalidError(f"l-diversity of {quote(domain.name)}", [problem])
        self.c = c

    @property
    def signature(self) -> tuple[object, ...]:
        """Tell the parameters."""
        return "recursive", self.column, self.c, self.l

    def holds(self, counts: Floats, reference: Floats) -> Booleans:  # noqa: ARG002
        """Compare the greatest count with the tail."""
        ordered = np.sort(counts, axis=1)[:, ::-1]
        return np.asarray(ordered[:, 0] < self.c * ordered[:, int(self.l) - 1 :].sum(axis=1))

    def crowded(self, counts: Floats, reference: Floats) -> int | None:  # noqa: ARG002
        """Name the most frequent value."""
        return int(counts.argmax())


def _checked(domain: Domain, l: float) -> float:  # noqa: E741
    """Return l if groups can have it."""
    if not domain.size:
        problem = Problem(domain.name, "its values are not counted", "give it buckets")
        raise InvalidError(f"l-diversity of {quote(domain.name)}", [problem])
    if not 1 < l <= domain.size:
        fix = f"give a number above 1 and at most {domain.size}, the number of values"
        problem = Problem(f"{domain.name}.l", f"{l!r} cannot be reached or demands nothing", fix)
        raise InvalidError(f"l-diversity of {quote(domain.name)}", [problem])
    return l
