"""What one shard does in a micro-batch, whoever keeps its state; travels to Spark's tasks.

Rules that hold here:
- All in here is a function of values, state and clock: the same again leads to the same, but for
  the noise of differential privacy, which nobody draws twice.
- A shard answers in values: rows that leave and rows that are refused, with their place; its
  parts of what is made of all shards, to each that needs them; a report in numbers.
- Who opted out is known by a digest: the list itself is read only where this process has not
  seen it yet.
"""

from __future__ import annotations

import hashlib
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from penstock.definitions.k_anonymity import KAnonymization
from penstock.errors import PenstockError, UsageError, quote
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.anonymizers.differential_privacy import DifferentialPrivacyStep
from penstock.pipeline.anonymizers.stateful import (
    StatefulStep,
    StepOutcome,
    read_table,
    split_off,
    write_table,
)
from penstock.pipeline.anonymizers.window_anonymizers import fill_in
from penstock.pipeline.dataframes.shards import REASON, SIGNAL, split_up
from penstock.pipeline.records.columns import (
    NO_TIME,
    OFFSET,
    PERSON,
    SUBJECT,
    TIME,
    WINDOW,
    Integers,
    arrow_schema,
)
from penstock.pipeline.records.opt_outs import ERASED, REFUSED

ORDER: Final = "penstock:order"
"""Puts rows without a place in their source into one order, however Spark moved them."""
REPORT: Final = "penstock:report"
REPORTED: Final = pa.struct(
    [
        ("shard", pa.int32()),
        ("read", pa.int64()),
        ("held", pa.int64()),
        ("due", pa.int64()),
        ("loss", pa.float64()),
        ("groups", pa.binary()),
    ]
)
_ANEW: Final = "go back to an older checkpoint, or begin a new one"
_PARTS: Final = {b"penstock": b"parts"}
_KIND: Final = b"penstock"
_DIGEST: Final = 16
_LISTS: Final = 16
_MARK: Final = "«penstock» {} «/penstock»"
_TOLD: Final = re.compile("«penstock» (.*?) «/penstock»", re.DOTALL)


class ShardState(NamedTuple):
    """What a shard knows from one micro-batch to the next."""

    view: str
    definitions: str
    """Names the definitions that the step goes by."""
    anonymizer: str
    shards: int
    next: int
    """How many rows came so far."""
    held: int
    opted_out: bytes
    """A digest of who opted out; empty where nobody did."""
    checksum: bytes
    step: bytes

    @classmethod
    def of(cls, saved: Sequence[Any]) -> ShardState:
        """Return what a state store keeps."""
        made = cls(*saved)
        return made._replace(
            opted_out=bytes(made.opted_out), checksum=bytes(made.checksum), step=bytes(made.step)
        )


class ShardResult(NamedTuple):
    """What a micro-batch made of a shard."""

    values: Iterator[tuple[int, bytes]]
    """Each with the key of the shard that it is for."""
    state: ShardState
    opted_out: bytes | None
    """Who opted out, where that changed."""
    due: int | None
    """When the clock lets something leave, if ever."""


class _Signals(NamedTuple):
    opted_out: Integers | None
    erased: Integers | None
    clock: int
    flush: bool
    newest: int


