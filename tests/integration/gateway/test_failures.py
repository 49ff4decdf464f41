"""Failures: the broker, the gateway or the store goes away; nothing is lost or leaked."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer, PostgresServer, find, processes
from penstock.model.document import Document
from penstock.mqtt import V3, V5, Disconnect, ReasonCode, Will
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.reader import Filter, read_last
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from tests.support.gateway.certificates import Authority
from tests.support.gateway.clients import VERSIONS
from tests.support.gateway.fixtures import LANES
from tests.support.gateway.harness import GatewayThread, make_process, run_gateway, share
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import ClosedError, RawClient
from tests.support.store.installation import FileStore

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)


def wait_until(true: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@LANES
@VERSIONS
def test_a_broker_that_is_killed_takes_its_clients_along_and_they_come_back(
    tmp_path: Path, version: int, lanes: int
) -> None:
    """Messages of QoS 1 and 2 that were acknowledged are neither lost nor wrongly delivered."""
    broker = MosquittoServer(tmp_path / "m")
    broker.start()
    try:
        with run_gateway(tmp_path / "g", broker.port, {"lanes": lanes}) as gateway:
            keep: dict[str, Any] = {"clean": False, **({"expiry": 600} if version == V5 else {})}
            reader = RawClient(gateway.port, version=version)
            reader.connect("reader", **keep)
            writer = RawClient(gateway.port, version=version)
            writer.connect("writer")
            writer.publish("!RESERVE/b/HASH{other}", qos=1)
            reader.subscribe("!AP/a/HASH{mine}", "!AP/b/HASH{mine}")
            reader.close()
            for number in range(10):
                writer.publish("a/x", b"%d" % number, qos=1 + number % 2)
                writer.publish("b/x", b"%d" % number, qos=1 + number % 2)
            # Mosquitto writes its state when told to; a real crash keeps what was written.
            save_state(broker.pid)
            broker.kill()
            if version == V5:
                told = writer.expect(Disconnect).reason
                assert told == ReasonCode.SERVER_SHUTTING_DOWN
            writer.wait_closed()
            refused = RawClient(gateway.port, version=version)
            assert refused.connect("writer").reason == ReasonCode.SERVER_UNAVAILABLE
            broker.start()
            back = RawClient(gateway.port, version=version)
            assert back.connect("reader", **keep).session_present
            assert back.texts(10) == [("a/x", b"%d" % number) for number in range(10)]
            back.close()
    finally:
        broker.stop()


def save_state(pid: int) -> None:
    """Ask Mosquitto to write its state."""
    os.kill(pid, signal.SIGUSR1)
    time.sleep(0.5)


@LANES
@VERSIONS
def test_a_gateway_that_is_killed_keeps_purposes_and_messages(
    mosquitto: MosquittoServer, tmp_path: Path, version: int, lanes: int
) -> None:
    keep: dict[str, Any] = {"clean": False, **({"expiry": 600} if version == V5 else {})}
    with make_process(tmp_path, mosquitto.port, {"lanes": lanes}) as gateway:
        reader = RawClient(gateway.port, version=version, answers=False)
        reader.connect("reader", **keep)
        writer = RawClient(gateway.port)
        writer.connect("writer")
        writer.publish("!RESERVE/a/HASH{mine}", qos=1)
        writer.publish("!RESERVE/b/HASH{other}", qos=1)
        reader.subscribe("!AP/a/HASH{mine}", "!AP/b/HASH{mine}", "!AP/c/HASH{mine}")
        writer.publish("a/1", b"in flight", qos=1)
        assert len(reader.messages(1)) == 1  # and not acknowledged
        gateway.kill()
        reader.vanish()
        with pytest.raises(ClosedError):
            writer.publish("a/2", b"never", qos=1)
        gateway.start()
        writer = RawClient(gateway.port)
        writer.connect("writer")
        writer.publish("a/3", b"queued", qos=2)
        writer.publish("b/3", b"forbidden", qos=2)
        writer.publish("!RESERVE/c/HASH{other}", qos=1)
        writer.publish("c/3", b"forbidden", qos=2)
        back = RawClient(gateway.port, version=version)
        assert back.connect("reader", **keep).session_present
        got = back.messages(2)
        assert [(it.topic, it.payload) for it in got] == [
            ("a/1", b"in flight"),
            ("a/3", b"queued"),
        ]
        back.close()
        writer.close()


def test_a_session_moves_to_another_gateway_with_its_purposes(
    mosquitto: MosquittoServer, tmp_path: Path
) -> None:
    with (
        run_gateway(tmp_path / "one", mosquitto.port, **share(tmp_path)) as one,
        run_gateway(tmp_path / "two", mosquitto.port, **share(tmp_path)) as two,
    ):
        first = RawClient(one.port)
        first.connect("moves", clean=False, expiry=600)
        first.subscribe("!AP/a/HASH{mine}", "!AP/b/HASH{mine}")
        admin = RawClient(one.port)
        admin.connect("admin")
        admin.publish("!RESERVE/b/HASH{other}", qos=1)
        second = RawClient(two.port)
        assert second.connect("moves", clean=False, expiry=600).session_present
        first.wait_closed()
        wait_until(lambda: two.do(lambda: two.gateway.rules.epoch) == 1)
        admin.publish("a/1", b"allowed", qos=1)
        admin.publish("b/1", b"forbidden", qos=1)
        assert second.texts(1) == [("a/1", b"allowed")]
        second.close()
        admin.close()


def test_a_subscription_that_nobody_knows_delivers_nothing(
    mosquitto: MosquittoServer, tmp_path: Path
) -> None:
    """The broker has a session that was made behind the gateways' back."""
    with RawClient(mosquitto.port) as behind:
        behind.connect("smuggler", clean=False, expiry=600)
        behind.subscribe("a/#", qos=1, subscription_identifiers=(1,))
        behind.subscribe("b/#", qos=1)
    with run_gateway(tmp_path, mosquitto.port) as gateway, RawClient(gateway.port) as client:
        assert client.connect("smuggler", clean=False, expiry=600).session_present
        client.subscribe("c/#")
        for topic in ("a/1", "b/1", "c/1"):
            client.publish(topic, b"x", qos=1)
        assert client.texts(1) == [("c/1", b"x")]


