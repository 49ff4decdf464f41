"""A topic at Kafka as the source of a stream, read by Spark's own connector.

Rules that hold here:
- An offset of ours is Kafka's partition and Kafka's offset in one number: the partition in the
  upper bits. Records that are not committed are not read.
- A topic that was deleted and made again is another source: its offsets begin anew.
- A record arrived when the brokers say so. Where a topic takes the word of producers (its
  `message.timestamp.type` is CreateTime), it arrived then, or now if that is still to come.
- Passwords, secrets and keys go to the connector in options that Spark keeps out of plans and logs.
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
from penstock.config.brokers import KafkaSettings
from penstock.config.secrets import SecretFile
from penstock.errors import UnavailableError, UsageError, quote
from penstock.eventlog.connection import (
    owned_name,
    read_password,
    require_bootstrap,
    require_token_endpoint,
)
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
_SECURITY: Final = "org.apache.kafka.common.security"
_MODULES: Final = {
    "SCRAM-SHA-512": f"{_SECURITY}.scram.ScramLoginModule",
    "SCRAM-SHA-256": f"{_SECURITY}.scram.ScramLoginModule",
    "PLAIN": f"{_SECURITY}.plain.PlainLoginModule",
    "OAUTHBEARER": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule",
}
_TOKEN_HANDLER: Final = f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler"


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

    def read_stream(self, spark: SparkSession, rows: int | None, start: str = "") -> DataFrame:
        """Return the records as a stream; without `rows`, each as it comes."""
        reader = spark.readStream.format("kafka").options(**self._options())
        if start:
            reader = reader.option("startingOffsets", self._begin_at(start))
        if rows is not None:
            tasks = spark.sparkContext.defaultParallelism
            reader = reader.options(maxOffsetsPerTrigger=rows, minPartitions=tasks)
        return _select(reader.load())

    def _begin_at(self, start: str) -> str:
        """Return a place with all partitions; those that came later begin at their beginning."""
        known = json.loads(start).get(self._topic.name, {})
        places = {it: known.get(str(it), _EARLIEST) for it in self._topic.describe().partitions}
        return json.dumps({self._topic.name: places})

    def read(self, spark: SparkSession, start: str = "", end: str = "") -> DataFrame:
        """Return all records that there are now, or those between two places."""
        reader = spark.read.format("kafka").options(**self._options())
        if start:
            reader = reader.option("startingOffsets", self._begin_at(start))
        return _select((reader.option("endingOffsets", end) if end else reader).load())

    def count_partitions(self) -> int:
        """Return how many tasks read the topic side by side."""
        return len(self._topic.describe().partitions)

    def hand_over(self, position: Position, checkpoint: Path) -> str:  # noqa: ARG002
        """Return the place: another query can begin there."""
        return position.offsets

    def check(self, position: Position) -> None:
        """Spark tells itself what Kafka has forgotten: `failOnDataLoss`."""

    def check_whole(self) -> None:
        """Raise if Kafka has forgotten some of the first records."""
        gone = [it for it, (first, _) in self._topic.ends().items() if first > 0]
        if gone:
            raise UnavailableError(
                f"Kafka has forgotten the first records of {quote(self._topic.name)}, "
                f"in {len(gone)} of its partitions",
                fix="feed them again, into another topic",
            )

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

    def _options(self) -> dict[str, str]:
        return {
            **connector_options(self._log),
            "subscribe": self._topic.name,
            "startingOffsets": "earliest",
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
    found = {
        "kafka.bootstrap.servers": require_bootstrap(settings),
        "kafka.security.protocol": settings.security.upper(),
        "kafka.default.api.timeout.ms": limit,
        # Not more than all of it: Kafka's client refuses such settings.
        "kafka.request.timeout.ms": limit,
        "kafkaConsumer.pollTimeoutMs": limit,
    }
    if settings.security != "ssl":
        found |= _login_options(settings)
    if settings.ca is not None:
        found["kafka.ssl.truststore.type"] = "PEM"
        found["kafka.ssl.truststore.location"] = str(settings.ca)
    if settings.certificate is not None and settings.certificate_key is not None:
        found["kafka.ssl.keystore.type"] = "PEM"
        found["kafka.ssl.keystore.certificate.chain"] = settings.certificate.read_text()
        found["kafka.ssl.keystore.key"] = _as_pkcs8(settings.certificate_key)
    return found


def _login_options(settings: KafkaSettings) -> dict[str, str]:
    found: dict[str, str] = {"kafka.sasl.mechanism": settings.mechanism}
    if settings.mechanism == "OAUTHBEARER":
        token = settings.token
        url, secret = require_token_endpoint(token)
        login = {"clientId": token.client, "clientSecret": secret}
        if token.scope is not None:
            login["scope"] = token.scope
        found["kafka.sasl.oauthbearer.token.endpoint.url"] = url
        found["kafka.sasl.login.callback.handler.class"] = _TOKEN_HANDLER
        if token.ca is not None:
            login["ssl.truststore.type"] = "PEM"
            login["ssl.truststore.location"] = str(token.ca)
    else:
        login = {"username": settings.user, "password": read_password(settings)}
    if any('"' in text or "\\" in text for text in login.values()):
        raise UsageError(
            "Kafka's settings for Java have no place for names and secrets with quotes or "
            "backslashes",
            fix="give Penstock's user another password",
        )
    words = " ".join(f'{name}="{text}"' for name, text in login.items())
    found["kafka.sasl.jaas.config"] = f"{_MODULES[settings.mechanism]} required {words};"
    return found


def _as_pkcs8(file: SecretFile) -> str:
    """Return a key as Java reads it."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - where it is used

    try:
        key = serialization.load_pem_private_key(file.read(), None)
    except (ValueError, TypeError):
        raise UnavailableError(
            f"{file} holds no key that can be read", fix="store a PEM key, unencrypted"
        ) from None
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def _arrival() -> Column:
    """Return when a record arrived."""
    told = F.unix_millis("timestamp")
    # Of a stream, Spark takes the moment at which a batch was planned, also after a kill.
    present = F.unix_millis(F.current_timestamp())
    by_broker = F.col("timestampType") == LOG_APPEND_TIME
    return F.when(by_broker, told).otherwise(F.least(told, present))
