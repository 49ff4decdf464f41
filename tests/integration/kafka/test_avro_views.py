"""View topics in Avro: schemas stand in a registry, and change only as it agrees."""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from penstock.components import KafkaCluster
from penstock.config import load
from penstock.eventlog.kafka import KafkaLog
from penstock.eventlog.registry import SchemaRegistry
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from tests.support.commands import run_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs("java", "jars")

STREAM = """\
kind: stream
name: NAME
subject: pid
source: kafka
fields:
  - {name: pid, type: int, category: identifier}
  - {name: born on, type: date, category: quasi-identifier}
  - {name: value, type: double, optional: true}
"""
VIEW = """\
---
kind: view
name: ward
stream: NAME
format: topic
encoding: avro
roles: [nurse]
remove: [pid]
---
{kind: role, name: nurse}
"""


class Subjects:
    """The versions of subjects, checked for backward compatibility as registries do."""

    def __init__(self) -> None:
        self.schemas: list[str] = []
        self.subjects: dict[str, list[str]] = {}

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if found := re.fullmatch(r"/schemas/ids/(\d+)", path):
            number = int(found[1])
            known = number < len(self.schemas)
            return (200, {"schema": self.schemas[number]}) if known else (404, {})
        if found := re.fullmatch(r"/subjects/([^/]+)/versions/latest", path):
            held = self.subjects.get(found[1])
            return (200, {"schema": held[-1]}) if held else (404, {})
        if found := re.fullmatch(r"/compatibility/subjects/([^/]+)/versions/latest\?.*", path):
            held = self.subjects.get(found[1])
            if not held:
                return 404, {}
            trouble = _cannot_read(held[-1], body["schema"])
            return 200, {"is_compatible": not trouble, "messages": [trouble] if trouble else []}
        found = re.fullmatch(r"/subjects/([^/]+)/versions", path)
        assert found is not None
        assert method == "POST"
        held = self.subjects.setdefault(found[1], [])
        if held and _cannot_read(held[-1], body["schema"]):
            return 409, {"message": "incompatible with an earlier schema"}
        if body["schema"] not in held:
            held.append(body["schema"])
        if body["schema"] not in self.schemas:
            self.schemas.append(body["schema"])
        return 200, {"id": self.schemas.index(body["schema"])}


def _cannot_read(old: str, new: str) -> str | None:
    """Try it: what the old schema writes is read by the new one."""
    written, read = (fastavro.parse_schema(json.loads(it)) for it in (old, new))
    example = {field["name"]: None for field in json.loads(old)["fields"]}
    full = dict.fromkeys(example, None)
    for field in json.loads(old)["fields"]:
        kind = next(it for it in field["type"] if it != "null")
        full[field["name"]] = {"int": 1, "double": 1.5, "string": "x"}.get(str(kind))
    for record in (example, full):
        target = io.BytesIO()
        fastavro.schemaless_writer(target, written, record)
        target.seek(0)
        try:
            fastavro.schemaless_reader(target, written, read)
        except Exception as error:  # noqa: BLE001 - whatever stands in the way
            return f"READER_FIELD: {type(error).__name__}"
    return None


@contextmanager
def serving(subjects: Subjects) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply("GET", {})

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            self._reply("POST", json.loads(self.rfile.read(length)))

        def _reply(self, method: str, body: dict[str, Any]) -> None:
            code, answer = subjects.answer(method, self.path, body)
            text = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class House:
    def __init__(self, kafka: KafkaCluster, folder: Path, registry: str) -> None:
        self.folder = folder
        (folder / "penstock.yaml").write_text(
            f"kafka:\n  bootstrap: {kafka.bootstrap}\n  security: sasl_plaintext\n"
            f"  password: {{file: {kafka.admin_password_file}}}\n"
            f"  registry: {{url: '{registry}'}}\n"
        )
        self.config = load(folder / "penstock.yaml")
        self.log = KafkaLog(self.config.kafka)

    def apply(self, text: str, name: str, code: int = 0) -> str:
        (self.folder / "d.yaml").write_text(text.replace("NAME", name))
        done = run_command(self.folder, "apply", "-f", "d.yaml")
        assert done.returncode == code, done.stderr
        return done.stderr

    def run(self, spark: SparkSession) -> None:
        from penstock.pipeline.manager import Manager  # noqa: PLC0415 - loads Spark

        path = self.folder / "penstock-data" / "penstock.db"
        with Database.open(f"sqlite:///{path}") as database:
            store = CheckedDefinitions(Definitions(database))
            Manager(
                spark, self.config.pipeline, lambda: store.current()[1], kafka=self.config.kafka
            ).run_once()


