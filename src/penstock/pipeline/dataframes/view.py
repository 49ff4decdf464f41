"""The records of a view: what `anonymize` returns, and what each query of a view runs on.

    records ─▶ masks ─▶ rejected │ stateful step: pack ─▶ shards ─▶ unpack │ ─▶ masks ─▶ the view
              (columns)          └──────── only where the view has one ────┘

Rules that hold here:
- Row-wise masks are native columns. A stateful step is an operator of Spark: grouped in a
  batch, `transformWithState` in a stream.
- Columns that the step does not need do not go to it.
- A batch ends the stream: whatever a step still holds leaves, or is rejected. A stream goes on:
  what is held waits in Spark's state for records to hide among.

    values of a shard ─▶ opted out? ─▶ rows in order ─▶ step.feed ─▶ clock, flush ─▶ values
                              │                            │ ▲
                              └── state store of the shard ┴─┘

Rules of the stateful operator:
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

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, Row, SparkSession, types
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType
from typing_extensions import override

from penstock.definitions.differential_privacy import DifferentialPrivacy
from penstock.definitions.k_anonymity import KAnonymization
from penstock.errors import UsageError, quote
from penstock.masks import Chain, Vault
from penstock.masks.spark import RowMasks, spark_type
from penstock.model.kinds.views import SHARD_LIMIT
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.dataframes.shard_step import (
    REPORT,
    ShardState,
    ShardStep,
    carried_by,
    order_of,
    quoting_no_row,
)
from penstock.pipeline.dataframes.shards import (
    KEY,
    PACKED,
    REASON,
    ROWS,
    choose_keys,
    pack,
    pack_signals,
    unpack,
    unpack_combined,
)
from penstock.pipeline.records.columns import NO_TIME, OFFSET, PERSON, PROBLEM, SUBJECT, WINDOW
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


PARTITIONS: Final = "spark.sql.shuffle.partitions"
PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS: Final = {
    PROVIDER: ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # States of the past hold values that were let go since: the fewest that Spark can do with.
    "spark.sql.streaming.minBatchesToRetain": "2",
    # The clock comes as a signal: a view that is silent costs nothing.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
"""What the session of a query with signals is set to."""
_REPORTED: Final = types.StructType(
    [
        types.StructField("shard", types.IntegerType()),
        types.StructField("read", types.LongType()),
        types.StructField("held", types.LongType()),
        types.StructField("due", types.LongType()),
        types.StructField("loss", types.DoubleType()),
        types.StructField("groups", types.BinaryType()),
    ]
)


def make_view(
    records: DataFrame,
    blueprint: Blueprint,
    secret: bytes,
    *,
    shards: int = 1,
    signals: DataFrame | None = None,
    vault: Vault | None = None,
    located: bool = True,
) -> DataFrame:
    """Return the fields of a view's records, and beside them OFFSET, WINDOW, REASON and REPORT.

    records: the fields of the stream, OFFSET, PERSON, TIME and PROBLEM; SUBJECT, where people
        who opt out later are to be found; ORDER, where they are not located.
    signals: what the shards of a stateful view are told while it runs, of schema SIGNALS.
    located: whether OFFSET names a record for good; else it is null.

    A row with a REASON is a record that was rejected, and has no fields. With signals, REPORT is
    null but in one row of each shard that took part in the micro-batch.
    """
    before, after = blueprint.chains(secret, vault)
    if not blueprint.plan.stateful:
        return RowView(records.sparkSession, blueprint, before, located=located).make(records)
    made = _run_step(records, before, blueprint, secret, shards, signals, located=located)
    if after is not None:
        topic = F.lit(blueprint.stream.topic)
        parts = (topic, *(named(it).cast("string") for it in (OFFSET, WINDOW)))
        carried = (OFFSET, WINDOW, REPORT)
        made = _Masks(made.sparkSession, after, F.concat_ws("/", *parts), carried).lay(made)
    return made.select(*map(named, (*blueprint.plan.output, OFFSET, WINDOW, REASON, REPORT)))


def count_shards(
    session: SparkSession,
    blueprint: Blueprint,
    asked: int | None = None,
    *,
    cores: int | None = None,
) -> int:
    """Return the number of shards: what is asked for, what the view says, or the cores.

    `cores`: how many they were when the view began; else those of now.

    A step that cannot be divided has one. Differential privacy has as many as there are partitions,
    which a checkpoint keeps for good: so does the ledger, and figures are the same with any number.
    """
    if asked is not None and asked < 1:
        raise UsageError(f"{asked} is not a number of shards", fix="give 1 or more")
    if not blueprint.divides:
        return 1
    partitions = int(session.conf.get(PARTITIONS) or 1)
    if isinstance(blueprint.plan.stateful[0], DifferentialPrivacy):
        return partitions
    first = blueprint.plan.stateful[0]
    most = first.most_shards if isinstance(first, KAnonymization) else SHARD_LIMIT
    wanted = asked or blueprint.view.shards
    if wanted is not None and wanted > most:
        raise UsageError(
            f"{wanted} shards are too many for the view {quote(blueprint.view.name)}",
            fix=f"give at most {most}, or make delta larger: the shards share it",
        )
    return wanted or min(most, cores or _count_cores(session, partitions))


def _count_cores(session: SparkSession, partitions: int) -> int:
    # A session of Spark Connect does not tell.
    context = getattr(session, "sparkContext", None)
    return partitions if context is None else min(partitions, context.defaultParallelism)


class RowView:
    """What `make_view` does of a view without state, built once for many frames."""

    def __init__(
        self, session: SparkSession, blueprint: Blueprint, chain: Chain, *, located: bool = True
    ) -> None:
        self._masks = _Masks(session, chain, _identify(blueprint, chain, located=located), [OFFSET])
        self._fields = tuple(blueprint.plan.output)

    def make(self, records: DataFrame) -> DataFrame:
        """Return the fields of the view's records, and beside them what `make_view` returns."""
        made = self._masks.lay(records.withColumnRenamed(PROBLEM, REASON))
        window = F.lit(None).cast("bigint").alias(WINDOW)
        report = F.lit(None).cast(_REPORTED).alias(REPORT)
        return made.select(*map(named, (*self._fields, OFFSET)), window, named(REASON), report)


