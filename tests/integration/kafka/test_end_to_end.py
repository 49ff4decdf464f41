"""From MQTT clients through the gateway, Kafka and Spark to readers: the whole way, at once."""

from __future__ import annotations

import importlib.resources
import itertools
import json
import secrets
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock.components import KafkaCluster
from penstock.config import defaults
from penstock.definitions import read_text
from penstock.eventlog.connection import BrokerError
from penstock.eventlog.kafka import KafkaLog
from penstock.kafka import Cluster, make_topics, open_administration
from penstock.model.document import Document
from penstock.model.kinds import Stream
from penstock.pipeline.control import Control
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from penstock_lab.demo.hospital import AUDIENCES, HIDDEN, QUASI, K
from penstock_lab.demo.hospital_clients import Answers, Message, Publisher
from penstock_lab.demo.stage import Place, set_up
from penstock_lab.generate.hospital import generate
from tests.support.kafka.clusters import settings_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.config.brokers import KafkaSettings

pytestmark = [pytest.mark.needs("mosquitto", "java", "jars"), pytest.mark.timeout(900)]

PATIENTS = 400
ROUNDS = 2
BATCH = 150
ROLES = {
    "doctor": "doctor",
    "nurse": "nurse",
    "administration": "administration",
    "research": "researcher",
}
# The fields that a view changes; the doctor's changes none.
CHANGED = {
    "nurse": set(HIDDEN["nurse"]),
    "administration": set(HIDDEN["administration"]),
    "research": {*QUASI, "pid", "name", "insurance_number"},
}


@pytest.fixture
def name() -> str:
    """Give the stream a name of its own: the cluster is shared with other tests."""
    return f"patients-{uuid.uuid4().hex[:8]}"


def documents(name: str) -> list[Document]:
    found = []
    for file in ("hospital.yaml", "hospital_gateway.yaml"):
        text = importlib.resources.files("penstock_lab.demo").joinpath(file).read_text("utf-8")
        found += read_text(text, file).documents
    made = [Document("role", role, {}) for role in ROLES.values()]
    for it in found:
        if it.kind == "stream":
            body = {**it.body, "source": "kafka", "from": ["hospital/admissions/+pid"]}
            made.append(Document(it.kind, name, body))
        elif it.kind == "view":
            made.append(Document(it.kind, it.name, {**it.body, "stream": name, "format": "topic"}))
        else:
            made.append(it)
    return made


def records(stream: Stream) -> list[dict[str, Any]]:
    fields = [field.name for field in stream.fields]
    rows = itertools.chain.from_iterable(it.to_pylist() for it in generate(PATIENTS, 7))
    return [{field: row[field] for field in fields} for row in rows]


def message(record: dict[str, Any]) -> Message:
    rest = {field: value for field, value in record.items() if field != "pid"}
    return f"hospital/admissions/{record['pid']}", json.dumps(rest).encode()


def forge(record: dict[str, Any]) -> Message:
    return message({**record, "pid": record["pid"] + 1_000_000, "name": "Forged"})


def publish(place: Place, user: str, messages: list[Message]) -> Answers:
    with Publisher(place.port, user, place.passwords[user]) as publisher:
        return publisher.publish(messages)


@contextmanager
def readers(settings: KafkaSettings, database: Database) -> Iterator[dict[str, KafkaLog]]:
    """Give a reader of each audience, with a login at Kafka of its own."""
    store = CheckedDefinitions(Definitions(database))
    officer = open_administration(settings, database, store, actor="officer")
    users = {audience: f"{audience}-{uuid.uuid4().hex[:8]}" for audience in ROLES}
    logs = {}
    try:
        for audience, user in users.items():
            password = secrets.token_urlsafe(12)
            officer.add_user(user, password, [ROLES[audience]])
            logs[audience] = KafkaLog(settings, user, password)
        yield logs
    finally:
        for user in users.values():
            officer.delete_user(user)


def read(log: KafkaLog, topic: str) -> list[dict[str, Any]]:
    return [json.loads(record.value) for record in log.topic(topic).read()]


def is_refused(log: KafkaLog, topic: str) -> bool:
    try:
        read(log, topic)
    except BrokerError as error:
        cause = error.__cause__
        assert isinstance(cause, KafkaException)
        return bool(cause.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED)
    return False


def count(rows: list[dict[str, Any]], audience: str) -> Counter[tuple[Any, ...]]:
    """Count records by what the view shows of them as it is."""
    changed = CHANGED.get(audience, set())
    return Counter(
        tuple(value for field, value in sorted(row.items()) if field not in changed) for row in rows
    )


def test_what_was_accepted_is_in_every_view_once_and_what_was_refused_in_none(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, name: str
) -> None:
    from penstock.pipeline.manager import Manager  # noqa: PLC0415 - loads Spark

    settings = settings_of(kafka)
    sections: dict[str, dict[str, Any]] = {
        "recording": {"acknowledge": "recorded"},
        "kafka": {
            "bootstrap": kafka.bootstrap,
            "security": "sasl_plaintext",
            "password": {"file": str(kafka.admin_password_file)},
        },
    }
    pipeline = defaults(tmp_path, {}).pipeline.model_copy(update={"batch": BATCH})
    control = Control(pipeline.folder)
    with (
        set_up(("reception", "visitor"), documents(name), sections) as place,
        Database.open(place.store_url) as database,
        ThreadPoolExecutor(2) as pool,
    ):
        definitions = CheckedDefinitions(Definitions(database)).current()[1]
        with Cluster(settings) as cluster:
            make_topics(cluster, definitions)
        admitted = records(definitions.of(Stream)[name])
        for number in range(ROUNDS):
            some = admitted[number::ROUNDS]
            # What the reception may say, something that is no record, and what it may not.
            good = [*map(message, some), ("hospital/admissions/7", b"no record")]
            bad = [("hospital/discharges/7", message(some[0])[1])]
            taken = pool.submit(publish, place, "reception", good + bad)
            refused = pool.submit(publish, place, "visitor", [forge(it) for it in some])
            answers = taken.result()
            assert (answers.taken, answers.refused.total()) == (len(good), len(bad))
            assert (refused.result().taken, refused.result().refused.total()) == (0, len(some))
            for action in ("start", "stop") if number == ROUNDS - 1 else ("start",):
                for audience in AUDIENCES:
                    control.change(audience, action)
                Manager(spark, pipeline, lambda: definitions, kafka=settings).run_once()

        with readers(settings, database) as logs:
            views = {it: read(log, f"{name}-{it}") for it, log in logs.items()}
            for audience, log in logs.items():
                others = [it for it in AUDIENCES if it != audience]
                assert [it for it in others if is_refused(log, f"{name}-{it}")] == others
                assert is_refused(log, name)

    for audience in AUDIENCES:
        assert len(views[audience]) == PATIENTS, audience
        assert count(views[audience], audience) == count(admitted, audience), audience
        last = control.view(audience).last()
        assert last is not None
        assert (last.totals.read, last.totals.rejected) == (PATIENTS + ROUNDS, ROUNDS)
    for audience, fields in HIDDEN.items():
        assert {row[field] for row in views[audience] for field in fields} == {"*"}
    groups = Counter(tuple(row[field] for field in QUASI) for row in views["research"])
    assert min(groups.values()) >= K
