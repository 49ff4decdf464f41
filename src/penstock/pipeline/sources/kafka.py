"""A topic at Kafka as the source of a stream, read by Spark's own connector.

Rules that hold here:
- A stretch is read from an offset of each partition to another, so that it always reads the
  same; the index on the disk says which. Records that are not committed are not read.
- Spark has no stream of it: whoever runs the views looks for new records by asking the
  brokers where partitions end, and reads what is there as a batch. That costs one question,
  where Spark's stream would read each batch twice to learn which records it has.
- A record arrived when the brokers say so. Where a topic takes the word of producers (its
  `message.timestamp.type` is CreateTime), it arrived then, or now if that is still to come.
- Passwords, secrets and keys go to the connector in options that Spark keeps out of plans and logs.
- Tasks keep their connections from batch to batch: to log in costs more than to read a small
  batch. Spark knows them by the name of a consumer group, which nobody joins. It is another
  one for other settings, and for a topic that was made again, of which nothing may be kept.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.components import JAR_SETS
from penstock.config.secrets import SecretFile
from penstock.config.sections.brokers import KafkaSettings
from penstock.errors import UnavailableError, UsageError, quote
from penstock.eventlog.connection import (
    owned_name,
    read_password,
    require_bootstrap,
    require_token_endpoint,
)
from penstock.eventlog.kafka import KafkaLog, TopicDescription
from penstock.pipeline.records.columns import MILLISECONDS, OFFSET, VALUE
from penstock.pipeline.sources.event_log import SCHEMA
from penstock.pipeline.sources.kafka_index import KafkaIndex, Piece

CONNECTOR: Final = "spark-kafka"
MOST_PIECES: Final = 64
# What the brokers said so long ago still holds: Spark's connector notices what goes meanwhile.
FRESH_SECONDS: Final = 1.0
# What Spark's connector calls a time that the brokers set.
LOG_APPEND_TIME: Final = 1
# Not kept: what is made with it tells settings apart, and tells nothing about them.
_SALT: Final = secrets.token_bytes(32)
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

    def __init__(self, log: KafkaLog, name: str, index: KafkaIndex, rows: int) -> None:
        self._log = log
        self._topic = log.topic(name)
        self._index = index
        self._rows = rows
        self._seen: tuple[float, TopicDescription, Mapping[int, tuple[int, int]]] | None = None
        if not any(jars.name == CONNECTOR and jars.version() for jars in JAR_SETS):
            raise UnavailableError(
                "the jars of Spark's connector for Kafka were not found", fix="fetch: make setup"
            )

    def take_in(self) -> int:
        """Ask the brokers what is new, and return the offset that the next record will get."""
        if self._index.topic is None:
            self._log.make_topic(self._topic.name)
        found, ends = self._look()
        return self._index.take_in(found.identity, ends, self._rows)

    def _look(self) -> tuple[TopicDescription, Mapping[int, tuple[int, int]]]:
        """Ask the brokers what there is."""
        self._seen, began = None, time.monotonic()
        found = self._topic.describe()
        ends = self._topic.ends(found.partitions)
        self._seen = began, found, ends
        return found, ends

    def read_on(self, spark: SparkSession, start: int, rows: int) -> None:
        """Return nothing: see the rules."""

    def place(self, batch: DataFrame) -> DataFrame:
        """Return the batch: it has its offsets."""
        return batch

    def check(self, start: int, end: int) -> None:
        """Raise if records of a stretch are not there any more."""
        pieces = self._index.locate(start, end)
        if self._seen is not None and time.monotonic() - self._seen[0] < FRESH_SECONDS:
            _, found, ends = self._seen
        else:
            found, ends = self._look()
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
            "kafka.group.id": self._group(pieces[0].topic),
        }
        frame = spark.read.format("kafka").options(**options).load()
        return frame.select(
            _running_offset(pieces).alias(OFFSET),
            _arrival(starts, time.time_ns() // 1_000_000).alias(MILLISECONDS),
            F.col("value").alias(VALUE),
        )

    def _group(self, topic: str) -> str:
        """Return the name under which connections are kept; see the rules."""
        settings = json.dumps([topic, connector_options(self._log)]).encode()
        digest = hmac.new(_SALT, settings, hashlib.sha256).hexdigest()[:16]
        return owned_name(self._log.user, f"views-{digest}")


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


def _running_offset(pieces: Sequence[Piece]) -> Column:
    """Return the running offset of a record by its partition and its offset there.

    Offsets stand in maps, not in the expression: Spark compiles an expression again whenever
    a number in it is another one, which takes longer than a small batch.
    """
    by_partition: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_partition.setdefault(piece.partition, []).append(piece)
    most = max(map(len, by_partition.values()))
    # Filled up with the last one, so that all have as many.
    filled = {it: [*own, *own[-1:] * (most - len(own))] for it, own in by_partition.items()}
    partition, offset = F.col("partition"), F.col("offset")
    shifts = _lookup({it: [each.first - each.start for each in own] for it, own in filled.items()})
    ends = _lookup({it: [each.end for each in own] for it, own in filled.items()})
    shift = F.get(F.try_element_at(shifts, partition), F.lit(most - 1))
    for number in reversed(range(most - 1)):
        before = offset < F.get(F.try_element_at(ends, partition), F.lit(number))
        earlier = F.get(F.try_element_at(shifts, partition), F.lit(number))
        shift = F.when(before, earlier).otherwise(shift)
    return offset + shift


def _arrival(partitions: Iterable[int], now: int) -> Column:
    """Return when a record arrived; the present stands in a map, as offsets do."""
    told, partition = F.unix_millis("timestamp"), F.col("partition")
    clocks = _lookup({it: [now] for it in partitions})
    present = F.get(F.try_element_at(clocks, partition), F.lit(0))
    by_broker = F.col("timestampType") == LOG_APPEND_TIME
    return F.when(by_broker, told).otherwise(F.least(told, present))


def _lookup(numbers: Mapping[int, Sequence[int]]) -> Column:
    parts = []
    for partition, values in numbers.items():
        parts += [F.lit(partition), F.array(*(F.lit(it).cast("long") for it in values))]
    return F.create_map(*parts)