@pytest.mark.needs("postgresql")
def test_while_definitions_are_stale_nothing_passes_and_nothing_is_lost(
    mosquitto: MosquittoServer, tmp_path: Path
) -> None:
    with PostgresServer() as postgres:
        store = {"url": postgres.url.replace("+psycopg", ""), "lease": "500ms"}
        with run_gateway(tmp_path / "g", mosquitto.port, store=store) as gateway:
            reader, writer = RawClient(gateway.port), RawClient(gateway.port)
            reader.connect("reader")
            writer.connect("writer")
            reader.subscribe("!AP/a/HASH{mine}", qos=1)
            postgres.kill()
            wait_until(lambda: not fresh(gateway))
            assert writer.publish("a/1", b"denied", qos=1).reason == 0x83
            assert reader.subscribe("b").reasons == (0x83,)
            with RawClient(mosquitto.port) as behind:
                behind.connect("behind")
                behind.publish("a/2", b"held", qos=1)
            assert reader.texts(quiet=0.5) == []
            assert "definitions" in gateway.running.health.readiness().failing
            postgres.start()
            wait_until(lambda: fresh(gateway))
            assert reader.texts(1) == [("a/2", b"held")]
            assert not writer.publish("a/3", b"again", qos=1).reason
            assert reader.texts(1) == [("a/3", b"again")]
            reader.close()
            writer.close()


def test_a_store_that_was_set_back_holds_at_once(
    mosquitto: MosquittoServer, tmp_path: Path
) -> None:
    """Not only after a lease: until then an end of a permission would not be known."""
    store = FileStore(tmp_path)
    settings = {"url": store.url, "lease": "120s"}
    with (
        run_gateway(tmp_path / "g", mosquitto.port, store=settings) as gateway,
        RawClient(gateway.port) as reader,
        RawClient(gateway.port) as writer,
    ):
        reader.connect("reader")
        writer.connect("writer")
        writer.publish("!RESERVE/a/HASH{other}", qos=1)
        reader.subscribe("!AP/a/HASH{mine}", qos=1)
        store.copy()
        writer.publish("!RESERVE/a/HASH{mine}", qos=1)
        wait_until(lambda: reaches(writer, reader))
        store.replace()
        wait_until(lambda: not reaches(writer, reader), 60)
        assert not gateway.running.health.readiness().failing


def reaches(writer: RawClient, reader: RawClient) -> bool:
    writer.publish("a/1", b"x", qos=1)
    reader.settle()
    return bool(reader.messages())


def fresh(gateway: GatewayThread) -> bool:
    return gateway.do(lambda: gateway.gateway.rules.fresh_until > 0)


def test_denials_are_in_the_audit_log_without_names(
    mosquitto: MosquittoServer, tmp_path: Path
) -> None:
    with run_gateway(tmp_path, mosquitto.port, {"open_mode": False}) as gateway:
        config = gateway.config
        with RawClient(gateway.port) as reader:
            reader.connect("a-personal-name")
            reader.publish("!RESERVE/a{x}", qos=1)
            reader.publish("!RESERVE/a", qos=1)
    with Database.open(config.store.connection_url()) as database:
        AuditLog.open(database, config.audit.signing_key)
        with database.read() as connection:
            entries = read_last(connection, 100)
    kinds = {it.entry.kind for it in entries}
    text = str(entries)
    assert {"command.denied", "request.refused"} <= kinds
    assert "a-personal-name" not in text


