"""A topic at Kafka as the source of a stream, read by Spark's own connector.

Rules that hold here:
- A stretch is read from an offset of each partition to another, so that it always reads the
  same; the index on the disk says which. Records that are not committed are not read.
- Spark has no stream of it: whoever runs the views looks for new records by asking the
  brokers where partitions end, and reads what is there as a batch. That costs one question,
  where Spark's stream would read each batch twice to learn which records it has.
- The password goes to the connector in an option that Spark keeps out of plans and logs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.components import JAR_SETS
from penstock.config.sections.kafka import KafkaSettings
from penstock.errors import UnavailableError, UsageError, quote
from penstock.eventlog.connection import require_bootstrap
from penstock.eventlog.kafka import KafkaLog
from penstock.pipeline.log_source import MILLISECONDS, OFFSET, SCHEMA, VALUE
from penstock.pipeline.sources.kafka_index import KafkaIndex, Piece

CONNECTOR: Final = "spark-kafka"
MOST_PIECES: Final = 64
_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"


class KafkaSource:
    """The records of a topic at Kafka."""

    def __init__(self, log: KafkaLog, name: str, index: KafkaIndex, rows: int) -> None:
        self._log = log
        self._topic = log.topic(name)
        self._index = index
        self._rows = rows
        if not any(jars.name == CONNECTOR and jars.version() for jars in JAR_SETS):
            raise UnavailableError(
                "the jars of Spark's connector for Kafka were not found", fix="fetch: make setup"
            )

    def take_in(self) -> int:
        """Ask the brokers what is new, and return the offset that the next record will get."""
        if self._index.topic is None:
            self._log.make_topic(self._topic.name)
        found = self._topic.describe()
        return self._index.take_in(found.identity, self._topic.ends(found.partitions), self._rows)

    def read_on(self, spark: SparkSession, start: int, rows: int) -> None:
        """Return nothing: see the rules."""

    def place(self, batch: DataFrame) -> DataFrame:
        """Return the batch: it has its offsets."""
        return batch

    def check(self, start: int, end: int) -> None:
        """Raise if records of a stretch are not there any more."""
        pieces = self._index.locate(start, end)
        found = self._topic.describe()
        ends = self._topic.ends(found.partitions)
        for piece in pieces:
            if piece.topic != found.identity:
                raise UnavailableError(
                    f"the topic {quote(self._topic.name)} was deleted and made again; with it "
                    f"went records {start} to {end - 1} of the stream, which the view lacks",
                    fix="feed them again, and give the view another name, or move its folder away",
                )
            if piece.partition not in ends or piece.start < ends[piece.partition][0]:
                raise UnavailableError(
                    f"Kafka has forgotten records {start} to {end - 1} of "
                    f"{quote(self._topic.name)}, which the view lacks",
                    fix="keep records longer: retention.ms of the topic",
                )

    def read_stretch(self, spark: SparkSession, start: int, end: int) -> DataFrame:
        """Return the records from `start` to before `end`."""
        pieces = self._index.locate(start, end)
        if not pieces:
            return spark.createDataFrame([], SCHEMA)
        # Each piece is a branch of an expression, which must not grow without bounds.
        starts = range(0, len(pieces), MOST_PIECES)
        frames = [self._read(spark, pieces[start : start + MOST_PIECES]) for start in starts]
        return reduce(DataFrame.unionAll, frames)

    def _read(self, spark: SparkSession, pieces: Sequence[Piece]) -> DataFrame:
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        for piece in pieces:
            starts.setdefault(piece.partition, piece.start)
            ends[piece.partition] = piece.end
        name = self._topic.name
        options = {
            **connector_options(self._log),
            "assign": json.dumps({name: sorted(starts)}),
            "startingOffsets": json.dumps({name: starts}),
            "endingOffsets": json.dumps({name: ends}),
            "minPartitions": str(spark.sparkContext.defaultParallelism),
            "kafka.isolation.level": "read_committed",
            "failOnDataLoss": "true",
        }
        frame = spark.read.format("kafka").options(**options).load()
        return frame.select(
            _running_offset(pieces).alias(OFFSET),
            F.unix_millis("timestamp").alias(MILLISECONDS),
            F.col("value").alias(VALUE),
        )


def connector_options(log: KafkaLog) -> dict[str, str]:
    """Return how Spark's connector logs in; made when it is needed, and kept nowhere."""
    settings: KafkaSettings = log.settings
    limit = str(round(settings.timeout * 1000))
    if '"' in log.password or "\\" in log.password or '"' in log.user:
        raise UsageError(
            "Kafka's settings for Java have no place for a password with quotes or backslashes",
            fix="give the user another password",
        )
    found = {
        "kafka.bootstrap.servers": require_bootstrap(settings),
        "kafka.security.protocol": settings.security.upper(),
        "kafka.sasl.mechanism": settings.mechanism,
        "kafka.sasl.jaas.config": (
            f'{_MODULE} required username="{log.user}" password="{log.password}";'
        ),
        "kafka.default.api.timeout.ms": limit,
        # Not more than all of it: Kafka's client refuses such settings.
        "kafka.request.timeout.ms": limit,
        "kafkaConsumer.pollTimeoutMs": limit,
    }
    if settings.ca is not None:
        found["kafka.ssl.truststore.type"] = "PEM"
        found["kafka.ssl.truststore.location"] = str(settings.ca)
    return found


def _running_offset(pieces: Sequence[Piece]) -> Column:
    """Return the running offset of a record by its partition and its offset there."""
    partition, offset = F.col("partition"), F.col("offset")
    if len(pieces) == 1:
        return offset + F.lit(pieces[0].first - pieces[0].start)
    found = F.lit(None).cast("long")
    for piece in reversed(pieces):
        here = (partition == piece.partition) & (offset >= piece.start) & (offset < piece.end)
        found = F.when(here, offset + F.lit(piece.first - piece.start)).otherwise(found)
    return found
