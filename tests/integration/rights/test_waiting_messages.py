"""Erasure of what waits at the broker for clients that are away: real gateway, real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.model.document import Document
from penstock.mqtt import V3, V5, Properties, Will
from penstock.rights.dispatch.message import Outcome
from penstock.store.database import Database
from penstock.store.sessions import Sessions
from tests.support.gateway.clients import VERSIONS
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.gateway.raw import RawClient
from tests.support.rights.erasing import STREAM, Installation

pytestmark = pytest.mark.needs("mosquitto", "postgresql")

DOCUMENTS = (
    Document("stream", "vitals", STREAM | {"from": ["home/+pid/vitals"]}),
    Document("stream", "notes", STREAM | {"from": ["plain"]}),
)
ANN, BOB = b'{"pid":"ann"}', b'{"pid":"bob"}'


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'penstock.db'}"


@pytest.fixture
def gateway(url: str, tmp_path: Path, mosquitto: MosquittoServer) -> Iterator[GatewayThread]:
    with run_gateway(tmp_path / "g", mosquitto.port, store={"url": url}) as running:
        yield running


@pytest.fixture
def place(
    url: str, tmp_path: Path, mosquitto: MosquittoServer, gateway: GatewayThread
) -> Iterator[Installation]:
    assert gateway.port
    broker = {"mode": "external", "host": "127.0.0.1", "port": mosquitto.port}
    with Database.open(url) as database:
        yield Installation(tmp_path / "p", database, *DOCUMENTS, broker=broker)


def kept(version: int) -> dict[str, Any]:
    return {"clean": False, **({"expiry": 600} if version == V5 else {})}


def leave(gateway: GatewayThread, name: str, version: int, *, will: Will | None = None) -> None:
    """Let a client subscribe to all, and go."""
    with RawClient(gateway.port, version=version) as client:
        client.connect(name, will=will, **kept(version))
        client.subscribe("home/#", "plain")
        if will is not None:
            client.vanish()


def publish_about_both(gateway: GatewayThread) -> None:
    with RawClient(gateway.port) as writer:
        writer.connect("writer")
        for qos in (1, 2, 1, 2):
            writer.publish("home/ann/vitals", b"%d" % qos, qos=qos)
            writer.publish("home/bob/vitals", b"%d" % qos, qos=qos)
            writer.publish("plain", ANN, qos=qos)
            writer.publish("plain", BOB, qos=qos)


def wait_until_away(place: Installation, count: int) -> None:
    sessions = Sessions(place.database)
    while len(sessions.away()) < count:
        pass


def counts(place: Installation, person: str) -> dict[str, Any]:
    return {it["place"]: it for it in place.evidence(person).content["erased"]}


def remains(place: Installation, person: str) -> dict[str, Any]:
    return {it["place"]: it for it in place.evidence(person).content["remains"]}


BOBS = [(t, p) for q in (b"1", b"2") * 2 for t, p in (("home/bob/vitals", q), ("plain", BOB))]


@VERSIONS
def test_what_waits_about_a_person_is_gone_and_all_else_comes_in_order(
    gateway: GatewayThread, place: Installation, version: int
) -> None:
    leave(gateway, "reader", version)
    leave(gateway, "other", V3)
    wait_until_away(place, 2)
    publish_about_both(gateway)
    assert place.erase("ann").outcome is Outcome.DONE
    told = counts(place, "ann")["sessions of clients that are away"]
    assert (told["messages"], told["sessions"]) == (16, 2)
    assert not {"sessions of clients that are away", "other sessions"} & set(remains(place, "ann"))
    with RawClient(gateway.port, version=version) as back:
        assert back.connect("reader", **kept(version)).session_present
        assert back.texts(len(BOBS)) == BOBS
        with RawClient(gateway.port) as writer:
            writer.connect("writer")
            writer.publish("home/ann/vitals", b"new", qos=1)
        assert back.texts(1) == [("home/ann/vitals", b"new")]


def test_who_is_connected_stays_so_and_is_counted(
    gateway: GatewayThread, place: Installation
) -> None:
    delayed = Will("home/will", b"gone", properties=Properties(will_delay=300))
    leave(gateway, "mourned", V5, will=delayed)
    with RawClient(gateway.port) as here:
        here.connect("here", **kept(V5))
        here.subscribe("home/#")
        assert place.erase("ann").outcome is Outcome.DONE
        assert counts(place, "ann")["sessions of clients that are away"]["sessions"] == 0
        assert remains(place, "ann")["other sessions"]["count"] == 2
        with RawClient(gateway.port) as writer:
            writer.connect("writer")
            writer.publish("home/ann/vitals", b"live", qos=1)
        assert here.texts(1) == [("home/ann/vitals", b"live")]


def test_a_session_that_the_broker_does_not_have_is_not_begun(
    gateway: GatewayThread, place: Installation, mosquitto: MosquittoServer
) -> None:
    leave(gateway, "reader", V5)
    wait_until_away(place, 1)
    with RawClient(mosquitto.port) as direct:  # the broker forgets it
        direct.connect("reader", clean=True)
    assert place.erase("ann").outcome is Outcome.DONE
    with RawClient(mosquitto.port) as direct:
        assert not direct.connect("reader", clean=False, expiry=1).session_present
