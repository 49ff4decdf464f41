"""What a view promises of its groups (k, l, t), and whether what it published keeps it.

    k_anonymization, l_diversity, t_closeness ──▶ promises ──┐
    groups as they were published ──────────────────────────▶│──▶ kept, broken, or not known

Rules that hold here:
- Promises are judged by the groups that readers see: records alike in all quasi-identifiers that
  are measured, also in those that the view does not generalize.
- k is of persons. Where only records are counted, too few of them break the promise, and enough
  of them do not keep it: that is not known.
- l and t are judged by the rules and domains that the view formed its groups by, so that a figure
  in another unit is not compared with the promise.
- t compares with the values of all that was published. The view compared with those that had come
  when it published a group, so that a change of the stream can break this promise afterwards.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from penstock.definitions.k_anonymity import Diverse, KAnonymization, TCloseness
from penstock.masks.anonymity.domains import Domain, Floats
from penstock.masks.anonymity.rules import (
    Closeness,
    EntropyDiversity,
    GroupRule,
    RecursiveDiversity,
    move_earth,
)
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.anonymizers.k_anonymity import make_domain, make_rules
from penstock.pipeline.records.columns import Integers
from penstock.risk.tally import COUNT, Codes

CELLS: Final = 4_000_000
"""How many cells histograms of groups have at once, at most."""
NOTHING: Final = "nothing is published"
ONLY_RECORDS: Final = "records are enough, persons are not counted"
MASKED: Final = "a mask changes the field after the groups are formed"


@dataclass(frozen=True, slots=True)
class GroupPromise:
    """One promise, and what became of it."""

    figure: str
    """`k`, `l` or `t`."""
    field: str | None
    promised: float
    measured: float | None
    kept: bool | None
    """None: it cannot be known."""
    groups: int
    """Groups that break it."""
    records: int
    """The records in them."""
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON data."""
        return asdict(self)


def promised_k(blueprint: Blueprint) -> int | None:
    """Return the k that a view promises, if it promises one."""
    step = _find_step(blueprint)
    return None if step is None else step.k


def judge_k(
    blueprint: Blueprint, sizes: Integers, records: Integers, *, persons: bool
) -> list[GroupPromise]:
    """Judge the promise of k; an empty list where there is none."""
    k = promised_k(blueprint)
    if k is None:
        return []
    if not sizes.size:
        return [GroupPromise("k", None, k, None, None, 0, 0, NOTHING)]
    small = sizes < k
    kept, reason = not small.any(), ""
    unknown = kept and not persons
    if unknown:
        reason = ONLY_RECORDS
    return [
        GroupPromise(
            "k",
            None,
            k,
            int(sizes.min()),
            None if unknown else bool(kept),
            int(small.sum()),
            int(records[small].sum()),
            reason,
        )
    ]


def judge_sensitive(
    blueprint: Blueprint, field: str, group: list[str], table: pa.Table, codes: Codes
) -> list[GroupPromise]:
    """Judge the promise about a sensitive field; the table has counts by group and value."""
    step = _find_step(blueprint)
    if not isinstance(step, Diverse):
        return []
    domains = [make_domain(it, blueprint.hierarchies) for it in step.sensitive]
    promises = zip(domains, make_rules(step, domains), strict=True)
    return [
        _judge(step, field, domain, rule, _Histograms.of(group, field, table, codes, domain))
        for domain, rule in promises
        if domain.name == field
    ]


def _find_step(blueprint: Blueprint) -> KAnonymization | None:
    found = blueprint.plan.stateful[:1]
    return found[0] if found and isinstance(found[0], KAnonymization) else None


@dataclass(frozen=True, slots=True)
class _Histograms:
    """How often each group has each value of a domain; `strange` if some value is of no domain."""

    groups: Integers
    values: Integers
    counts: Floats
    strange: bool

    @classmethod
    def of(
        cls, group: list[str], field: str, table: pa.Table, codes: Codes, domain: Domain
    ) -> _Histograms:
        columns = [np.asarray(table[name]) for name in group]
        rows = table.num_rows
        groups = (
            np.unique(np.stack(columns), axis=1, return_inverse=True)[1].reshape(-1)
            if columns
            else np.zeros(rows, dtype=np.int64)
        )
        different, places = np.unique(np.asarray(table[field]), return_inverse=True)
        encoded = domain.encode(codes.decode(different))[places]
        order = np.argsort(groups, kind="stable")
        strange = bool(np.isnan(encoded).any())
        values = np.nan_to_num(encoded).astype(np.int64)
        counts = np.asarray(table[COUNT]).astype(np.float64)
        return cls(groups[order], values[order], counts[order], strange)


def _judge(
    step: Diverse, field: str, domain: Domain, rule: GroupRule, found: _Histograms
) -> GroupPromise:
    figure, promised = _tell(step)
    if not found.groups.size or found.strange:
        reason = MASKED if found.strange else NOTHING
        return GroupPromise(figure, field, promised, None, None, 0, 0, reason)
    size = domain.size
    reference: Floats = np.bincount(found.values, found.counts, size).astype(np.float64)
    number = int(found.groups[-1]) + 1
    many = max(1, CELLS // size)
    broken = records = 0
    figures = []
    for first in range(0, number, many):
        begin, end = np.searchsorted(found.groups, [first, first + many])
        part = slice(begin, end)
        rows = min(many, number - first)
        cells = (found.groups[part] - first) * size + found.values[part]
        counts: Floats = np.bincount(cells, found.counts[part], rows * size).astype(np.float64)
        counts = counts.reshape(rows, size)
        wrong = ~rule.holds(counts, reference)
        broken += int(wrong.sum())
        records += int(counts[wrong].sum())
        figures.append(_measure(rule, counts, reference))
    measured = max(figures) if isinstance(rule, Closeness) else min(figures)
    return GroupPromise(figure, field, promised, measured, not broken, broken, records)


def _tell(step: Diverse) -> tuple[str, float]:
    if isinstance(step, TCloseness):
        return "t", float(step.t)
    return "l", float(getattr(step, "least", 0))


def _measure(rule: GroupRule, counts: Floats, reference: Floats) -> float:
    """Return the figure of the worst group, in the unit of the promise."""
    if isinstance(rule, Closeness):
        return float(move_earth(rule.domain, rule.distance, counts, reference).max())
    if isinstance(rule, EntropyDiversity):
        shares = counts / counts.sum(axis=1, keepdims=True)
        logarithms = np.log(np.where(shares > 0.0, shares, 1.0))
        return float(np.exp(-(shares * logarithms).sum(axis=1)).min())
    if isinstance(rule, RecursiveDiversity):
        ordered = np.sort(counts, axis=1)[:, ::-1]
        tails = np.cumsum(ordered[:, ::-1], axis=1)[:, ::-1]
        # The greatest l with r1 < c (r_l + … + r_m).
        return float((ordered[:, :1] < rule.c * tails).sum(axis=1).min())
    return float(np.count_nonzero(counts, axis=1).min())
