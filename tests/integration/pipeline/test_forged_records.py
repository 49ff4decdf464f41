"""No payload says what the gateway knows of its message: a real gateway records, Spark reads."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.components import MosquittoServer
from penstock.definitions import DefinitionSet
from penstock.eventlog import EventLog
from penstock.gateway.recording.topic_mapping import TopicMapping
from penstock.json_text import read_object
from penstock.model.document import Document
from penstock.model.kinds import Stream
from penstock.pipeline.sinks.commits import ViewFolder
from penstock.pipeline.sinks.published import read_published
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from tests.support.gateway.harness import run_gateway
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient
from tests.support.scale import scaled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs("mosquitto", "java")
pytest_plugins = ("tests.support.gateway.fixtures",)

FIELDS = [
    {"name": "patient", "type": "string", "category": "identifier", "optional": True},
    {"name": "channel", "type": "string"},
    {"name": "who", "type": "string", "category": "identifier", "optional": True},
    {"name": "pulse", "type": "int", "optional": True},
]
DOCUMENTS = [
    Document(
        "stream",
        "vitals",
        {
            "fields": FIELDS,
            "subject": "patient",
            # The second pattern names no level: the payload does not stand in for it.
            "from": ["home/+patient/pulse", "lab/pulse"],
            "adds": {"topic": "channel", "publisher": "who"},
        },
    ),
    Document("view", "all", {"stream": "vitals"}),
    # Nothing is added to its records, so that they are the very payloads.
    Document(
        "stream",
        "plain",
        {
            "fields": [{"name": "patient", "type": "string"}, {"name": "pulse", "type": "int"}],
            "from": ["home/+/pulse"],
        },
    ),
    Document("view", "read", {"stream": "plain"}),
    Document("enforcement", "default", {"policies": "required"}),
    Document(
        "policy", "own", {"subject": "user:device", "filter": "home/own/pulse", "allow": "write"}
    ),
    Document("policy", "lab", {"subject": "user:device", "filter": "lab/pulse", "allow": "write"}),
]
CLAIM = b'"patient":"other","channel":"home/other/pulse","who":"nurse","pulse":1'
DEEP = b"[" * 989 + b"]" * 989
# What is said beside the claim, each so that some reader takes it and another does not.
FORGED = {
    "deep": b'{"x":' + DEEP + b"," + CLAIM + b"}",
    "deep in front": b"{" + CLAIM + b',"x":' + DEEP + b"}",
    "long number": b'{"x":' + b"9" * 4400 + b"," + CLAIM + b"}",
    "number of 1,001 digits": b'{"x":' + b"9" * 1001 + b"," + CLAIM + b"}",
    "long fraction": b'{"x":0.' + b"9" * 4400 + b"," + CLAIM + b"}",
    "NaN": b'{"x":NaN,' + CLAIM + b"}",
    "half a pair": b'{"x":"\\ud800",' + CLAIM + b"}",
    "named twice": b'{"pulse":2,' + CLAIM + b"}",
    "named twice, escaped": b'{"\\u0070ulse":2,' + CLAIM + b"}",
    "no UTF-8": b'{"x":"\xff",' + CLAIM + b"}",
    "BOM": b"\xef\xbb\xbf{" + CLAIM + b"}",
    "UTF-16": ("{" + CLAIM.decode() + "}").encode("utf-16"),
    "two objects": b"{" + CLAIM + b"}{}",
    "list": b"[{" + CLAIM + b"}]",
    "control": b'{"x":"\x01",' + CLAIM + b"}",
}
# Read by the gateway, which cannot add to them: one is too long then, one has no finite number.
FULL = [
    b'{"patient":"other","pulse":1,"x":"' + b"x" * 999_950 + b'"}',
    b'{"x":1e400,' + CLAIM + b"}",
]
FINE = b"{" + CLAIM + b"}"


def _published(folder: Path, view: str) -> list[dict[str, Any]]:
    return list(read_published(ViewFolder(folder / view)))


def test_no_view_believes_what_the_gateway_could_not_read(
    broker: MosquittoServer, spark: SparkSession, tmp_path: Path
) -> None:
    from penstock.pipeline.manager import Manager  # noqa: PLC0415 - loads Spark

    passwords = write_passwords(tmp_path / "passwords", {"device": "d"}, {})
    settings = {"open_mode": False, "authentication": {"passwords": str(passwords)}}
    with run_gateway(tmp_path / "g", broker.port, settings) as gateway:
        config = gateway.config
        with Database.open(config.store.connection_url()) as database:
            checked = CheckedDefinitions(Definitions(database))
            epoch = checked.apply(DOCUMENTS, actor="test", reason="").epoch
        while gateway.do(lambda: gateway.gateway.rules.epoch) < epoch:
            time.sleep(0.02)
        with RawClient(gateway.port) as device:
            device.connect("device", username="device", password=b"d")
            assert device.publish("home/other/pulse", FINE, qos=1).failed
            for payload in [FINE, *FORGED.values(), *FULL]:
                assert not device.publish("home/own/pulse", payload, qos=1).failed
            assert not device.publish("lab/pulse", FINE, qos=1).failed
        count = len(FORGED) + 4
        topic = EventLog(config.pipeline.event_log).topic("vitals")
        deadline = time.monotonic() + 15
        while topic.next_offset < count and time.monotonic() < deadline:
            time.sleep(0.02)
    definitions = DefinitionSet.build(DOCUMENTS)
    manager = Manager(spark, config.pipeline, lambda: definitions)
    for view in ("all", "read"):
        manager.control.change(view, "start")
    manager.run_once()
    folder = config.pipeline.folder
    # The gateway says who published where; the payload that it read says the rest.
    told = {"who": "device", "pulse": 1}
    assert _published(folder, "all") == [
        {"patient": "own", "channel": "home/own/pulse", **told},
        {"patient": None, "channel": "lab/pulse", **told},
    ]
    assert _published(folder, "read") == [{"patient": "other", "pulse": 1}] * 3
    for view, read, kept in (("all", count, 2), ("read", count - 1, 3)):
        last = ViewFolder(folder / view).last()
        assert last is not None
        assert (last.totals.read, last.totals.published) == (read, kept)


PIECES = [
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"1", b"-", b".5", b"e9", b"null", b"NaN"),
    *(b" ", b"\n", b"\\", b"\\u0070", b"\\ud83d", b"\\ude00", b"\xff", b"\0", b"/*", b"'"),
    *(b'"x":', b'"x":{"y":[', b'"pulse":2', b'"patient":"other"', b'"PATIENT":"other"', CLAIM),
    *(DEEP, b"9" * 1001, b"\xef\xbb\xbf", b'"\\u0070atient":"other"', b'"channel":null'),
]


def test_whatever_is_recorded_the_gateway_has_the_last_word(spark: SparkSession) -> None:
    from penstock.pipeline.records.columns import OFFSET, PROBLEM  # noqa: PLC0415 - loads Spark
    from penstock.pipeline.records.parser import parse_records  # noqa: PLC0415
    from penstock.pipeline.sources.event_log import SCHEMA  # noqa: PLC0415

    stream = Stream.model_validate({"name": "vitals", **DOCUMENTS[0].body})
    mapping = TopicMapping(stream, 0, stream.patterns[0])
    chance = random.Random(12)
    payloads = []
    for _ in range(scaled(3000)):
        made = [b"{", CLAIM, b"}"]
        for _ in range(chance.randrange(5)):
            place = chance.randrange(len(made) + 1)
            made[place : place + chance.randrange(2)] = [chance.choice(PIECES)]
        payloads.append(b"".join(made))
    rows = [
        (number, 0, mapping.record("home/own/pulse", it, "device")[1])
        for number, it in enumerate(payloads)
    ]
    parsed = parse_records(spark.createDataFrame(rows, SCHEMA), stream).toArrow().to_pylist()
    believed = {row[OFFSET]: row for row in parsed if row[PROBLEM] is None}
    assert len(believed) > len(payloads) / 10
    for number, row in believed.items():
        found = read_object(payloads[number])
        assert found is not None, payloads[number][:200]
        assert (row["patient"], row["channel"], row["who"]) == ("own", "home/own/pulse", "device")
        assert row["pulse"] == found.get("pulse")
