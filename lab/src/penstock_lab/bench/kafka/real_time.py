"""A value-based view as one query with Spark's real-time trigger, to measure what it could do.

The query reads, parses, masks and writes as long as it runs, without batches in between. It is
no part of the pipeline: see `docs/decisions/kafka-pipeline.md` for what it cannot promise.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses
from pyspark.sql.streaming.query import StreamingQuery

from penstock.definitions import DefinitionSet
from penstock.eventlog.kafka import KafkaLog
from penstock.masks.spark import mask_frame
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.records.columns import MILLISECONDS, OFFSET, PROBLEM, VALUE
from penstock.pipeline.records.parser import parse_records
from penstock.pipeline.sources.kafka import connector_options

_REJECTED = "rejected"


def start_query(
    spark: SparkSession, definitions: DefinitionSet, log: KafkaLog, checkpoint: Path, seconds: int
) -> StreamingQuery:
    """Start the view `v`; records that are none go to a topic of dead letters."""
    blueprint = Blueprint.find(definitions, "v")
    stream, topic = blueprint.stream, blueprint.view.topic
    chain, _ = blueprint.chains(bytes(32), None)
    options = connector_options(log)
    raw = (
        spark.readStream.format("kafka")
        .options(**options)
        .option("assign", json.dumps({stream.topic: [0]}))
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    placed = raw.select(
        F.col("offset").alias(OFFSET),
        F.unix_millis("timestamp").alias(MILLISECONDS),
        F.col("value").alias(VALUE),
    )
    masked = mask_frame(
        parse_records(placed, stream),
        chain,
        identity=F.concat(F.lit(f"{stream.topic}/"), _named(OFFSET).cast("string")),
        carry=[OFFSET, PROBLEM],
        rejection=_REJECTED,
    )
    reason = F.coalesce(_named(PROBLEM), _named(_REJECTED))
    record = F.to_json(F.struct(*map(_named, chain.output)), {"ignoreNullFields": "false"})
    letter = F.to_json(F.struct(_named(OFFSET).alias("offset"), reason.alias("reason")))
    sent = masked.select(
        F.when(reason.isNull(), record).otherwise(letter).alias("value"),
        F.when(reason.isNull(), F.lit(topic)).otherwise(F.lit(f"{topic}-dead")).alias("topic"),
    )
    writer = (
        sent.writeStream.format("kafka")
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .outputMode("update")
    )
    trigger: dict[str, Any] = {"realTime": f"{seconds} seconds"}  # not in pyspark's annotations
    return writer.trigger(**trigger).start()


def _named(name: str) -> Column:
    return F.col(f"`{name}`")
