"""Views of streams at Kafka: each format, several partitions, and no password in sight."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from penstock.components import KafkaCluster
from penstock.config import defaults
from penstock.definitions import DefinitionSet
from penstock.eventlog.kafka import KafkaLog
from penstock.eventlog.transactions import TransactionalWriter
from penstock.model.document import Document
from penstock.model.kinds import Stream, View
from penstock.pipeline.sinks.published import read_published
from tests.support.kafka.clusters import settings_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.config.brokers import KafkaSettings
    from penstock.pipeline.manager import Manager

pytestmark = pytest.mark.needs("java", "jars")

FIELDS = [
    {"name": "pid", "type": "int", "category": "identifier"},
    {"name": "name", "type": "string", "category": "identifier"},
    {"name": "value", "type": "double", "optional": True},
]
HOUR, YEAR = 3_600_000, 366 * 86_400_000
FAR_AHEAD = "the record tells a time more than 1d after its arrival"
# A topic of an old cluster, which takes whatever time a producer tells.
CREATE_TIME = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.after.max.ms": str(2**63 - 1),
}
MASKS = [{"anonymizer": "suppression", "keys": ["name"]}]


def define(stream: str, **more: Any) -> DefinitionSet:
    body = {"fields": FIELDS, "subject": "pid", "source": "kafka", **more}
    view = {"stream": stream, "format": "topic", "anonymizers": MASKS}
    documents = [Document("stream", stream, body), Document("view", f"{stream}.v", view)]
    return DefinitionSet.build(documents)


def manage(
    spark: SparkSession, folder: Path, kafka: KafkaSettings, definitions: DefinitionSet
) -> Manager:
    from penstock.pipeline.manager import Manager  # noqa: PLC0415 - loads Spark

    settings = defaults(folder, {}).pipeline.model_copy(update={"batch": 40})
    manager = Manager(spark, settings, lambda: definitions, kafka=kafka)
    for name in definitions.of(View):
        manager.control.change(name, "start")
    return manager


def read(log: KafkaLog, topic: str) -> list[dict[str, Any]]:
    found = []
    for partition, (start, end) in log.topic(topic).ends().items():
        found += [
            json.loads(it.value) for it in log.topic(topic).read_partition(partition, start, end)
        ]
    return sorted(found, key=lambda record: record["pid"])


def expected(numbers: range) -> list[dict[str, Any]]:
    return [{"pid": n, "name": "*", "value": n / 2} for n in numbers]


def record(number: int) -> dict[str, Any]:
    return {"pid": number, "name": f"person {number}", "value": number / 2}


def test_json_of_several_partitions_arrives_once(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    settings = settings_of(kafka, partitions=3)
    log = KafkaLog(settings)
    definitions = define("several")
    manage(spark, tmp_path, settings, definitions).run_once()
    topic = log.topic("several")
    values = [json.dumps(record(n)).encode() for n in range(200)]
    topic.append(values[:90], [b"%d" % n for n in range(90)])
    topic.append([b"no record", b'{"pid": "x"}'])
    # Marks of transactions take offsets, and are no records.
    writer = TransactionalWriter(log, "feeder")
    writer.write("several", values[90:100], b"1")
    writer.write("several", values[100:110], b"2")
    manager = manage(spark, tmp_path, settings, definitions)
    manager.run_once()
    assert read(log, "several-several.v") == expected(range(110))
    topic.append(values[110:], [b"%d" % n for n in range(90)])
    manager = manage(spark, tmp_path, settings, definitions)
    manager.run_once()
    assert read(log, "several-several.v") == expected(range(200))
    totals = manager.control.view("several.v").last().totals  # type: ignore[union-attr]
    assert (totals.read, totals.published, totals.rejected) == (202, 200, 2)


def test_avro_and_envelopes_arrive(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    from penstock.definitions.views import schema_of  # noqa: PLC0415
    from penstock.masks.fields import avro_schema  # noqa: PLC0415

    settings = settings_of(kafka)
    log = KafkaLog(settings)
    with registry({7: {"type": "record", "name": "R", "fields": [
        {"name": "value", "type": ["null", "double"]},
        {"name": "more", "type": "string"},
        {"name": "name", "type": "string"},
        {"name": "pid", "type": "int"},
    ]}}) as url:  # fmt: skip
        forms: dict[str, dict[str, Any]] = {
            "plain-avro": {"format": "avro"},
            "numbered-avro": {"format": "avro", "source": {"kafka": {"registry": url}}},
            "envelopes": {"format": "connect"},
        }
        for name, more in forms.items():
            definitions = define(name, **more)
            log.make_topic(name)
            schema = fastavro.parse_schema(avro_schema(schema_of(definitions.of(Stream)[name])))
            for n in range(5):
                if name == "envelopes":
                    value = json.dumps({"schema": {}, "payload": record(n)}).encode()
                elif name == "plain-avro":
                    value = encode(schema, record(n))
                else:
                    written = fastavro.parse_schema(SCHEMAS[7])
                    value = b"\0\0\0\0\7" + encode(written, {**record(n), "more": "x"})
                log.topic(name).append([value])
            if name == "numbered-avro":
                log.topic(name).append([b"\0\0\0\0\x09" + value[5:], b"{}"])
            manager = manage(spark, tmp_path / name, settings, definitions)
            manager.run_once()
            assert read(log, f"{name}-{name}.v") == expected(range(5)), name
            letters = list(manager.control.view(f"{name}.v").dead_letters())
            assert len(letters) == (2 if name == "numbered-avro" else 0)


@pytest.mark.parametrize("config", [None, CREATE_TIME], ids=["LogAppendTime", "CreateTime"])
def test_no_producer_forges_the_time_of_arrival(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, config: dict[str, str] | None
) -> None:
    settings = settings_of(kafka)
    log = KafkaLog(settings)
    stream = "own-times" if config is None else "told-times"
    log.make_topic(stream, config=config)
    topic, now = log.topic(stream), time.time_ns() // 1_000_000
    hour = now // HOUR * HOUR - 3 * HOUR

    def send(pid: int, at: int, value: float) -> None:
        body = json.dumps({"pid": pid, "name": "x", "value": value, "at": at}).encode()
        # What a producer tells as the time of the record goes with what the record tells.
        topic.append([body], milliseconds=at)

    mean = {"anonymizer": "aggregation", "keys": ["value"], "aggregation_mode": "average"}
    body = {"fields": [*FIELDS, {"name": "at", "type": "long"}], "subject": "pid"}
    view = {"stream": stream, "anonymizers": [*MASKS, mean], "window": {"size": "1h"}}
    made = [
        Document("stream", stream, {**body, "source": "kafka", "time": "at"}),
        Document("view", f"{stream}.mean", view),
    ]
    send(1, hour, 2.0)
    send(2, now + YEAR, 900.0)
    send(3, hour + 1, 4.0)
    send(4, hour + HOUR, 9.0)
    manager = manage(spark, tmp_path, settings, DefinitionSet.build(made))
    manager.run_once()
    folder = manager.control.view(f"{stream}.mean")
    assert {row["value"] for row in read_published(folder)} == {3.0}
    (letter,) = folder.dead_letters()
    assert letter == {"partition": 0, "offset": 1, "reason": FAR_AHEAD}
    # Where nothing else tells when records happened, no claim ends a window that is not over.
    untimed = [Document("stream", stream, {**body, "source": "kafka"}), made[1]]
    manager = manage(spark, tmp_path / "untimed", settings, DefinitionSet.build(untimed))
    manager.run_once()
    folder = manager.control.view(f"{stream}.mean")
    last = folder.last()
    assert last is not None
    assert last.due is not None
    assert last.due < now + 2 * HOUR
    assert list(folder.dead_letters()) == []


def test_no_password_shows_in_plans(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from penstock.pipeline.sources.kafka import KafkaSource  # noqa: PLC0415

    log = KafkaLog(settings_of(kafka))
    source = KafkaSource(log, "plans")
    source.begin()
    log.topic("plans").append([b"1"])
    frame = source.read(spark)
    frame.explain(extended=True)
    frame.explain("formatted")
    assert [row[2] for row in frame.collect()] == [b"1"]
    out, errors = capfd.readouterr()
    assert "kafka" in out.lower()
    assert kafka.passwords.admin not in out + errors


SCHEMAS: dict[int, Any] = {}


@contextmanager
def registry(schemas: dict[int, Any]) -> Iterator[str]:
    """Answer the one question that readers ask a schema registry."""
    SCHEMAS.update(schemas)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = int(self.path.removeprefix("/schemas/ids/"))
            body = json.dumps({"schema": json.dumps(schemas.get(number))}).encode()
            self.send_response(200 if number in schemas else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def encode(schema: Any, value: dict[str, Any]) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, schema, value)
    return target.getvalue()
