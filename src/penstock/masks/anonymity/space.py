"""The space of all quasi-identifiers together: generalizations are boxes in it.

Rules that hold here:
- Arrays of codes are (quasi-identifiers, tuples), so that one quasi-identifier lies together.
- A box's loss is the mean of its sides' losses.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.errors import UsageError, quote
from penstock.masks.anonymity.domains import CategoryDomain, Domain, Floats


class Space:
    """The domains of the quasi-identifiers, in order."""

    def __init__(self, domains: Sequence[Domain]) -> None:
        if not domains:
            raise UsageError(
                "no quasi-identifier is given", fix="name at least one field in quasi_identifiers"
            )
        self.domains = tuple(domains)
        spans = np.array([domain.span for domain in domains])
        self._floor, self._ceiling = spans[:, :1], spans[:, 1:]
        # Numbers' losses are linear in both ends: one product gives the sum over all of them.
        count = len(domains)
        self._slope = np.zeros(count)
        self._offset = 0.0
        self._categories: list[tuple[int, CategoryDomain]] = []
        for place, domain in enumerate(domains):
            if isinstance(domain, CategoryDomain):
                self._categories.append((place, domain))
                continue
            zero, one = domain.loss(np.zeros(2), np.array([0.0, 1.0])).tolist()
            self._slope[place] = (one - zero) / count
            self._offset += zero / count

    def __len__(self) -> int:
        return len(self.domains)

    def check(self, codes: Floats) -> None:
        """Refuse codes that no value of the domains has."""
        for place, domain in enumerate(self.domains):
            low, high = domain.span
            outside = ~((codes[place] >= low) & (codes[place] <= high))
            if outside.any():
                raise UsageError(
                    f"{int(outside.sum())} tuples have no valid {quote(domain.name)}",
                    fix=f"send records on only if it is {domain.expected}",
                )

    def losses(self, lows: Floats, highs: Floats) -> Floats:
        """Return the loss of each box; lows and highs are (quasi-identifiers, boxes …)."""
        sides = highs - lows
        losses: Floats = self._slope @ sides.reshape(len(sides), -1) + self._offset
        losses = losses.reshape(sides.shape[1:])
        for place, domain in self._categories:
            losses = losses + domain.loss(lows[place], highs[place]) / len(self.domains)
        return losses

    def widen(self, lows: Floats, highs: Floats) -> tuple[Floats, Floats]:
        """Return the boxes that are really published for these."""
        if not self._categories:
            return lows, highs
        lows, highs = lows.copy(), highs.copy()
        for place, domain in self._categories:
            lows[place], highs[place] = domain.widen(lows[place], highs[place])
        return lows, highs

    def labels(self, lows: Floats, highs: Floats) -> list[list[str]]:
        """Return for each quasi-identifier the boxes' generalizations as published."""
        return [
            domain.labels(lows[place], highs[place]) for place, domain in enumerate(self.domains)
        ]
