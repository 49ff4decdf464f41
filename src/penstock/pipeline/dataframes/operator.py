"""A view's stateful step as an operator of Spark: a batch's groups, or a stream with state.

    values of a shard ─▶ rows in order ─▶ step.feed ─▶ rows and refusals ─▶ values
                                             │ ▲
                                    state store of the shard

Rules that hold here:
- A shard's state is one value: which definitions it belongs to, how many rows came so far, and
  all that the step knows. It is read and written once for each micro-batch.
- Rows come to the step in an order that does not depend on how Spark moved them: a micro-batch
  that is done again after a kill leads to the same state.
- State of other definitions is refused, never read as if it were of these.
- What waits for at most so long leaves by a timer of Spark's, on the clock of the micro-batch:
  Spark notes that with the batch, so that a retry meets the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType
from typing_extensions import override

from penstock.definitions.anonymizers.k_anonymity import KAnonymization
from penstock.errors import UsageError, quote
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.anonymizers.stateful import StatefulStep, StepOutcome, read_table
from penstock.pipeline.dataframes.shards import KEY, PACKED, ROWS, split_up
from penstock.pipeline.records.columns import (
    NO_TIME,
    OFFSET,
    PERSON,
    SUBJECT,
    TIME,
    WINDOW,
    arrow_schema,
)
from penstock.pipeline.session import freeze_loaded

ORDER: Final = "penstock:order"
"""Puts the rows of a micro-batch into one order, however Spark moved them."""
REASON: Final = "penstock:rejected"
CARRIED: Final = (OFFSET, PERSON, TIME, SUBJECT)
"""Columns of a row beside its fields, on the way to the step."""
_STATE: Final = StructType(
    [
        StructField("definitions", StringType()),
        StructField("next", LongType()),
        StructField("step", BinaryType()),
    ]
)


def run_grouped(packed: DataFrame, operator: ShardOperator) -> DataFrame:
    """Run the step over all rows of a batch, shard by shard."""

    def run(key: tuple[Any, ...], values: pa.Table) -> pa.Table:
        freeze_loaded()
        contents = (it.as_buffer() for it in values.column(ROWS))
        made, *_ = operator.run(contents, None, ending=True)
        found = list(made)
        return pa.table(
            {KEY: pa.array([key[0].as_py()] * len(found), pa.int32()), ROWS: pa.array(found)},
            schema=pa.schema([(KEY, pa.int32()), (ROWS, pa.binary())]),
        )

    return packed.groupBy(KEY).applyInArrow(run, PACKED)


def run_streaming(packed: DataFrame, operator: ShardOperator) -> DataFrame:
    """Run the step over a stream; what it holds back is in the state store."""
    # With timers, Spark runs a batch also where no record comes.
    mode = "ProcessingTime" if operator.is_timed else "None"
    return packed.groupBy(KEY).transformWithState(ShardProcessor(operator), PACKED, "Append", mode)


State = tuple[str, int, bytes]
"""Which definitions it belongs to, how many rows came so far, and what the step knows."""


class ShardOperator:
    """What one shard does with its rows, whoever keeps its state; travels to Spark's tasks."""

    def __init__(self, blueprint: Blueprint, secret: bytes, shards: int, *, located: bool) -> None:
        self._definitions = blueprint.to_json()
        self._secret = secret
        self._shards = shards
        self._located = located
        """Whether rows say where they stand in their source; else they are counted here."""

    @property
    def is_timed(self) -> bool:
        """Whether something leaves by the clock alone."""
        step = _read(self._definitions).plan.stateful[0]
        return isinstance(step, KAnonymization) and step.max_wait is not None

    def run(
        self, values: Iterable[Any], state: State | None, *, ending: bool, now: int = NO_TIME
    ) -> tuple[Iterator[bytes], State, int | None]:
        """Take packed rows in; return what leaves, the state then, and when the clock is due."""
        blueprint = _read(self._definitions)
        if state is not None and state[0] != blueprint.signature:
            raise UsageError(
                f"the checkpoint holds state of other definitions than those of the view "
                f"{quote(blueprint.view.name)}",
                fix="use the definitions it was made with, or a new checkpoint location",
            )
        first = state[1] if state else 0
        step = self._make(blueprint, state[2] if state else None)
        schema = arrow_schema(blueprint.plan.middle, *CARRIED)
        whole = schema.append(pa.field(ORDER, pa.int64())).append(pa.field(REASON, pa.string()))
        tables = [read_table(value) for value in values]
        table = pa.concat_tables(tables).sort_by(ORDER) if tables else whole.empty_table()
        table, first = self._number(table, blueprint, first)
        reasons = table[REASON]
        fine = table.filter(reasons.is_null())
        outcome = step.feed(fine.select(schema.names), now)
        outcomes = [outcome, step.flush()] if ending else [outcome]
        refused = table.filter(reasons.is_valid()).select([OFFSET, REASON])
        made = _lay_out(outcomes, refused, output_schema(blueprint))
        return split_up(made), (blueprint.signature, first, step.save()), step.due

    def _make(self, blueprint: Blueprint, saved: bytes | None) -> StatefulStep:
        step = blueprint.make_step(self._secret, saved, shards=self._shards)
        if step is None:
            raise TypeError(f"{blueprint.view.name} has no stateful step")
        return step

    def _number(self, table: pa.Table, blueprint: Blueprint, first: int) -> tuple[pa.Table, int]:
        """Give rows that do not say where they stand the next numbers."""
        if self._located:
            return table, first
        numbers = pa.array(np.arange(first, first + table.num_rows))
        table = table.set_column(table.schema.get_field_index(OFFSET), OFFSET, numbers)
        if blueprint.stream.subject is None:
            # Records about nobody in particular: each stands for a person of its own.
            table = table.set_column(table.schema.get_field_index(PERSON), PERSON, numbers)
        return table, first + table.num_rows


