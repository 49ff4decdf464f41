"""The parameters of k-anonymity of a stream, checked before anything runs.

CASTLE's four are taken. What they mean here:
- k: persons in a group; delta: positions a tuple may wait;
- mu: the last so many groups tell what loss is typical (τ); beta: so many published
  generalizations are kept for reuse. CASTLE bounds its open clusters by beta; there are
  none here, and the generalizations are the only other thing that grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from typing import Final

from penstock.errors import InvalidError, Problem, quote
from penstock.masks.anonymity.domains import Domain, Space
from penstock.masks.anonymity.rules import Demands, GroupRule

MAX_DELTA: Final = 10_000_000
MAX_BETA: Final = 10_000
MAX_MU: Final = 1_000_000
MAX_QUASI_IDENTIFIERS: Final = 64
MAX_SENSITIVE_VALUES: Final = 1_000


class StreamParameters:
    """Quasi-identifiers, demands, delay, and what else steers a stream."""

    def __init__(
        self,
        quasi_identifiers: Sequence[Domain],
        *,
        k: int,
        delta: int,
        beta: int = 50,
        mu: int = 100,
        sensitive: Sequence[Domain] = (),
        rules: Sequence[GroupRule] = (),
        seed: int = 0,
    ) -> None:
        """Check everything; a rule's column is a place in `sensitive`."""
        problems = [
            Problem(name, f"{value!r} is out of bounds", f"give a whole number of {low} to {high}")
            for name, value, low, high in (
                ("k", k, 1, MAX_DELTA),
                ("delta", delta, max(k, 1), MAX_DELTA),
                ("beta", beta, 1, MAX_BETA),
                ("mu", mu, 1, MAX_MU),
                ("seed", seed, 0, (1 << 64) - 1),
            )
            if not low <= value <= high
        ]
        problems += [
            Problem(
                f"rules[{place}]",
                "its domain is not that of its sensitive column",
                "let the rule's column name the place of its domain in sensitive",
            )
            for place, rule in enumerate(rules)
            if not (0 <= rule.column < len(sensitive) and sensitive[rule.column] is rule.domain)
        ]
        problems += [
            Problem(
                f"sensitive[{place}]",
                f"{quote(domain.name)} has {domain.size} values",
                f"give buckets or categories that make 1 to {MAX_SENSITIVE_VALUES}",
            )
            for place, domain in enumerate(sensitive)
            if not 1 <= domain.size <= MAX_SENSITIVE_VALUES
        ]
        if len(quasi_identifiers) > MAX_QUASI_IDENTIFIERS:
            fix = f"name at most {MAX_QUASI_IDENTIFIERS}"
            problems.append(
                Problem("quasi_identifiers", f"{len(quasi_identifiers)} are named", fix)
            )
        if problems:
            raise InvalidError("k-anonymity", problems)
        self.space = Space(quasi_identifiers)
        self.demands = Demands(k, tuple(rules))
        self.delta = delta
        self.beta = beta
        self.mu = mu
        self.sensitive = tuple(sensitive)
        self.seed = seed

    @property
    def may_reuse(self) -> bool:
        """Whether a tuple may join a published group: only if no rule can break by it."""
        return all(rule.monotone for rule in self.demands.rules)

    @cached_property
    def signature(self) -> bytes:
        """A short hash of everything that a saved state depends on."""
        parts = [
            *(domain.signature for domain in self.space.domains),
            *(domain.signature for domain in self.sensitive),
            *(rule.signature for rule in self.demands.rules),
            (self.demands.k, self.delta, self.beta, self.mu, self.seed, len(self.space)),
        ]
        return sha256(repr(parts).encode()).digest()