class ShardStep:
    """The stateful step of a view, for each of its shards."""

    def __init__(
        self,
        blueprint: Blueprint,
        secret: bytes,
        keys: Sequence[int],
        *,
        located: bool,
        reports: bool,
    ) -> None:
        self._definitions = blueprint.to_json()
        self._secret = secret
        self._keys = tuple(keys)
        self._located = located
        """Whether rows say where they stand in their source; else they are counted here."""
        self._reports = reports

    @property
    def is_timed(self) -> bool:
        """Whether something may leave by the clock of the micro-batch alone."""
        step = _read(self._definitions).plan.stateful[0]
        return isinstance(step, KAnonymization) and step.max_wait is not None

    @property
    def combines(self) -> bool:
        """Whether shards make parts of something that is made of all."""
        blueprint = _read(self._definitions)
        return len(self._keys) > 1 and blueprint.combines

    def run(
        self,
        key: int,
        values: Iterable[Any],
        state: ShardState | None,
        *,
        ending: bool = False,
        now: int = NO_TIME,
        load_opted_out: Callable[[], bytes] = bytes,
    ) -> ShardResult:
        """Take packed rows and signals in; return what leaves, and the state then."""
        blueprint = _read(self._definitions)
        tables = [read_table(value) for value in values]
        signals = _gather([it for it in tables if _is_signal(it)])
        shard = self._keys.index(key)
        step = self._open(blueprint, shard, state)
        opted_out, digest, changed = _update(signals.opted_out, state, load_opted_out)
        forgotten = step.forget(opted_out, REFUSED) if changed is not None else []
        if signals.erased is not None:
            forgotten += step.forget(signals.erased, ERASED)
        table = self._order([it for it in tables if not _is_signal(it)], blueprint)
        first = state.next if state else 0
        table, following = self._number(table, blueprint, first, shard)
        reasons = table[REASON]
        fine = table.filter(reasons.is_null()) if reasons.null_count < table.num_rows else table
        fine, late = split_off(fine, opted_out, REFUSED)
        clock = signals.clock if blueprint.is_windowed else max(now, signals.clock)
        outcomes = [step.feed(fine, clock, signals.newest)]
        outcomes[0].dead += forgotten + late
        if ending or signals.flush:
            outcomes.append(step.flush())
        saved = step.save()
        after = ShardState(
            blueprint.view.name,
            blueprint.signature,
            blueprint.plan.stateful[0].name,
            len(self._keys),
            following,
            step.held,
            digest,
            _digest(saved),
            saved,
        )
        refused = table.filter(reasons.is_valid()).select([OFFSET, REASON])
        made = self._answer(key, outcomes, refused, (table.num_rows, step.held, step.due))
        return ShardResult(made, after, changed, step.due)

    def _open(self, blueprint: Blueprint, shard: int, state: ShardState | None) -> StatefulStep:
        if state is None:
            return self._make(blueprint, shard)
        if _digest(state.step) != state.checksum:
            raise UsageError(
                f"the state of the view {quote(blueprint.view.name)} is damaged", fix=_ANEW
            )
        if state.view != blueprint.view.name:
            raise UsageError(
                f"the checkpoint is that of the view {quote(state.view)}",
                fix=f"use a checkpoint of its own for {quote(blueprint.view.name)}",
            )
        same = state.shards == len(self._keys)
        if same and state.definitions == blueprint.signature:
            return self._make(blueprint, shard, state.step)
        if state.held:
            raise UsageError(
                f"the checkpoint holds state of other definitions than those of the view "
                f"{quote(blueprint.view.name)}, or of another number of shards",
                fix="use what it was made with, flush it before, or use a new checkpoint location",
            )
        step = self._make(blueprint, shard)
        budgeted = state.anonymizer == blueprint.plan.stateful[0].name
        if isinstance(step, DifferentialPrivacyStep) and budgeted:
            if not same:
                raise UsageError(
                    f"budgets of the view {quote(blueprint.view.name)} are kept in "
                    f"{state.shards} shards, not in {len(self._keys)}",
                    fix="keep their number: figures are the same with any",
                )
            step.inherit(state.step)
        return step

    def _make(self, blueprint: Blueprint, shard: int, saved: bytes | None = None) -> StatefulStep:
        step = blueprint.make_step(self._secret, saved, shards=len(self._keys), shard=shard)
        if step is None:
            raise TypeError(f"{blueprint.view.name} has no stateful step")
        return step

    def _order(self, tables: list[pa.Table], blueprint: Blueprint) -> pa.Table:
        if not tables:
            return input_schema(blueprint, located=self._located).empty_table()
        table = pa.concat_tables(tables)
        if TIME in table.column_names and not self._located:
            return table.sort_by([(ORDER, "ascending"), (TIME, "ascending")])
        return table.sort_by(order_of(located=self._located))

    def _number(
        self, table: pa.Table, blueprint: Blueprint, first: int, shard: int
    ) -> tuple[pa.Table, int]:
        """Give rows that do not say where they stand the next numbers, no two shards the same."""
        end = first + table.num_rows
        if self._located:
            return table, end
        numbers = pa.array(np.arange(first, end) * len(self._keys) + shard)
        table = table.set_column(table.schema.get_field_index(OFFSET), OFFSET, numbers)
        if blueprint.stream.subject is None:
            # Records about nobody in particular: each stands for a person of its own.
            table = table.set_column(table.schema.get_field_index(PERSON), PERSON, numbers)
        return table, end

    def _answer(
        self,
        key: int,
        outcomes: list[StepOutcome],
        refused: pa.Table,
        numbers: tuple[int, int, int | None],
    ) -> Iterator[tuple[int, bytes]]:
        blueprint = _read(self._definitions)
        schema = output_schema(blueprint, reports=self._reports)
        for value in split_up(_lay_out(outcomes, refused, schema)):
            yield key, value
        # Aggregates stand in the rows of all shards; what is published of persons stands once.
        targets = self._keys[:1] if blueprint.figures is not None else self._keys
        for outcome in outcomes:
            if outcome.parts is not None:
                about = {**(outcome.parts.schema.metadata or {}), **_PARTS}
                part = write_table(outcome.parts.replace_schema_metadata(about))
                yield from ((target, part) for target in targets)
        if self._reports:
            read, held, due = numbers
            loss = sum(outcome.loss for outcome in outcomes)
            groups = [it.groups for it in outcomes if it.groups is not None]
            persons = write_table(pa.concat_tables(groups)) if groups else None
            told: dict[str, Any] = {"shard": key, "read": read, "held": held, "due": due}
            told |= {"loss": loss, "groups": persons}
            yield key, write_table(pa.Table.from_pylist([{REPORT: told}], schema=schema))

    def combine(self, tables: Sequence[pa.Table]) -> Iterator[pa.Table]:
        """Yield the rows of a shard, with what is made of the parts of all of them."""
        blueprint = _read(self._definitions)
        schema = output_schema(blueprint, reports=self._reports)
        parts = [it for it in tables if _kind_of(it) == _PARTS[_KIND]]
        rows = [it for it in tables if _kind_of(it) != _PARTS[_KIND]]
        figures = blueprint.figures
        if figures is not None:
            yield from rows
            yield _fit(figures.publish(parts), schema)
            return
        for table in rows:
            published = table[WINDOW].is_valid()
            made = table.filter(published)
            if made.num_rows:
                yield fill_in(made, parts, blueprint.plan.stateful, blueprint.plan.gathered)
            yield table.filter(table[WINDOW].is_null())