def test_denials_of_a_user_can_be_found_by_their_name(
    mosquitto: MosquittoServer, tmp_path: Path
) -> None:
    passwords = write_passwords(tmp_path / "passwords", {"alice": "secret"})
    settings = {
        "open_mode": False,
        "authentication": {"passwords": str(passwords), "anonymous": True},
    }
    with run_gateway(tmp_path / "g", mosquitto.port, settings) as gateway:
        config = gateway.config
        with RawClient(gateway.port) as alice, RawClient(gateway.port) as nobody:
            alice.connect("alice:phone", username="alice", password=b"secret")
            alice.publish("!RESERVE/a{x}", qos=1)
            nobody.connect("nobody")
            nobody.publish("!RESERVE/a{x}", qos=1)
    pseudonyms = Pseudonyms.load(config.audit.pseudonym_key)
    with Database.open(config.store.connection_url()) as database, database.read() as connection:
        (found,) = read_last(connection, 9, Filter(people=pseudonyms.all_of("alice")))
        (other,) = read_last(connection, 9, Filter(people=pseudonyms.all_of("nobody")))
    assert found.entry.actor == pseudonyms.person("alice")
    assert json.loads(found.entry.details)["client"] == pseudonyms.client("alice:phone")
    assert other.entry.actor == pseudonyms.client("nobody")


def test_denied_deliveries_are_audited_with_their_count(
    mosquitto: MosquittoServer, tmp_path: Path
) -> None:
    with run_gateway(tmp_path, mosquitto.port) as gateway:
        config = gateway.config
        with RawClient(gateway.port) as reader, RawClient(gateway.port) as writer:
            reader.connect("reader")
            writer.connect("writer")
            reader.subscribe("a", qos=0)
            writer.publish("!RESERVE/a{x}", qos=1)
            for _ in range(50):
                writer.publish("a", b"x", qos=1)
            reader.settle()
    with Database.open(config.store.connection_url()) as database, database.read() as connection:
        entries = [it.entry for it in read_last(connection, 1000)]
    denied = [it for it in entries if it.kind == "delivery.denied"]
    assert sum(json.loads(it.details)["count"] for it in denied) == 50
    assert all("reservation" in str(it.rule) for it in denied)
    changed = [it for it in entries if it.kind == "definitions.changed"]
    assert [json.loads(it.details)["created"] for it in changed] == [1]


def test_a_will_that_may_no_longer_be_written_is_deleted(
    mosquitto: MosquittoServer, tmp_path: Path
) -> None:
    with (
        run_gateway(tmp_path, mosquitto.port) as gateway,
        RawClient(mosquitto.port) as behind,
    ):
        behind.connect("behind")
        behind.subscribe("will/#", qos=1)
        kept = RawClient(gateway.port)
        kept.connect("kept", will=Will("will/kept", b"x", 1))
        kept.vanish()
        assert behind.texts(1) == [("will/kept", b"x")]
        revoked = RawClient(gateway.port)
        revoked.connect("revoked", will=Will("will/revoked", b"x", 1))
        with Database.open(gateway.config.store.connection_url()) as database:
            required = Document("enforcement", "default", {"policies": "required"})
            CheckedDefinitions(Definitions(database)).apply([required], actor="test", reason="")
        wait_until(
            lambda: gateway.do(lambda: gateway.gateway.rules.authorizer.access.decides["read"])
        )
        revoked.vanish()
        assert behind.texts(quiet=0.5) == []


def test_the_broker_behind_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("broker")
    port = processes.free_port()
    configuration = tmp_path / "mosquitto.conf"
    configuration.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nuser root\n"
        f"cafile {authority.path}\ncertfile {certificate}\nkeyfile {key}\n"
    )
    broker = processes.start(
        [str(find("mosquitto").path), "-c", str(configuration)],
        log=tmp_path / "log",
        ready=lambda: processes.accepts(port),
    )
    try:
        tls = {"enabled": True, "ca": str(authority.path)}
        settings = {"mode": "external", "host": "127.0.0.1", "port": port, "tls": tls}
        with (
            run_gateway(tmp_path / "g", port, broker=settings) as gateway,
            RawClient(gateway.port) as client,
        ):
            client.connect("x")
            client.subscribe("a")
            client.publish("a", b"y" * 50_000, qos=1)
            assert [len(it.payload) for it in client.messages(1)] == [50_000]
        other = {**tls, "ca": str(Authority(tmp_path / "other").path)}
        settings = {**settings, "tls": other}
        with (
            run_gateway(tmp_path / "h", port, broker=settings) as gateway,
            RawClient(gateway.port) as client,
        ):
            assert client.connect("x").reason == ReasonCode.SERVER_UNAVAILABLE
    finally:
        processes.stop(broker)


@pytest.mark.parametrize("version", [V3, V5])
def test_workers_share_one_port(mosquitto: MosquittoServer, tmp_path: Path, version: int) -> None:
    port = processes.free_port()
    listeners = {"mqtt": {"port": port}}
    settings = {"workers": 2, "listeners": listeners}
    first = make_process(tmp_path / "one", mosquitto.port, settings, **share(tmp_path))
    second = make_process(tmp_path / "two", mosquitto.port, settings, **share(tmp_path))
    first.port = second.port = port
    with first, second:
        clients = [RawClient(port, version=version) for _ in range(12)]
        for number, client in enumerate(clients):
            assert client.connect(f"c{number}").reason == 0
            client.subscribe("all", qos=1)
        clients[0].publish("all", b"x", qos=1)
        for client in clients:
            assert client.texts(1, quiet=0.01) == [("all", b"x")]
            client.close()
