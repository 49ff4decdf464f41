"""Streams with `erasure` at Kafka: sealed by the gateway, read by views, and erased."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.components import KafkaCluster, MosquittoServer
from penstock.eventlog import Record
from penstock.eventlog.kafka import KafkaLog
from penstock.gateway.recording.log_writer import EventLogs
from penstock.gateway.recording.topic_mapping import TopicMapping
from penstock.model.document import Document
from penstock.model.kinds import Stream
from penstock.rights.dispatch.message import Outcome
from penstock.store.database import Database
from tests.support.rights.erasing import STREAM, Installation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs("java", "jars", "mosquitto")
ANN, BOB = "ann-4711", "bob-4712"


class Place(Installation):
    """An installation with one stream at Kafka, whose records are written as a gateway does."""

    def __init__(
        self, folder: Path, database: Database, kafka: KafkaCluster, broker: int, erasure: str
    ) -> None:
        self.stream = f"vitals-{uuid.uuid4().hex[:8]}"
        body = STREAM | {"source": "kafka", "erasure": erasure, "from": ["home/+pid/vitals"]}
        views = [
            Document("view", name, {"stream": self.stream, "format": "json"})
            for name in ("first", "second")
        ]
        super().__init__(
            folder, database, Document("stream", self.stream, body), *views,
            broker={"mode": "external", "port": broker},
            store={"url": f"sqlite:///{folder / 'penstock.db'}"},
            kafka={
                "bootstrap": kafka.bootstrap, "security": "sasl_plaintext",
                "password": {"file": str(kafka.admin_password_file)}, "timeout": "10s",
            },
        )  # fmt: skip
        self.topic = KafkaLog(self.config.kafka).topic(self.stream)

    def write(self, *people: str) -> None:
        mapping = TopicMapping(self.definitions.of(Stream)[self.stream], 0, "home/+pid/vitals")
        made = [
            mapping.record(f"home/{who}/vitals", b'{"ward":"north","pulse":7}') for who in people
        ]
        topic = EventLogs(self.config).topic(mapping.target)
        topic.append([value for _, value in made], [key for key, _ in made])

    def read(self) -> list[Record]:
        ends = self.topic.ends().items()
        return [it for at, (start, end) in ends for it in self.topic.read_partition(at, start, end)]

    def run_view(self, spark: SparkSession, name: str) -> tuple[list[str], int]:
        """Run a view to the end; return the people in it, and how many records were rejected."""
        from penstock.pipeline.manager import Manager  # noqa: PLC0415
        from penstock.pipeline.records.parser import use_keys  # noqa: PLC0415 - with Spark

        use_keys(self.config)
        manager = Manager(
            spark, self.config.pipeline, lambda: self.definitions, kafka=self.config.kafka
        )
        manager.control.change(name, "start")
        manager.run_once()
        manager.control.change(name, "stop")
        folder = manager.control.view(name)
        last = folder.last()
        assert last is not None
        lines = [line for it in folder.data.iterdir() for line in it.read_text().splitlines()]
        return sorted(json.loads(line)["pid"] for line in lines), last.totals.rejected


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path / 'penstock.db'}") as opened:
        yield opened


def test_a_shredded_stream_is_sealed_read_and_erased(
    kafka: KafkaCluster, spark: SparkSession, database: Database, tmp_path: Path,
    mosquitto: MosquittoServer,
) -> None:  # fmt: skip
    place = Place(tmp_path, database, kafka, mosquitto.port, "shred")
    place.config.consent.key.read_or_create(lambda: bytes(range(32)))
    place.write(ANN, BOB, ANN)
    found = b"".join(it.key + it.value for it in place.read())
    assert ANN.encode() not in found
    assert b"north" not in found
    assert len({it.key for it in place.read()}) == 2
    assert place.run_view(spark, "first") == ([ANN, ANN, BOB], 0)
    assert place.erase(ANN).outcome is Outcome.DONE
    counts = {it["place"]: it for it in place.evidence(ANN).content["erased"]}
    assert counts["key of the person"]["keys"] == 1
    assert counts["view first"]["rows"] == 2
    # What comes later is new data; what came before is erased for whoever begins anew.
    place.write(BOB, ANN)
    assert place.run_view(spark, "second") == ([ANN, BOB, BOB], 2)
    assert place.run_view(spark, "first") == ([ANN, BOB, BOB], 0)


def test_what_is_not_sealed_is_buried_or_listed_with_its_day(
    kafka: KafkaCluster, database: Database, tmp_path: Path, mosquitto: MosquittoServer
) -> None:
    for erasure, config in (
        ("tombstone", {"cleanup.policy": "compact"}),
        ("tombstone", {"cleanup.policy": "delete", "retention.ms": "86400000"}),
        ("none", {"retention.ms": "86400000"}),
    ):
        place = Place(tmp_path, database, kafka, mosquitto.port, erasure)
        log = KafkaLog(place.config.kafka)
        log.make_topic(place.stream, 3, config)
        place.write(ANN, BOB)
        assert place.erase(ANN, key=place.stream).outcome is Outcome.DONE
        content = place.evidence(ANN, place.stream).content
        name = f"topic {place.stream} at Kafka"
        (remains,) = [it for it in content["remains"] if it["place"] == name]
        buried = [it for it in place.read() if it.key == ANN.encode() and not it.value]
        if config["cleanup.policy" if erasure == "tombstone" else "retention.ms"] == "compact":
            # One for each partition: producers choose partitions by rules of their own.
            assert len(buried) == 3
            assert "compact" in remains["reason"]
        else:
            assert not buried
            today = datetime.now(UTC).date()
            assert timedelta(days=1) <= date.fromisoformat(remains["until"]) - today <= timedelta(3)
