"""Accepted messages come into the event log at Kafka, whatever becomes of it meanwhile."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.components import KafkaCluster, MosquittoServer
from penstock.config import Config
from penstock.eventlog import Record
from penstock.eventlog.kafka import KafkaLog
from penstock.json_text import UNREAD
from penstock.model.document import Document
from penstock.mqtt import Puback, Publish
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from tests.support.gateway.harness import GatewayThread, make_process, run_gateway
from tests.support.gateway.raw import RawClient
from tests.support.gateway.resender import WINDOW, Resender

pytestmark = pytest.mark.needs("mosquitto", "java", "jars")
pytest_plugins = ("tests.support.gateway.fixtures",)

SOON = 60.0


@pytest.fixture
def name() -> str:
    return f"vitals-{uuid.uuid4().hex[:8]}"


def sections(kafka: KafkaCluster, **recording: Any) -> dict[str, Any]:
    return {
        "recording": recording,
        "kafka": {
            "bootstrap": kafka.bootstrap,
            "security": "sasl_plaintext",
            "password": {"file": str(kafka.admin_password_file)},
            "timeout": "3s",
        },
    }


def apply(config: Config, name: str) -> int:
    body = {
        "fields": [
            {"name": "patient", "type": "string", "category": "identifier"},
            {"name": "pulse", "type": "int"},
        ],
        "subject": "patient",
        "source": "kafka",
        "from": ["home/+patient/pulse"],
    }
    with Database.open(config.store.connection_url()) as database:
        checked = CheckedDefinitions(Definitions(database))
        return checked.apply([Document("stream", name, body)], actor="test", reason="").epoch


@contextmanager
def recording(
    folder: Path, broker: MosquittoServer, kafka: KafkaCluster, name: str, **settings: Any
) -> Iterator[tuple[GatewayThread, RawClient]]:
    with (
        run_gateway(folder, broker.port, **sections(kafka, **settings)) as gateway,
        RawClient(gateway.port) as publisher,
    ):
        epoch = apply(gateway.config, name)
        while gateway.do(lambda: gateway.gateway.rules.epoch) < epoch:
            time.sleep(0.02)
        publisher.connect("publisher")
        yield gateway, publisher


def payload(number: int) -> bytes:
    return json.dumps({"pulse": number}).encode()


def records(config: Config, name: str) -> list[Record]:
    return list(KafkaLog(config.kafka).topic(name).read())


def numbers(config: Config, name: str) -> list[int]:
    return [json.loads(it.value)["pulse"] for it in records(config, name)]


def wait_for_numbers(config: Config, name: str, count: int) -> list[int]:
    log = KafkaLog(config.kafka)
    deadline = time.monotonic() + SOON
    while name not in log.topics() or len(found := numbers(config, name)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def test_kafka_holds_what_was_accepted(
    broker: MosquittoServer, kafka: KafkaCluster, tmp_path: Path, name: str
) -> None:
    with recording(tmp_path, broker, kafka, name, acknowledge="recorded") as (gateway, publisher):
        before = time.time() * 1000
        for number in range(30):
            publisher.publish(f"home/p{number}/pulse", payload(number), qos=number % 3)
        held = wait_for_numbers(gateway.config, name, 30)
        assert held == list(range(30))
        found = records(gateway.config, name)
        assert [json.loads(it.value)["patient"] for it in found] == [f"p{it}" for it in range(30)]
        assert [it.key for it in found] == [b"p%d" % it for it in range(30)]
        assert all(before - 1 <= it.milliseconds <= time.time() * 1000 for it in found)
        # What the gateway cannot read is nobody's record.
        forged = b'{"patient":"other","x":' + b"[" * 989 + b"]" * 989 + b"}"
        publisher.publish("home/own/pulse", forged, qos=1)
        assert [it.value for it in records(gateway.config, name)][30:] == [UNREAD + forged]


def test_a_kafka_that_stands_still_holds_up_acknowledgements_alone(
    broker: MosquittoServer, kafka: KafkaCluster, tmp_path: Path, name: str
) -> None:
    with (
        recording(tmp_path, broker, kafka, name, acknowledge="recorded") as (gateway, publisher),
        RawClient(gateway.port) as reader,
    ):
        reader.connect("reader")
        reader.subscribe("home/#", qos=0)
        publisher.publish("home/p/pulse", payload(0), qos=1)
        (pid,) = kafka.pids.values()
        os.kill(pid, signal.SIGSTOP)
        try:
            for number in range(1, 6):
                message = Publish.of("home/p/pulse", payload(number), qos=1, packet_id=number + 1)
                publisher.send(message)
            assert len(reader.messages(6)) == 6
            with pytest.raises(TimeoutError):
                publisher.expect(Puback, 0.5)
        finally:
            os.kill(pid, signal.SIGCONT)
        for number in range(1, 6):
            assert not publisher.expect_answer(number + 1, SOON).failed
        assert set(numbers(gateway.config, name)) == set(range(6))


def test_a_topic_that_was_deleted_is_made_again(
    broker: MosquittoServer, kafka: KafkaCluster, tmp_path: Path, name: str
) -> None:
    with recording(tmp_path, broker, kafka, name) as (gateway, publisher):
        publisher.publish("home/p/pulse", payload(1), qos=1)
        assert wait_for_numbers(gateway.config, name, 1) == [1]
        log = KafkaLog(gateway.config.kafka)
        log.admin.delete_topics([name])[name].result(10)
        publisher.publish("home/p/pulse", payload(2), qos=1)
        assert wait_for_numbers(gateway.config, name, 1) == [2]


def test_a_killed_gateway_loses_nothing_that_it_acknowledged(
    broker: MosquittoServer, kafka: KafkaCluster, tmp_path: Path, name: str
) -> None:
    count = 600
    process = make_process(tmp_path, broker.port, **sections(kafka, acknowledge="recorded"))
    apply(process.config, name)
    publisher = Resender(process.port, "home/p/pulse", payload)
    with process:
        publisher.send_until(250, count)
        process.kill()
        assert publisher.acknowledged <= set(numbers(process.config, name))
        process.start()
        publisher.send_until(count, count)
    held = numbers(process.config, name)
    assert set(held) == set(range(count))
    assert len(held) <= count + WINDOW
