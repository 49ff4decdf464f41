"""The records of a view: what `anonymize` returns, and what each query of a view runs on.

    records ─▶ masks ─▶ rejected │ stateful step: pack ─▶ shards ─▶ unpack │ ─▶ masks ─▶ the view
              (columns)          └──────── only where the view has one ────┘

Rules that hold here:
- Row-wise masks are native columns. A stateful step is an operator of Spark: grouped in a
  batch, `transformWithState` in a stream.
- Columns that the step does not need do not go to it.
- A batch ends the stream: whatever a step still holds leaves, or is rejected. A stream goes on:
  what is held waits in Spark's state for records to hide among.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, types
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.definitions.anonymizers.differential_privacy import DifferentialPrivacy
from penstock.definitions.anonymizers.k_anonymity import KAnonymization
from penstock.errors import UsageError, quote
from penstock.masks import Chain, Vault
from penstock.masks.spark import RowMasks, spark_type
from penstock.model.kinds.views import SHARD_LIMIT
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.dataframes.operator import run_grouped, run_streaming
from penstock.pipeline.dataframes.shard_step import REPORT, ShardStep, carried_by, order_of
from penstock.pipeline.dataframes.shards import (
    REASON,
    choose_keys,
    pack,
    pack_signals,
    unpack,
    unpack_combined,
)
from penstock.pipeline.records.columns import OFFSET, PERSON, PROBLEM, SUBJECT, WINDOW

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
        raise UsageError(f"{asked} is no number of shards", fix="give 1 or more")
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