def order_of(*, located: bool) -> str:
    """Return the column that puts rows in order: where they stand, if they say it."""
    return OFFSET if located else ORDER


def carried_by(blueprint: Blueprint, *, located: bool) -> tuple[str, ...]:
    """Return the columns of a row beside its fields, on the way to the step."""
    timed = (TIME,) if blueprint.is_windowed else ()
    return (OFFSET, PERSON, SUBJECT, *timed, *(() if located else (ORDER,)))


def input_schema(blueprint: Blueprint, *, located: bool) -> pa.Schema:
    """Return the columns of rows on their way to the step."""
    middle = blueprint.plan.middle
    fields = {name: middle[name] for name in blueprint.needs}
    made = arrow_schema(fields, *carried_by(blueprint, located=located))
    return made.append(pa.field(REASON, pa.string()))


def output_schema(blueprint: Blueprint, *, reports: bool) -> pa.Schema:
    """Return the columns of what leaves the step; fields of refused rows are null."""
    made = arrow_schema(blueprint.plan.gathered, OFFSET, WINDOW)
    made = made.append(pa.field(REASON, pa.string()))
    return made.append(pa.field(REPORT, REPORTED)) if reports else made


def told_by(error: BaseException) -> str | None:
    """Return what a task of ours said, in what Spark passes on of it."""
    found = _TOLD.search(str(error))
    return found[1] if found else None


