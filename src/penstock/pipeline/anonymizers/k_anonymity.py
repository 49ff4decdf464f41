"""k-anonymity of a view: rows wait until k persons share their quasi-identifiers.

The groups are formed by `masks.anonymity`; here the rows are kept that belong to its tuples,
and get their generalized values when they leave.

How long a row waits is measured by the clock of processing, from the batch that it came in with:
the watermark of a silent stream stands still, which is when rows wait, and times in records are
the word of who sent them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.definitions.k_anonymity import (
    Diverse,
    KAnonymization,
    LDiversity,
    Ranged,
    Sensitive,
    TCloseness,
)
from penstock.errors import quote
from penstock.masks import Hierarchy
from penstock.masks.anonymity.dates import DateDomain
from penstock.masks.anonymity.domains import CategoryDomain, Domain, NumberDomain, WithNull
from penstock.masks.anonymity.publication import Release, StreamParameters
from penstock.masks.anonymity.rules import (
    Closeness,
    Distance,
    DistinctDiversity,
    EntropyDiversity,
    GroupRule,
    RecursiveDiversity,
)
from penstock.masks.anonymity.stream import open_stream
from penstock.masks.fields import Schema
from penstock.masks.generalization import SYMBOL
from penstock.pipeline.anonymizers.stateful import (
    DeadLetter,
    StepOutcome,
    find_opted_out,
    offsets_of,
    read_table,
    split_off,
    write_table,
)
from penstock.pipeline.records.columns import (
    NO_TIME,
    OFFSET,
    PERSON,
    SUBJECT,
    WINDOW,
    Integers,
    arrow_schema,
)

SUPPRESSED: Final = "suppressed: there were not enough persons alike"
NOBODY: Final = "the record does not say which person it is about"
NULL: Final = "the field {} is null, which no group of the view has"
MICROSECONDS: Final = 86_400_000_000
"""Of a day."""
PERSONS: Final = "penstock:persons"
RECORDS: Final = "penstock:records"
LOW: Final = "penstock:low:"
HIGH: Final = "penstock:high:"
"""Columns of what is counted of each group: persons, records, the codes it lies between."""


class KAnonymityStep:
    """Holds rows back, and lets them go generalized."""

    def __init__(
        self,
        parameters: KAnonymization,
        schema: Schema,
        hierarchies: Mapping[str, Hierarchy],
        seed: int,
        saved: bytes | None = None,
    ) -> None:
        self._keys = parameters.keys
        self._domains = [
            make_domain(quasi, hierarchies, null=quasi.shares_null(schema))
            for quasi in parameters.quasi_identifiers
        ]
        mixed = parameters.sensitive if isinstance(parameters, Diverse) else ()
        self._mixed = [make_domain(field, hierarchies) for field in mixed]
        # Identifiers are never published: they are not even held.
        held = {name: schema[name] for name in parameters.needs(schema)}
        self._input = arrow_schema(held, OFFSET, PERSON, SUBJECT)
        self._output = arrow_schema(parameters.output(schema), OFFSET, WINDOW)
        steering = StreamParameters(
            self._domains,
            k=parameters.k,
            delta=parameters.delta,
            beta=parameters.beta,
            mu=parameters.mu,
            sensitive=self._mixed,
            rules=make_rules(parameters, self._mixed),
            seed=seed,
            max_wait=parameters.max_wait,
            outliers=parameters.outliers,
            algorithm=parameters.algorithm,
        )
        if saved is None:
            self._stream = open_stream(steering)
            self._rows = self._input.empty_table()
        else:
            size = int.from_bytes(saved[:8])
            self._stream = open_stream(steering, saved[8 : 8 + size])
            self._rows = read_table(saved[8 + size :])

    @property
    def held(self) -> int:
        """How many rows wait."""
        return int(self._rows.num_rows)

    def save(self) -> bytes:
        """Return the groups in the making and the rows that wait."""
        state = self._stream.to_bytes()
        return len(state).to_bytes(8) + state + write_table(self._rows)

    def forget(self, subjects: Integers, reason: str) -> list[DeadLetter]:
        """Let the rows of some people go unpublished; groups are made without them."""
        self._stream.forget(find_opted_out(self._rows, subjects))
        self._rows, dead = split_off(self._rows, subjects, reason)
        return dead

    @property
    def due(self) -> int | None:
        """When the first row that waits has waited for long enough, if there is a limit."""
        return self._stream.due

    def feed(self, rows: pa.Table, now: int, newest: int = NO_TIME) -> StepOutcome:  # noqa: ARG002
        """Take rows in; those outside a domain become dead letters at once.

        Here `now` is what the clock says, whatever was read by then.
        """
        rows = rows.select(self._input.names).cast(self._input)
        domains = [*self._domains, *self._mixed]
        codes = np.stack([_encode(rows[domain.name], domain) for domain in domains])
        dead = _refuse(rows, codes, domains)
        fine = ~np.isnan(codes).any(axis=0) & np.asarray(rows[PERSON].is_valid())
        rows = rows.filter(pa.array(fine))
        # Positions count on from here; what waits comes before what is new.
        first = self._stream.next_position
        positions = np.concatenate(
            [self._stream.held_positions, np.arange(first, first + rows.num_rows)]
        )
        self._rows = pa.concat_tables([self._rows, rows])
        codes = codes[:, fine]
        quasi, mixed = np.split(codes, [len(self._domains)])
        persons = rows[PERSON].to_numpy()
        release = self._stream.feed(quasi, persons, mixed.astype(np.int64), now=now)
        return self._release(release, positions, dead)

    def flush(self) -> StepOutcome:
        """Let everything go."""
        positions = self._stream.held_positions
        return self._release(self._stream.flush(), positions, [])

    def _release(
        self, release: Release, positions: Integers, dead: list[DeadLetter]
    ) -> StepOutcome:
        places = np.searchsorted(positions, release.positions)
        leaving = self._rows.take(pa.array(places))
        stays = np.ones(self._rows.num_rows, dtype=np.bool_)
        stays[places] = False
        self._rows = self._rows.filter(pa.array(stays)).combine_chunks()
        gone = leaving.filter(pa.array(release.suppressed))
        dead += [DeadLetter(offset, SUPPRESSED) for offset in offsets_of(gone)]
        published = leaving.filter(pa.array(~release.suppressed))
        boxes = release.places[~release.suppressed]
        loss = float(release.boxes.losses[boxes].sum())
        labels = {
            domain.name: pa.array(domain.labels(low, high), pa.string())
            for domain, low, high in zip(
                self._domains, release.boxes.lows, release.boxes.highs, strict=True
            )
        }
        rows = self._generalize(published, labels, boxes)
        return StepOutcome(rows, dead, loss, self._count(published, labels, boxes, release))

    def _count(
        self,
        rows: pa.Table,
        labels: Mapping[str, pa.Array],
        boxes: Integers,
        release: Release,
    ) -> pa.Table | None:
        """Return how many records and persons stand behind each group of published values."""
        if not boxes.size:
            return None
        # Boxes with the same labels are one group to those who read them.
        codes = np.stack(
            [np.asarray(it.dictionary_encode("encode").indices) for it in labels.values()]
        )
        _, first, same = np.unique(codes, axis=1, return_index=True, return_inverse=True)
        groups = same.reshape(-1)[boxes]
        records = np.bincount(groups, minlength=first.size)
        made = {name: found.take(pa.array(first)) for name, found in labels.items()}
        for domain, low, high in zip(
            self._domains, release.boxes.lows, release.boxes.highs, strict=True
        ):
            made[f"{LOW}{domain.name}"] = pa.array(low[first])
            made[f"{HIGH}{domain.name}"] = pa.array(high[first])
        made[RECORDS] = pa.array(records)
        made[PERSONS] = pa.array(count_persons(groups, rows[PERSON].to_numpy(), first.size))
        return pa.table(made).filter(pa.array(records > 0))

    def _generalize(
        self, rows: pa.Table, labels: Mapping[str, pa.Array], boxes: Integers
    ) -> pa.Table:
        made = {name: found.take(pa.array(boxes)) for name, found in labels.items()}
        columns = []
        for field in self._output:
            if field.name in made:
                column = made[field.name]
            elif field.name in self._keys:
                text = pa.types.is_string(field.type)
                column = pa.repeat(pa.scalar(SYMBOL if text else None, field.type), rows.num_rows)
            elif field.name == WINDOW:
                column = pa.repeat(pa.scalar(0, field.type), rows.num_rows)
            else:
                column = rows[field.name]
            columns.append(column)
        return pa.table(columns, schema=self._output)


def _refuse(
    rows: pa.Table, codes: npt.NDArray[np.float64], domains: list[Domain]
) -> list[DeadLetter]:
    """Return the rows with values outside a domain, and those about nobody."""
    dead: dict[int, str] = {}
    offsets = rows[OFFSET].to_numpy()
    for domain, line in zip(domains, codes, strict=True):
        wrong, null = np.isnan(line), np.asarray(rows[domain.name].is_null())
        for offset in offsets[wrong & null].tolist():
            dead.setdefault(offset, NULL.format(quote(domain.name)))
        reason = f"the field {quote(domain.name)} is not {domain.expected}"
        for offset in offsets[wrong & ~null].tolist():
            dead.setdefault(offset, reason)
    for offset in rows.filter(pc.is_null(rows[PERSON]))[OFFSET].to_pylist():
        dead.setdefault(offset, NOBODY)
    return [DeadLetter(offset, reason) for offset, reason in sorted(dead.items())]


def make_domain(
    field: Ranged, hierarchies: Mapping[str, Hierarchy], *, null: bool = False
) -> Domain:
    """Return what values a field may have; with `null` that is one of them."""
    found = _make_domain(field, hierarchies)
    return WithNull(found) if null else found


def _make_domain(field: Ranged, hierarchies: Mapping[str, Hierarchy]) -> Domain:
    if field.hierarchy is not None:
        tree = field.hierarchy
        found = tree if isinstance(tree, Hierarchy) else hierarchies[tree]
        return CategoryDomain(field.key, found.paths)
    if isinstance(field, Sensitive) and field.values:
        return CategoryDomain.flat(field.key, field.values)
    if field.min is None or field.max is None:
        raise TypeError(f"the check let {field.key} pass without bounds")
    if isinstance(field.min, str) or isinstance(field.max, str):
        days = None if field.bucket_size is None else int(field.bucket_size)
        low, high = (date.fromisoformat(str(bound)) for bound in (field.min, field.max))
        return DateDomain(field.key, low, high, bucket=days, unit=field.unit)
    return NumberDomain(field.key, field.min, field.max, bucket=field.bucket_size)


def make_rules(parameters: KAnonymization, domains: list[Domain]) -> list[GroupRule]:
    """Return what groups must fulfil besides k, one rule for each sensitive field."""
    rules: list[GroupRule] = []
    for column, domain in enumerate(domains):
        if isinstance(parameters, TCloseness):
            distance = Distance(parameters.distance)
            rules.append(Closeness(column, domain, parameters.t, distance))
        elif isinstance(parameters, LDiversity):
            if parameters.c is not None:
                rules.append(RecursiveDiversity(column, domain, parameters.c, parameters.least))
            elif parameters.method == "entropy":
                rules.append(EntropyDiversity(column, domain, parameters.least))
            else:
                rules.append(DistinctDiversity(column, domain, parameters.least))
    return rules


def _encode(column: pa.ChunkedArray, domain: Domain) -> npt.NDArray[np.float64]:
    if not isinstance(domain, WithNull):
        return domain.encode(_values(column, domain))
    codes = domain.inner.encode(_values(column, domain.inner))
    return np.where(np.asarray(column.is_null()), domain.null, codes)


def _values(column: pa.ChunkedArray, domain: Domain) -> npt.NDArray[np.float64] | list[object]:
    if isinstance(domain, CategoryDomain):
        texts: list[object] = column.to_pylist()
        return texts
    if isinstance(domain, DateDomain):
        # Days since 1970; a moment counts as its day in UTC.
        day = pa.types.is_date(column.type)
        whole = column.cast(pa.int32() if day else pa.int64())
        days: npt.NDArray[np.float64] = whole.cast(pa.float64(), safe=False).to_numpy(
            zero_copy_only=False
        )
        return days if day else np.floor(days / MICROSECONDS)
    numbers: npt.NDArray[np.float64] = pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False)
    return numbers


def count_persons(groups: Integers, persons: Integers, number: int) -> Integers:
    """Return how many different persons each of a number of groups has."""
    order = np.lexsort((persons, groups))
    groups, persons = groups[order], persons[order]
    new = np.ones(groups.size, dtype=np.bool_)
    new[1:] = (np.diff(groups) != 0) | (np.diff(persons) != 0)
    return np.bincount(groups[new], minlength=number)
