"""Queues and topics as ways to services: real Kafka, real Mosquitto, a server that speaks AWS."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from confluent_kafka import Consumer
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from penstock.components import KafkaCluster, MosquittoServer, processes
from penstock.config import Config
from penstock.config.settings import folders
from penstock.rights.dispatch.message import (
    IDEMPOTENCY_KEY,
    SIGNATURE,
    derive_key,
    verify,
)
from penstock.store.database import Database
from penstock.store.rights.tables import ProgressStatus, RequestStatus
from tests.support.kafka.clusters import settings_of
from tests.support.rights.office import SECRET, Office, configure

REGION, ACCOUNT = "eu-west-1", "123456789012"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path / 'store.db'}") as opened:
        yield opened


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a server that speaks the protocols of SQS and SNS."""
    port, folder = processes.free_port(), tmp_path_factory.mktemp("aws")
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            latest = time.monotonic() + 60
            while not processes.accepts(port):
                assert server.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < latest
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(10)


def client(service: str, endpoint: str) -> Any:
    return boto3.session.Session().client(
        service, region_name=REGION, endpoint_url=endpoint,
        aws_access_key_id="key", aws_secret_access_key="secret",  # noqa: S106
    )  # fmt: skip


def aws_config(endpoint: str, folder: Path) -> Config:
    for name in ("key", "secret"):
        (folder / name).write_text(name)
        (folder / name).chmod(0o600)
    keys = {
        "access_key": {"file": str(folder / "key")},
        "secret_key": {"file": str(folder / "secret")},
    }
    return configure(folder, timeout=20, aws={"endpoint": endpoint, **keys})


def check_told(office: Office, body: str, headers: dict[str, str]) -> None:
    """A service gets the same everywhere: what, under which key, and signed."""
    told = json.loads(body)
    assert (told["request"], told["action"], told["subject"]) == (
        office.accepted.id,
        "delete",
        "ann",
    )
    assert headers[IDEMPOTENCY_KEY] == f"{office.accepted.id}/crm"
    key, much_later = derive_key(SECRET, "crm"), int(time.time()) + 86_400
    assert not verify(key, headers[SIGNATURE], body.encode(), much_later)
    assert verify(key, headers[SIGNATURE], body.encode(), much_later, oldest=None)
    assert not verify(key, headers[SIGNATURE], body.encode() + b" ", much_later, oldest=None)


def receive(sqs: Any, url: str) -> list[Any]:
    found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"])
    return list(found.get("Messages", []))


@pytest.mark.parametrize("name", ["plain", "orders.fifo"])
def test_a_queue_of_sqs(database: Database, aws: str, tmp_path: Path, name: str) -> None:
    sqs = client("sqs", aws)
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
    office = Office(database, arn, config=aws_config(aws, tmp_path), delivery="sqs")
    office.work()
    status, service, trouble = office.look()
    assert (status, service) == (RequestStatus.INIT, ProgressStatus.INIT)
    assert trouble.startswith("aws-")
    fifo = {"Attributes": {"FifoQueue": "true"}} if name.endswith(".fifo") else {}
    url = sqs.create_queue(QueueName=name, **fifo)["QueueUrl"]
    assert office.work(seconds=11) == 1
    assert office.look() == (RequestStatus.INPROGRESS, ProgressStatus.SENT, "")
    (message,) = receive(sqs, url)
    headers = {key: it["StringValue"] for key, it in message["MessageAttributes"].items()}
    check_told(office, message["Body"], headers)
    office.work(minutes=61)  # overdue: told again, and no longer the same message
    assert len(receive(sqs, url)) <= 1
    assert office.look()[1] == ProgressStatus.SENT
    office.channels.close()


def test_a_topic_of_sns(database: Database, aws: str, tmp_path: Path) -> None:
    sns, sqs = client("sns", aws), client("sqs", aws)
    arn = sns.create_topic(Name="privacy")["TopicArn"]
    url = sqs.create_queue(QueueName="behind")["QueueUrl"]
    sns.subscribe(
        TopicArn=arn, Protocol="sqs", Endpoint=f"arn:aws:sqs:{REGION}:{ACCOUNT}:behind",
        Attributes={"RawMessageDelivery": "true"},
    )  # fmt: skip
    office = Office(database, arn, config=aws_config(aws, tmp_path), delivery="sns")
    office.work()
    assert office.look()[1:] == (ProgressStatus.SENT, "")
    (message,) = receive(sqs, url)
    headers = {key: it["StringValue"] for key, it in message["MessageAttributes"].items()}
    check_told(office, message["Body"], headers)


def test_queues_out_of_reach_and_gone_become_dead_letters(
    database: Database, tmp_path: Path
) -> None:
    nowhere = f"http://127.0.0.1:{processes.free_port()}"
    office = Office(
        database, f"arn:aws:sqs:{REGION}:{ACCOUNT}:q", config=aws_config(nowhere, tmp_path),
        delivery="sqs", send_retries=1,
    )  # fmt: skip
    office.work()
    assert office.look()[2] == "unreachable"
    office.work(seconds=11)
    assert office.look() == (
        RequestStatus.SOMEFAILED,
        ProgressStatus.SENDFAILED,
        "unreachable",
    )
    assert office.book.redrive(office.book.lost()) == 1
    assert office.look()[:2] == (RequestStatus.INIT, ProgressStatus.INIT)
    (tmp_path / "secret").unlink()
    again = Office(
        Database.open(f"sqlite:///{tmp_path / 'other.db'}"),
        f"arn:aws:sqs:{REGION}:{ACCOUNT}:q",
        config=office_config_without_secret(nowhere, tmp_path), delivery="sqs",
    )  # fmt: skip
    again.work()
    assert again.look()[2] == "credentials"