@contextmanager
def quoting_no_row() -> Iterator[None]:
    """Let errors out of a task without what rows said: Spark writes them to its log."""
    try:
        yield
    except PenstockError as error:
        raise UsageError(_MARK.format(error)) from None
    except Exception as error:  # noqa: BLE001 - its text may quote rows
        frames = traceback.extract_tb(error.__traceback__)
        # What libraries call their lines tells little; our own are the last that help.
        own = [frame for frame in frames if "penstock" in frame.filename][-1]
        where = f"{Path(own.filename).name}, line {own.lineno}"
        told = f"its stateful step failed: {type(error).__name__} ({where})"
        raise RuntimeError(_MARK.format(told)) from None


def _lay_out(outcomes: list[StepOutcome], refused: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows and refusals side by side."""
    tables = []
    for outcome in outcomes:
        tables.append(_fit(outcome.rows, schema))
        if outcome.dead:
            letters = [[it.offset for it in outcome.dead], [it.reason for it in outcome.dead]]
            fields = pa.schema([schema.field(OFFSET), schema.field(REASON)])
            tables.append(_fit(pa.table(letters, schema=fields), schema))
    return pa.concat_tables([*tables, _fit(refused, schema)])


def _fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with all columns; what they lack is null."""
    columns = [
        table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _gather(tables: list[pa.Table]) -> _Signals:
    """Return what the signals of a micro-batch tell together."""
    told = sorted(
        pa.concat_tables([SIGNAL.empty_table(), *tables]).to_pylist(),
        key=lambda it: NO_TIME if it["order"] is None else it["order"],
    )
    lists = [it["opted_out"] for it in told if it["opted_out"] is not None]
    erased = [number for it in told for number in it["erased"] or ()]
    return _Signals(
        np.unique(np.array(lists[-1], dtype=np.int64)) if lists else None,
        np.unique(np.array(erased, dtype=np.int64)) if erased else None,
        max((it["clock"] for it in told if it["clock"] is not None), default=NO_TIME),
        any(it["flush"] for it in told),
        max((it["newest"] for it in told if it["newest"] is not None), default=NO_TIME),
    )


def _update(
    told: Integers | None, state: ShardState | None, load: Callable[[], bytes]
) -> tuple[Integers, bytes, bytes | None]:
    """Return who opted out, a digest of it, and the list itself where it changed."""
    before = state.opted_out if state else b""
    if told is None:
        return _opted_out(before, load), before, None
    content = told.tobytes()
    digest = _digest(content) if told.size else b""
    return told, digest, content if digest != before else None


_NOBODY: Final[Integers] = np.empty(0, dtype=np.int64)
_known: dict[bytes, Integers] = {}


def _opted_out(digest: bytes, load: Callable[[], bytes]) -> Integers:
    if not digest:
        return _NOBODY
    found = _known.get(digest)
    if found is None:
        content = load()
        if _digest(content) != digest:
            raise UsageError("the list of who opted out is damaged in the state", fix=_ANEW)
        # The list of a few views; a process of Spark's works for any of them.
        while len(_known) >= _LISTS:
            del _known[next(iter(_known))]
        found = _known[digest] = np.frombuffer(content, dtype=np.int64)
    return found


def _kind_of(table: pa.Table) -> bytes | None:
    found: bytes | None = (table.schema.metadata or {}).get(_KIND)
    return found


def _is_signal(table: pa.Table) -> bool:
    return _kind_of(table) == b"signal"


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST).digest()


@lru_cache(maxsize=16)
def _read(definitions: str) -> Blueprint:
    return Blueprint.from_json(definitions)
