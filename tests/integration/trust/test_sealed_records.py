"""Sealed streams in the event log: at Kafka and in files, and what views of each domain read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from penstock.components import KafkaCluster, MosquittoServer
from penstock.config import Config
from penstock.mqtt.codes import FAILURE
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from tests.support.trust.police import SIGHTING, Domain, Police, connect, open_police, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs("java", "jars", "mosquitto")
SECRETS = ("AB12 CDE", "Oxford Street 100", "31.5", "numberplate", "cam-4711")


def declare(stream: str, sealed: str, **more: Any) -> str:
    body = {
        "kind": "stream", "name": stream, "event_type": "sighting/1", "sealed": sealed,
        "from": ["cameras/+numberplate/sighting"], "subject": "numberplate",
    }  # fmt: skip
    return json.dumps(body | more)


def config_of(domain: Domain) -> Config:
    return domain.gateway.config


def run_view(spark: SparkSession, domain: Domain, name: str) -> tuple[list[dict[str, Any]], int]:
    """Run a view to the end as its domain does; return its rows, and how many were rejected."""
    from penstock.pipeline.manager import Manager  # noqa: PLC0415
    from penstock.pipeline.records.parser import use_keys  # noqa: PLC0415 - with Spark

    config = config_of(domain)
    use_keys(config)
    with Database.open(config.store.connection_url()) as database:
        definitions = CheckedDefinitions(Definitions(database)).current()[1]
    manager = Manager(spark, config.pipeline, lambda: definitions, kafka=config.kafka)
    manager.control.change(name, "start")
    manager.run_once()
    manager.control.change(name, "stop")
    folder = manager.control.view(name)
    last = folder.last()
    assert last is not None
    lines = [line for it in folder.data.iterdir() for line in it.read_text().splitlines()]
    return [json.loads(it) for it in lines], last.totals.rejected


def publish(police: Police, *plates: str) -> None:
    police.met.settle()
    with ExitStack() as stack:
        camera = connect(stack, police.met.gateway.port, "camera")
        for plate in plates:
            topic = f"cameras/{plate}/sighting"
            payload = json.dumps(SIGHTING | {"numberplate": plate}).encode()
            assert not camera.publish(topic, payload, qos=1).reason >= FAILURE
    recorder = police.met.gateway.gateway.recorder
    wait_until(lambda: recorder.durable == recorder.added >= len(plates))


@pytest.fixture(params=["attributes", "whole"])
def at_kafka(
    request: pytest.FixtureRequest, kafka: KafkaCluster, mosquitto: MosquittoServer, tmp_path: Path
) -> Iterator[tuple[Police, str, str]]:
    name = f"sightings-{uuid4().hex[:8]}"
    settings = {
        "bootstrap": kafka.bootstrap, "security": "sasl_plaintext",
        "password": {"file": str(kafka.admin_password_file)}, "timeout": "10s",
    }  # fmt: skip
    stream = declare(name, request.param, source="kafka")
    with open_police(mosquitto, tmp_path, stream, kafka=settings) as police:
        yield police, name, request.param


def test_records_at_kafka_are_sealed_and_open_to_views_of_those_with_keys(
    at_kafka: tuple[Police, str, str], kafka: KafkaCluster, spark: SparkSession
) -> None:
    police, name, sealed = at_kafka
    met, charge = police.met, police.charge
    publish(police, "AB12 CDE", "cam-4711")
    view = police.exchanged / "view.yaml"
    view.write_text(json.dumps({"kind": "view", "name": "all", "stream": name, "format": "json"}))
    for domain in (met, charge, police.pito):
        domain.run("apply", "-f", str(view))
    rows, rejected = run_view(spark, met, "all")
    assert {it["numberplate"] for it in rows} == {"AB12 CDE", "cam-4711"}
    assert {it["location"] for it in rows} == {SIGHTING["location"]}
    assert not rejected
    # The owner has the keys of its groups, and nobody else any.
    assert len(run_view(spark, police.pito, "all")[0]) == 2
    assert run_view(spark, charge, "all") == ([], 2)
    if sealed == "attributes":
        police.admit(charge, "charge", "type: sighting; action: subscribe; attributes: numberplate")
        narrow = view.with_name("narrow.yaml")
        body = {"kind": "view", "name": "plates", "stream": name, "format": "json"}
        narrow.write_text(json.dumps(body | {"remove": ["location", "speed"]}))
        charge.run("apply", "-f", str(narrow))
        publish(police, "EF56 GHI")
        # What was sealed before it had a key stays closed.
        assert run_view(spark, charge, "plates") == ([{"numberplate": "EF56 GHI"}], 2)
    # Nothing of it is on the disks of the brokers.
    held = b"".join(it.read_bytes() for it in kafka.folder.rglob("*") if it.is_file() and
                    it.parent.name.startswith(name))  # fmt: skip
    assert len(held) > 200
    for secret in SECRETS:
        assert secret.encode() not in held
