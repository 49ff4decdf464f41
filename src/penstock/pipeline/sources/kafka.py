"""A topic at Kafka as the source of a stream, read by Spark's own connector.

Rules that hold here:
- An offset of ours is Kafka's partition and Kafka's offset in one number: the partition in the
  upper bits. Records that are not committed are not read.
- A topic that was deleted and made again is another source: its offsets begin anew.
- A record arrived when the brokers say so. Where a topic takes the word of producers (its
  `message.timestamp.type` is CreateTime), it arrived then, or now if that is still to come.
- The password goes to the connector in an option that Spark keeps out of plans and logs.
- Spark names consumer groups, which nobody joins; the names begin with the user's, as the ACLs
  of a user's own groups want it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.components import JAR_SETS
from penstock.config.sections.brokers import KafkaSettings
from penstock.errors import UnavailableError, UsageError
from penstock.eventlog.connection import owned_name, require_bootstrap
from penstock.eventlog.kafka import KafkaLog
from penstock.pipeline.records.columns import MILLISECONDS, OFFSET, VALUE
from penstock.pipeline.sources.event_log import Position

CONNECTOR: Final = "spark-kafka"
PARTITION_SHIFT: Final = 48
"""A number of ours is the partition, so many bits up, and the offset there."""
# What Spark's connector calls a time that the brokers set.
LOG_APPEND_TIME: Final = 1
# What Spark's connector calls the beginning of a partition.
_EARLIEST: Final = -2
_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"


class KafkaSource:
    """The records of a topic at Kafka."""

    def __init__(self, log: KafkaLog, name: str) -> None:
        self._log = log
        self._topic = log.topic(name)
        if not any(jars.name == CONNECTOR and jars.version() for jars in JAR_SETS):
            raise UnavailableError(
                "the jars of Spark's connector for Kafka were not found", fix="fetch: make setup"
            )

    def begin(self) -> None:
        """Make the topic, if it is not there yet."""
        self._log.make_topic(self._topic.name)

    def identify(self) -> str:
        """Return what names the topic for good."""
        return f"kafka:{self._topic.name}:{self._topic.describe().identity}"

    def read_stream(self, spark: SparkSession, rows: int, start: str = "") -> DataFrame:
        """Return the records as a stream."""
        reader = spark.readStream.format("kafka").options(**self._options(spark))
        if start:
            reader = reader.option("startingOffsets", self._begin_at(start))
        return _select(reader.option("maxOffsetsPerTrigger", rows).load())

    def _begin_at(self, start: str) -> str:
        """Return a place with all partitions; those that came later begin at their beginning."""
        known = json.loads(start).get(self._topic.name, {})
        places = {it: known.get(str(it), _EARLIEST) for it in self._topic.describe().partitions}
        return json.dumps({self._topic.name: places})

    def read(self, spark: SparkSession) -> DataFrame:
        """Return all records that there are now."""
        return _select(spark.read.format("kafka").options(**self._options(spark)).load())

    def hand_over(self, position: Position, checkpoint: Path) -> str:  # noqa: ARG002
        """Return the place: another query can begin there."""
        return position.offsets

    def check(self, position: Position) -> None:
        """Spark tells itself what Kafka has forgotten: `failOnDataLoss`."""

    def count_behind(self, position: Position) -> int:
        """Return how many records there are behind a place, as the brokers say."""
        told = json.loads(position.offsets) if position.offsets else {}
        reached = told.get(self._topic.name, {})
        ends = self._topic.ends().items()
        return sum(max(0, end - int(reached.get(str(it), first))) for it, (first, end) in ends)

    def locate(self, offset: int) -> dict[str, Any]:
        """Return where a record stands: partition, and offset there."""
        partition, place = divmod(offset, 1 << PARTITION_SHIFT)
        return {"partition": partition, "offset": place}

    def _options(self, spark: SparkSession) -> dict[str, str]:
        return {
            **connector_options(self._log),
            "subscribe": self._topic.name,
            "startingOffsets": "earliest",
            "minPartitions": str(spark.sparkContext.defaultParallelism),
            "kafka.isolation.level": "read_committed",
            "kafka.allow.auto.create.topics": "false",
            "failOnDataLoss": "true",
            "groupIdPrefix": owned_name(self._log.user, "views"),
        }


def _select(frame: DataFrame) -> DataFrame:
    place = F.shiftleft(F.col("partition").cast("bigint"), PARTITION_SHIFT) + F.col("offset")
    return frame.select(
        place.alias(OFFSET), _arrival().alias(MILLISECONDS), F.col("value").alias(VALUE)
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


def _arrival() -> Column:
    """Return when a record arrived."""
    told = F.unix_millis("timestamp")
    # Of a stream, Spark takes the moment at which a batch was planned, also after a kill.
    present = F.unix_millis(F.current_timestamp())
    by_broker = F.col("timestampType") == LOG_APPEND_TIME
    return F.when(by_broker, told).otherwise(F.least(told, present))