class ShardProcessor(StatefulProcessor):
    """The step of one shard, with its state in the state store."""

    def __init__(self, operator: ShardOperator) -> None:
        self._operator = operator
        self._handle: Any = None
        self._state: Any = None

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        freeze_loaded()
        self._handle = handle
        self._state = handle.getValueState("step", _STATE)

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        return self._run(key, (bytes(row[ROWS]) for row in rows), timerValues)

    @override
    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        return self._run(key, (), timerValues)

    def _run(self, key: Any, values: Iterable[bytes], clock: Any) -> Iterator[Row]:
        saved = self._state.get() if self._state.exists() else None
        before = (saved[0], saved[1], bytes(saved[2])) if saved is not None else None
        timed = self._operator.is_timed
        now = clock.getCurrentProcessingTimeInMs() if timed else NO_TIME
        made, after, due = self._operator.run(values, before, ending=False, now=now)
        for value in made:
            yield Row(**{KEY: key[0], ROWS: value})
        self._state.update(after)
        if timed:
            for earlier in list(self._handle.listTimers()):
                self._handle.deleteTimer(earlier)
            if due is not None:
                self._handle.registerTimer(due)

    @override
    def close(self) -> None:
        """Nothing is kept open."""


def output_schema(blueprint: Blueprint) -> pa.Schema:
    """Return the columns of what leaves the step; fields of refused rows are null."""
    made = arrow_schema(blueprint.plan.gathered, OFFSET, WINDOW)
    return made.append(pa.field(REASON, pa.string()))


def _lay_out(outcomes: list[StepOutcome], refused: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows and refusals side by side."""
    tables = []
    for outcome in outcomes:
        rows = outcome.rows
        tables.append(rows.append_column(REASON, pa.nulls(rows.num_rows, pa.string())))
        letters = [[it.offset for it in outcome.dead], [it.reason for it in outcome.dead]]
        tables.append(
            pa.table(letters, schema=pa.schema([schema.field(OFFSET), schema.field(REASON)]))
        )
    whole = pa.concat_tables([*tables, refused], promote_options="default")
    return whole.select(schema.names).cast(schema)


@lru_cache(maxsize=16)
def _read(definitions: str) -> Blueprint:
    return Blueprint.from_json(definitions)
