"""Purposes that are declared, or are no longer: what clients hold is judged anew."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.model.document import Document
from penstock.mqtt import V5
from penstock.store.audit.entry import Entry
from penstock.store.audit.reader import read_last
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from tests.support.gateway.clients import VERSIONS
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")

SOON = 60.0


@pytest.fixture
def opened(mosquitto: MosquittoServer, tmp_path: Path) -> Iterator[GatewayThread]:
    with run_gateway(tmp_path / "g", mosquitto.port) as running:
        yield running


def declare(gateway: GatewayThread, *names: str) -> None:
    """Let these be the declared purposes, and wait until the gateway knows."""
    with Database.open(gateway.config.store.connection_url()) as database:
        checked = CheckedDefinitions(Definitions(database))
        documents = [Document("purpose", name, {}) for name in names]
        epoch = checked.apply(documents, actor="test", reason="", prune=["purpose"]).epoch
    wait_until(lambda: gateway.do(lambda: gateway.gateway.rules.epoch) >= epoch)


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def stored(gateway: GatewayThread) -> dict[str, bool]:
    """Return the reader's stored filters, and whether the broker was told to end each."""
    session = gateway.gateway.sessions.load("reader")
    assert session is not None
    return {it.filter: bool(it.options & 0x100) for it in session.subscriptions}


@VERSIONS
def test_what_clients_hold_rests_while_its_purpose_is_not_declared(
    opened: GatewayThread, version: int
) -> None:
    keep: dict[str, Any] = {"clean": False, **({"expiry": 600} if version == V5 else {})}
    reader, writer = RawClient(opened.port, version=version), RawClient(opened.port)
    reader.connect("reader", **keep)
    writer.connect("writer")
    reader.subscribe("!AP/a{billing}", "!AP/b{biling}", "c")
    declare(opened, "billing")
    wait_until(lambda: stored(opened) == {"a": False, "b": True, "c": False})
    for topic in "abc":
        writer.publish(topic, b"1", qos=1)
    assert sorted(reader.texts(2)) == [("a", b"1"), ("c", b"1")]
    # It stays at rest when the session is taken up again, and when other things change.
    reader.close()
    reader = RawClient(opened.port, version=version)
    assert reader.connect("reader", **keep).session_present
    writer.publish("!RESERVE/b{billing}", qos=1)
    writer.publish("!RESERVE/b{}", qos=1)
    for topic in "abc":
        writer.publish(topic, b"2", qos=1)
    assert sorted(reader.texts(2)) == [("a", b"2"), ("c", b"2")]
    # Once its purpose is declared it flows again, the client has nothing to do.
    declare(opened, "billing", "biling")
    wait_until(lambda: stored(opened) == {"a": False, "b": False, "c": False})
    writer.publish("b", b"3", qos=1)
    assert reader.texts(1) == [("b", b"3")]
    # One that is taken back rests at once; without any declaration all are free again.
    declare(opened, "billing")
    wait_until(lambda: stored(opened)["b"])
    writer.publish("b", b"4", qos=1)
    assert reader.texts() == []
    declare(opened)
    wait_until(lambda: not stored(opened)["b"])
    writer.publish("b", b"5", qos=1)
    assert reader.texts(1) == [("b", b"5")]
    reader.close()
    writer.close()


def test_nothing_that_was_queued_passes_and_the_reason_is_told(
    mosquitto: MosquittoServer, opened: GatewayThread
) -> None:
    """A session that was away while purposes were declared; the broker still has its filters."""
    with RawClient(opened.port) as reader:
        reader.connect("reader", clean=False, expiry=600)
        reader.subscribe("!AP/a{billing}", "!AP/b{biling}", qos=1)
    with RawClient(mosquitto.port) as behind:
        behind.connect("behind")
        behind.publish("b", b"queued", qos=1)
        behind.publish("a", b"queued", qos=1)
    declare(opened, "billing")
    with RawClient(opened.port) as reader:
        assert reader.connect("reader", clean=False, expiry=600).session_present
        assert reader.texts(1) == [("a", b"queued")]
        opened.do(opened.gateway.tick)
        assert [it.rule for it in denied(opened)] == ["declared purposes"]


def denied(gateway: GatewayThread) -> list[Entry]:
    """Wait for the denied deliveries in the audit log."""
    deadline = time.monotonic() + SOON
    while True:
        with (
            Database.open(gateway.config.store.connection_url()) as database,
            database.read() as connection,
        ):
            found = [it.entry for it in read_last(connection, 100)]
        kept = [it for it in found if it.kind == "delivery.denied"]
        if kept:
            assert [json.loads(it.details)["count"] for it in kept] == [1]
            return kept
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_client_can_end_or_renew_what_rests(opened: GatewayThread) -> None:
    with RawClient(opened.port) as reader, RawClient(opened.port) as writer:
        reader.connect("reader", clean=False, expiry=600)
        writer.connect("writer")
        reader.subscribe("!AP/a{biling}", "!AP/b{biling}")
        declare(opened, "billing")
        wait_until(lambda: stored(opened) == {"a": True, "b": True})
        assert reader.unsubscribe("a").reasons == (0,)
        assert reader.subscribe("!AP/b{billing}").reasons == (2,)
        assert stored(opened) == {"b": False}
        for topic in "ab":
            writer.publish(topic, b"1", qos=1)
        assert reader.texts(1) == [("b", b"1")]
        declare(opened, "billing", "biling")
        for topic in "ab":
            writer.publish(topic, b"2", qos=1)
        assert reader.texts(1) == [("b", b"2")]