def office_config_without_secret(endpoint: str, folder: Path) -> Config:
    missing = {"access_key": {"env": "NO_SUCH_KEY"}, "secret_key": {"env": "NO_SUCH_KEY"}}
    return configure(folder, timeout=5, aws={"endpoint": endpoint, **missing})


@pytest.mark.needs("java", "jars")
def test_a_topic_of_kafka(database: Database, kafka: KafkaCluster, tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - beside its settings
    from confluent_kafka.cimpl import NewTopic  # noqa: PLC0415

    from penstock.eventlog.connection import (  # noqa: PLC0415
        admin_settings,
        consumer_settings,
        read_password,
    )

    cluster = settings_of(kafka)
    topic = f"privacy.crm-{time.time_ns()}"
    admin = AdminClient(admin_settings(cluster))
    admin.create_topics([NewTopic(topic, 1)])[topic].result(60)
    config = Config.model_validate(
        {
            "rights": {"timeout": 20},
            "kafka": {
                "bootstrap": kafka.bootstrap, "security": "sasl_plaintext",
                "password": {"file": str(kafka.admin_password_file)},
            },
        },
        context=folders(tmp_path),
    )  # fmt: skip
    office = Office(database, f"kafka:{topic}", config=config, delivery="kafka")
    office.work()
    assert office.look() == (RequestStatus.INPROGRESS, ProgressStatus.SENT, "")
    password = read_password(cluster)
    consumer = Consumer(consumer_settings(cluster, cluster.user, password, group=topic))
    consumer.subscribe([topic])
    message: Any = consumer.poll(60)
    assert message is not None
    assert message.error() is None
    assert message.key() == office.accepted.id.encode()
    headers = {name: value.decode() for name, value in message.headers()}
    check_told(office, message.value().decode(), headers)
    consumer.close()
    office.channels.close()


def test_no_definition_leads_into_other_topics(database: Database, tmp_path: Path) -> None:
    office = Office(database, "kafka:patients", delivery="kafka")
    office.work()
    assert office.look()[2] == "topic-refused"
    other = Office(
        Database.open(f"sqlite:///{tmp_path / 'other.db'}"), "mqtt:home/lamp", delivery="mqtt"
    )
    other.work()
    assert other.look()[2] == "topic-refused"


def test_without_settings_nothing_is_sent_and_tried_again(database: Database) -> None:
    office = Office(database, "kafka:privacy.crm", delivery="kafka")
    office.work()
    assert office.look() == (RequestStatus.INIT, ProgressStatus.INIT, "not-configured")


def subscribe(port: int, topic: str, got: list[Any], identity: str = "crm") -> Client:
    """Subscribe with a session that outlives the connection."""
    done: list[Any] = []
    reader = Client(CallbackAPIVersion.VERSION2, client_id=identity, protocol=MQTTv5)
    reader.username_pw_set("penstock", "pass")
    reader.on_message = lambda _c, _u, message: got.append(message)
    reader.on_subscribe = lambda *_: done.append(1)
    lasting = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    lasting.SessionExpiryInterval = 3600
    reader.connect("127.0.0.1", port, clean_start=False, properties=lasting)
    reader.loop_start()
    reader.subscribe(topic, qos=1)
    await_(lambda: bool(done))
    return reader


def await_(condition: Any) -> None:
    latest = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < latest
        time.sleep(0.02)


@pytest.mark.needs("mosquitto")
def test_a_topic_of_mqtt(database: Database, mosquitto: MosquittoServer) -> None:
    mqtt = {"host": "127.0.0.1", "port": mosquitto.port, "tls": False}
    config = configure(timeout=5, mqtt=mqtt)
    office = Office(
        database, "mqtt:privacy/crm", config=config, delivery="mqtt", send_retries=5,
        longest_gap="10s",
    )  # fmt: skip
    office.work()  # nobody would get it: that is a failure
    assert office.look() == (RequestStatus.INIT, ProgressStatus.INIT, "no-subscriber")
    got: list[Any] = []
    reader = subscribe(mosquitto.port, "privacy/#", got)
    reader.disconnect()  # away, with a session: the broker keeps it
    reader.loop_stop()
    mosquitto.kill()
    office.work(seconds=11)
    assert office.look()[2] in {"unreachable", "timeout"}
    mosquitto.start()
    reader = subscribe(mosquitto.port, "privacy/#", got)
    office.work(seconds=21)
    assert office.look() == (RequestStatus.INPROGRESS, ProgressStatus.SENT, "")
    await_(lambda: bool(got))
    (message,) = got
    assert message.topic == "privacy/crm"
    check_told(office, message.payload.decode(), dict(message.properties.UserProperty))
    office.channels.close()
    reader.disconnect()
    reader.loop_stop()
