"""k-anonymity of a stream: its parameters, checked before anything runs, and its state as bytes.

CASTLE's four are taken. What they mean here:
- k: persons in a group; delta: positions a tuple may wait;
- mu: the last so many groups tell what loss is typical (τ); beta: so many published
  generalizations are kept for reuse, and where clusters are grown, at most so many are open.
- max_wait: how long a tuple may wait, in the unit of the clock that is passed in.
- outliers: whether a tuple for which there is no group is suppressed, or may be published
  under the root, where everything is alike.

Rules that hold here:
- State that was cut short or changed is refused: each array carries a checksum.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, Literal
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidError, Problem, UsageError, quote
from penstock.masks.anonymity.domains import Domain, Floats, Integers, Space
from penstock.masks.anonymity.rules import Demands, GroupRule

MAX_DELTA: Final = 10_000_000
MAX_BETA: Final = 10_000
MAX_MU: Final = 1_000_000
MAX_QUASI_IDENTIFIERS: Final = 64
MAX_SENSITIVE_VALUES: Final = 1_000
MAX_WAIT: Final = 1 << 53

Algorithm = Literal["partition", "castle"]
Outliers = Literal["suppress", "root"]


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
        max_wait: int | None = None,
        outliers: Outliers = "suppress",
        algorithm: Algorithm = "partition",
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
                ("max_wait", 1 if max_wait is None else max_wait, 1, MAX_WAIT),
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
        if algorithm == "castle" and rules:
            fix = "leave the rules out, or use the algorithm partition"
            problems.append(Problem("algorithm", "castle counts persons only", fix))
        if outliers == "root" and not all(rule.monotone for rule in rules):
            message = "under the root, one more tuple could break a rule"
            problems.append(Problem("outliers", message, "suppress them"))
        if problems:
            raise InvalidError("k-anonymity", problems)
        self.space = Space(quasi_identifiers)
        self.demands = Demands(k, tuple(rules))
        self.delta = delta
        self.beta = beta
        self.mu = mu
        self.sensitive = tuple(sensitive)
        self.seed = seed
        self.max_wait = max_wait
        self.outliers = outliers
        self.algorithm = algorithm

    @property
    def may_reuse(self) -> bool:
        """Whether a tuple may join a published group: only if no rule can break by it."""
        return all(rule.monotone for rule in self.demands.rules)

    def check(self, codes: Floats, sensitive: Integers, count: int) -> None:
        """Refuse arrays that do not fit the parameters."""
        spaces = (len(self.space), len(self.sensitive))
        if codes.shape != (spaces[0], count) or sensitive.shape != (spaces[1], count):
            raise UsageError(
                f"codes {codes.shape} and sensitive {sensitive.shape} do not fit {count} persons",
                fix=f"give ({spaces[0]}, {count}) codes and ({spaces[1]}, {count}) sensitive codes",
            )
        self.space.check(codes)
        for domain, line in zip(self.sensitive, sensitive, strict=True):
            if count and not (line.min() >= 0 and line.max() < domain.size):
                raise UsageError(
                    f"a code of the sensitive field {domain.name!r} is not from 0 to {domain.size}",
                    fix=f"send records on only if it is {domain.expected}",
                )

    @cached_property
    def signature(self) -> bytes:
        """A short hash of everything that a saved state depends on."""
        parts = [
            *(domain.signature for domain in self.space.domains),
            *(domain.signature for domain in self.sensitive),
            *(rule.signature for rule in self.demands.rules),
            (self.demands.k, self.delta, self.beta, self.mu, self.seed, len(self.space)),
        ]
        later = (self.max_wait, self.outliers, self.algorithm)
        if later != (None, "suppress", "partition"):
            parts.append(later)
        return sha256(repr(parts).encode()).digest()


def pack(parameters: StreamParameters, arrays: dict[str, npt.NDArray[Any]]) -> bytes:
    """Write arrays as bytes, together with what they depend on."""
    target = io.BytesIO()
    signature = np.frombuffer(parameters.signature, dtype=np.uint8)
    np.savez(target, allow_pickle=False, signature=signature, **arrays)
    return target.getvalue()


def unpack(parameters: StreamParameters, state: bytes) -> dict[str, npt.NDArray[Any]]:
    """Read what `pack` wrote with the same parameters."""
    try:
        with np.load(io.BytesIO(state), allow_pickle=False) as source:
            parts = dict(source)
        signature = parts.pop("signature").tobytes()
    except (BadZipFile, ValueError, OSError, EOFError, KeyError, AttributeError) as error:
        raise UsageError(
            f"the state of {len(state)} bytes cannot be read",
            fix="go back to an older checkpoint, or begin the view anew",
        ) from error
    if signature != parameters.signature:
        raise UsageError(
            "the state was written with other parameters",
            fix="flush the stream before its parameters change, or begin the view anew",
        )
    return parts