def _identify(blueprint: Blueprint, chain: Chain, *, located: bool) -> Column | None:
    """Return what names a record for good; chance is drawn from it."""
    if located:
        topic = F.lit(f"{blueprint.stream.topic}/")
        return F.concat(topic, named(OFFSET).cast("string"))
    if chain.needs_identity:
        raise UsageError(
            f"masks of the view {quote(blueprint.view.name)} draw chance for each record",
            fix="pass position=, a column that names a record for good",
        )
    return None


class _Masks:
    """Masks over records; those that were rejected before keep their reason, and no fields."""

    def __init__(
        self, session: SparkSession, chain: Chain, identity: Column | None, carry: Sequence[str]
    ) -> None:
        later = f"{REASON}:later"
        carried = (*carry, REASON)
        self._masks = RowMasks(session, chain, identity=identity, carry=carried, rejection=later)
        reason = F.coalesce(named(REASON), named(later))
        if REPORT in carry:
            reason = F.when(named(REPORT).isNull(), reason)
        fields = [F.when(reason.isNull(), named(name)).alias(name) for name in chain.output]
        self._made = [*fields, *map(named, carry), reason.alias(REASON)]

    def lay(self, records: DataFrame) -> DataFrame:
        return self._masks.apply(records).select(*self._made)


def _run_step(
    records: DataFrame,
    before: Chain,
    blueprint: Blueprint,
    secret: bytes,
    shards: int,
    signals: DataFrame | None,
    *,
    located: bool,
) -> DataFrame:
    session = records.sparkSession
    keys = choose_keys(session, shards, int(session.conf.get(PARTITIONS) or shards))
    if SUBJECT not in records.columns:
        records = records.withColumn(SUBJECT, F.lit(None).cast("bigint"))
    carried = carried_by(blueprint, located=located)
    masks = _Masks(session, before, _identify(blueprint, before, located=located), carried)
    masked = masks.lay(records.withColumnRenamed(PROBLEM, REASON))
    rows = masked.select(*map(named, (*blueprint.needs, *carried, REASON)))
    # Persons stay together; records about nobody in particular go anywhere.
    who = PERSON if blueprint.stream.subject else order_of(located=located)
    packed = pack(rows, keys, who, timed=blueprint.is_windowed)
    reports = signals is not None
    step = ShardStep(blueprint, secret, keys, located=located, reports=reports)
    if signals is not None:
        packed = packed.unionByName(pack_signals(signals, keys))
    if records.isStreaming:
        run = run_streaming(packed, step, signalled=reports)
    else:
        run = run_grouped(packed, step)
    schema = _made_by(blueprint, reports=reports)
    made = unpack_combined(run, schema, step.combine) if step.combines else unpack(run, schema)
    return made if reports else made.withColumn(REPORT, F.lit(None).cast(_REPORTED))


def _made_by(blueprint: Blueprint, *, reports: bool) -> types.StructType:
    """Return the columns of what leaves a step, as `shard_step.output_schema` does."""
    gathered = blueprint.plan.gathered.items()
    made = [types.StructField(name, spark_type(it.type)) for name, it in gathered]
    made += [types.StructField(name, types.LongType()) for name in (OFFSET, WINDOW)]
    made.append(types.StructField(REASON, types.StringType()))
    return types.StructType(made + [types.StructField(REPORT, _REPORTED)] * reports)


def named(name: str) -> Column:
    """Return a column by its name, whatever letters that has."""
    return F.col(f"`{name}`")