def test_values_name_schemas_that_the_registry_has(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    subjects = Subjects()
    with serving(subjects) as url:
        house = House(kafka, tmp_path, url)
        house.apply(STREAM + VIEW, "avro-out")
        run_command(tmp_path, "views", "start", "ward")
        house.log.make_topic("avro-out")
        rows = [
            {"pid": 1, "born on": "1980-02-03", "value": 1.5},
            {"pid": 2, "born on": "1981-01-01"},
        ]
        house.log.topic("avro-out").append([json.dumps(it).encode() for it in rows])
        house.run(spark)
        registry, published = SchemaRegistry(url), house.log.topic("avro-out-ward")
        found = [registry.decode(it.value) for it in published.read()]
        assert sorted(str(it["born on"]) for it in found) == ["1980-02-03", "1981-01-01"]
        assert {it["value"] for it in found} == {1.5, None}
        assert all(set(it) == {"born on", "value"} for it in found)
        assert list(subjects.subjects) == ["avro-out-ward-value"]

        user = run_command(tmp_path, "user", "add", "nina", "--role", "nurse", "--generate")
        assert user.returncode == 0, user.stderr
        told = run_command(tmp_path, "consume", "ward", "--user", "nina", "--json")
        assert told.returncode == 0, told.stderr
        read = [json.loads(line) for line in told.stdout.splitlines()]
        assert {it["born on"] for it in read} == {"1980-02-03", "1981-01-01"}
        run_command(tmp_path, "user", "delete", "nina")

        # A field more and a field less go: each may be null.
        more = STREAM + "  - {name: note, type: string, optional: true}\n"
        house.apply(more + VIEW.replace("[pid]", "[pid, value]"), "avro-out")
        house.run(spark)
        house.log.topic("avro-out").append([b'{"pid": 3, "born on": "1990-01-01", "note": "new"}'])
        house.run(spark)
        newest = [
            SchemaRegistry(url).decode(it.value) for it in house.log.topic("avro-out-ward").read()
        ]
        assert newest[-1]["note"] == "new"
        # What was published is taken back at Kafka, too, and published again.
        count, (start, end) = len(newest), published.ends()[0]
        done = run_command(tmp_path, "views", "erase", "ward", "--yes")
        # Lines are as wide as the terminal.
        assert "the topic avro-out-ward at Kafka" in " ".join(done.stdout.split()), done.stderr
        assert list(published.read(end - 1)) == []
        assert published.ends()[0][0] > start
        done = run_command(tmp_path, "views", "rebuild", "ward", "--yes")
        assert done.returncode == 0, done.stderr
        house.run(spark)
        (start, end) = published.ends()[0]
        again = [registry.decode(it.value) for it in published.read_partition(0, start, end)]
        assert len(again) == count
        assert again[-1]["note"] == "new"
        # Text that becomes a number does not, and nothing of the change is stored.
        number = more.replace("note, type: string", "note, type: int")
        said = house.apply(number + VIEW.replace("[pid]", "[pid, value]"), "avro-out", code=2)
        assert "cannot follow the newest of its topic: READER_FIELD" in said
        history = run_command(tmp_path, "history", "stream/avro-out", "--json").stdout
        assert history.count('"epoch"') == 2


def test_a_streams_fields_are_those_that_producers_write(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    subjects = Subjects()
    writes = {"type": "record", "name": "Patient", "fields": [
        {"name": "pid", "type": "int"}, {"name": "value", "type": ["null", "double"]},
    ]}  # fmt: skip
    subjects.subjects["avro-in-value"] = [json.dumps(writes)]
    stream = """\
kind: stream
name: NAME
format: avro
source: {kafka: {registry: URL}}
fields:
  - {name: pid, type: TYPE}
  - {name: value, type: double, optional: OPTIONAL}
"""
    with serving(subjects) as url:
        house = House(kafka, tmp_path, url)
        stream = stream.replace("URL", url)
        good = stream.replace("TYPE", "int").replace("OPTIONAL", "true")
        house.apply(good, "avro-in")
        said = house.apply(good.replace("optional: true", "optional: false"), "avro-in", code=2)
        assert "'value' may be null in the topic's newest schema" in said
        said = house.apply(
            stream.replace("TYPE", "string").replace("OPTIONAL", "true"), "avro-in", code=2
        )
        assert "'pid' is int in the topic's newest schema" in said
        said = house.apply(good + "  - {name: more, type: int}\n", "avro-in", code=2)
        assert "has no field 'more'" in said
        house.apply(good + "  - {name: more, type: int, optional: true}\n", "avro-in")
    said = house.apply(good + "  - {name: other, type: int, optional: true}\n", "avro-in", code=3)
    assert "the schema registry did not answer" in said
