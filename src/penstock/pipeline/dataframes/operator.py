"""A view's stateful step as an operator of Spark: a batch's groups, or a stream with state.

    values of a shard ─▶ opted out? ─▶ rows in order ─▶ step.feed ─▶ clock, flush ─▶ values
                              │                            │ ▲
                              └── state store of the shard ┴─┘

Rules that hold here:
- A shard's state is two values: all that the step knows, read and written once for each
  micro-batch; and who opted out, written when that changes.
- Rows come to the step in an order that does not depend on how Spark moved them, and signals at
  fixed places before and behind them: a micro-batch that is done again leads to the same.
- State of another view and damaged state are refused. State of other definitions is refused while
  it holds rows; what it knows of budgets outlives the change.
- What waits for at most so long leaves by the clock of the micro-batch, which Spark notes with it:
  by a timer of Spark's, or, where signals come, by a signal.
- Errors that leave a task never quote a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType
from typing_extensions import override

from penstock.pipeline.dataframes.shard_step import ShardState, ShardStep, quoting_no_row
from penstock.pipeline.dataframes.shards import KEY, PACKED, ROWS
from penstock.pipeline.records.columns import NO_TIME
from penstock.pipeline.session import freeze_loaded

_STATE: Final = StructType(
    [
        StructField("view", StringType()),
        StructField("definitions", StringType()),
        StructField("anonymizer", StringType()),
        StructField("shards", IntegerType()),
        StructField("next", LongType()),
        StructField("held", LongType()),
        StructField("opted_out", BinaryType()),
        StructField("checksum", BinaryType()),
        StructField("step", BinaryType()),
    ]
)
_OPTED_OUT: Final = StructType([StructField("numbers", BinaryType())])


def run_grouped(packed: DataFrame, step: ShardStep) -> DataFrame:
    """Run the step over all rows of a batch, shard by shard."""

    def run(key: tuple[Any, ...], values: pa.Table) -> pa.Table:
        freeze_loaded()
        with quoting_no_row():
            contents = (it.as_buffer() for it in values.column(ROWS))
            made = step.run(key[0].as_py(), contents, None, ending=True)
            found = list(made.values)
        return pa.table(
            {
                KEY: pa.array([key for key, _ in found], pa.int32()),
                ROWS: pa.array([value for _, value in found], pa.binary()),
            }
        )

    return packed.groupBy(KEY).applyInArrow(run, PACKED)


def run_streaming(packed: DataFrame, step: ShardStep, *, signalled: bool) -> DataFrame:
    """Run the step over a stream; what it holds back is in the state store.

    `signalled`: who runs the query sends the clock, and wants no batches without data.
    """
    # With timers, Spark runs a batch also where no record comes.
    mode = "ProcessingTime" if signalled or step.is_timed else "None"
    processor = ShardProcessor(step, timers=step.is_timed and not signalled)
    return packed.groupBy(KEY).transformWithState(processor, PACKED, "Append", mode)


class ShardProcessor(StatefulProcessor):
    """The step of one shard, with its state in the state store."""

    def __init__(self, step: ShardStep, *, timers: bool) -> None:
        self._step = step
        self._timers = timers
        self._handle: Any = None
        self._state: Any = None
        self._opted_out: Any = None

    @override
    def init(self, handle: StatefulProcessorHandle) -> None:
        freeze_loaded()
        self._handle = handle
        self._state = handle.getValueState("step", _STATE)
        self._opted_out = handle.getValueState("opted_out", _OPTED_OUT)

    @override
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        return self._run(key[0], (bytes(row[ROWS]) for row in rows), timerValues)

    @override
    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        return self._run(key[0], (), timerValues)

    def _run(self, key: int, values: Iterable[bytes], clock: Any) -> Iterator[Row]:
        with quoting_no_row():
            now = clock.getCurrentProcessingTimeInMs() if self._step.is_timed else NO_TIME
            saved = self._state.get() if self._state.exists() else None
            before = ShardState.of(saved) if saved is not None else None
            made = self._step.run(key, values, before, now=now, load_opted_out=self._load_opted_out)
            for target, value in made.values:
                yield Row(**{KEY: target, ROWS: value})
            self._state.update(tuple(made.state))
            if made.opted_out is not None:
                self._opted_out.update((made.opted_out,))
            if self._timers:
                for earlier in list(self._handle.listTimers()):
                    self._handle.deleteTimer(earlier)
                if made.due is not None:
                    self._handle.registerTimer(made.due)

    def _load_opted_out(self) -> bytes:
        return bytes(self._opted_out.get()[0])

    @override
    def close(self) -> None:
        """Nothing is kept open."""
