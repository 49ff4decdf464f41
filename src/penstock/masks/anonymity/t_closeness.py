"""t-closeness: in every group a sensitive attribute is distributed as in the whole.

The distance between two distributions is the earth mover's (Li and others, 2007): the least
work of turning one into the other, where moving a share from value i to value j costs

- equal:        1, whatever the values;
- ordered:      |i - j| / (values - 1), for numbers in buckets;
- hierarchical: the height of the lowest node above both / the height of the root.

All three have closed forms. The third costs a sum over the nodes: half the difference in
height to the parent, times what the node's leaves have too much or too little together.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from penstock.errors import InvalidError, Problem, quote
from penstock.masks.anonymity.domains import CategoryDomain, Domain, Floats
from penstock.masks.anonymity.rules import Booleans, GroupRule


class Distance(StrEnum):
    """What moving a share from one value to another costs."""

    EQUAL = "equal"
    ORDERED = "ordered"
    HIERARCHICAL = "hierarchical"


def move_earth(domain: Domain, distance: Distance, counts: Floats, reference: Floats) -> Floats:
    """Return the earth mover's distance of each row of counts from the reference."""
    totals = np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    surplus = counts / totals - reference / max(reference.sum(), 1.0)
    if distance is Distance.EQUAL:
        return np.asarray(np.abs(surplus).sum(axis=1) / 2.0)
    below = np.cumsum(surplus, axis=1)
    if distance is Distance.ORDERED:
        return np.asarray(np.abs(below[:, :-1]).sum(axis=1) / max(1, domain.size - 1))
    if not isinstance(domain, CategoryDomain):
        raise TypeError(f"{quote(domain.name)} has no hierarchy")
    below = np.concatenate((np.zeros((len(below), 1)), below), axis=1)
    excess = np.abs(below[:, domain.lasts + 1] - below[:, domain.firsts])
    heights = domain.heights
    weights = (heights[domain.parents] - heights) / (2.0 * heights[0])
    return np.asarray(excess @ weights)


class Closeness(GroupRule):
    """At most t away from the reference: the distribution of all tuples seen so far."""

    def __init__(self, column: int, domain: Domain, t: float, distance: Distance) -> None:
        super().__init__(column, domain)
        problems = []
        if not 0.0 < t <= 1.0:
            fix = "give a number above 0 and at most 1"
            problems.append(Problem(f"{domain.name}.t", f"{t!r} is no distance", fix))
        if distance is Distance.HIERARCHICAL and not isinstance(domain, CategoryDomain):
            fix = "give it a hierarchy, or use the distance 'ordered' or 'equal'"
            problems.append(Problem(f"{domain.name}.distance", "it has no hierarchy", fix))
        if not domain.size:
            fix = "give it buckets or categories"
            problems.append(Problem(f"{domain.name}", "its values are not counted", fix))
        if problems:
            raise InvalidError(f"t-closeness of {quote(domain.name)}", problems)
        self.t = t
        self.distance = distance

    @property
    def signature(self) -> tuple[object, ...]:
        """Tell the parameters."""
        return "closeness", self.column, self.t, self.distance.value

    def holds(self, counts: Floats, reference: Floats) -> Booleans:
        """Compare the distances with t."""
        return np.asarray(move_earth(self.domain, self.distance, counts, reference) <= self.t)

    def crowded(self, counts: Floats, reference: Floats) -> int | None:
        """Name the value with the greatest surplus."""
        row = counts[0]
        return int((row / max(row.sum(), 1.0) - reference / max(reference.sum(), 1.0)).argmax())
