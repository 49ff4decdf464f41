"""CLEAR, RESET, PERSIST and RELOAD through a real gateway and a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.model.document import Document, Key
from penstock.mqtt import (
    V3,
    V5,
    Publish,
    ReasonCode,
    RequestedSubscription,
    Suback,
    Subscribe,
)
from penstock.store.database import Database
from penstock.store.definitions.history import Definitions
from tests.support.gateway.definitions import apply, stored
from tests.support.gateway.harness import GatewayThread, run_gateway, write_config
from tests.support.gateway.pair import wait_until
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

MANY = {"limits": {"state_commands": 1_000}}
VERSIONS = pytest.mark.parametrize("version", [V3, V5])


@pytest.fixture
def opened(broker: MosquittoServer, tmp_path: Path) -> Iterator[GatewayThread]:
    with run_gateway(tmp_path / "g", broker.port, MANY) as running:
        yield running


@contextmanager
def connect(
    gateway: GatewayThread, name: str, version: int = V5, **how: Any
) -> Iterator[RawClient]:
    with RawClient(gateway.port, version=version) as client:
        assert client.connect(name, **how).reason == 0
        yield client


def command(client: RawClient, word: str, payload: bytes = b"") -> None:
    assert client.publish(f"!PBAC/{word}", payload, qos=1).reason == 0


def settle(gateway: GatewayThread, *names: str) -> None:
    """Wait until the broker knows what commands have ended and brought back."""

    def aligned() -> bool:
        sessions = [gateway.gateway.clients[name].session for name in names]
        return not any(it.cleared or it.missing for it in sessions) and not tasks()

    def tasks() -> set[str]:
        running = gateway.gateway.background.tasks
        return {getattr(it.get_coro(), "__name__", "") for it in running} & {
            "_align",
            "_resume",
            "_rest",
        }

    wait_until(lambda: gateway.do(aligned))


@VERSIONS
def test_clear_ends_what_clients_subscribed_for_purposes(
    opened: GatewayThread, topic: str, version: int
) -> None:
    with connect(opened, "admin") as admin, connect(opened, "reader", version) as reader:
        command(admin, f"PRESUB/reader/{topic}/c{{mine}}")
        reader.subscribe(f"!AP/{topic}/a{{mine}}", f"{topic}/b", f"{topic}/c", qos=1)
        admin.publish(f"!RESERVE/{topic}/HASH{{mine}}", qos=1)
        command(admin, "CLEAR")
        settle(opened, "reader")
        reader.settle()
        for end in "abc":
            admin.publish(f"{topic}/{end}", end.encode(), qos=1)
        # What is plain stays, and nothing is reserved any more.
        assert reader.texts(1) == [(f"{topic}/b", b"b")]
        # It is over: the client subscribes again, and for which purpose it likes.
        assert reader.subscribe(f"!AP/{topic}/a{{other}}", qos=1).reasons == (1,)
        admin.publish(f"{topic}/a", b"again", qos=1)
        assert reader.texts(1) == [(f"{topic}/a", b"again")]
    assert {key.kind for key in stored(opened.config)} == {"purpose-state"}


@VERSIONS
def test_clear_ends_what_is_kept_for_clients_that_are_away(
    opened: GatewayThread, topic: str, version: int
) -> None:
    keep: dict[str, Any] = {"clean": False} | ({"expiry": 600} if version == V5 else {})
    with connect(opened, "admin") as admin:
        with connect(opened, "away", version, **keep) as away:
            away.subscribe(f"!AP/{topic}/a{{mine}}", f"{topic}/b", qos=1)
        command(admin, "CLEAR")
        for end in "ab":
            admin.publish(f"{topic}/{end}", b"queued", qos=1)
        with connect(opened, "away", version, **keep) as away:
            assert away.texts(1) == [(f"{topic}/b", b"queued")]
            settle(opened, "away")
            away.settle()
            for end in "ab":
                admin.publish(f"{topic}/{end}", b"later", qos=1)
            assert away.texts(1) == [(f"{topic}/b", b"later")]


def test_reset_clears_and_changes_no_setting(opened: GatewayThread, topic: str) -> None:
    with connect(opened, "admin") as admin, connect(opened, "reader") as reader:
        command(admin, "SET/filter_hybrid", b"true")
        command(admin, "SET/allow_without_reservation", b"false")
        admin.publish(f"!RESERVE/{topic}{{mine}}", qos=1)
        reader.subscribe(f"!AP/{topic}{{mine}}", qos=1)
        command(admin, "RESET")
        settings = opened.do(lambda: opened.gateway.rules.engine.settings)
        assert settings.filter_hybrid
        assert not settings.allow_without_reservation
        settle(opened, "reader")
        # Strict and hybrid are in force: nothing is reserved, so nobody may have it.
        assert reader.subscribe(f"!AP/{topic}{{mine}}").reasons == (ReasonCode.NOT_AUTHORIZED,)


@VERSIONS
def test_reload_goes_back_to_what_was_persisted(
    opened: GatewayThread, topic: str, version: int
) -> None:
    with connect(opened, "admin") as admin, connect(opened, "reader", version) as reader:
        admin.publish(f"!RESERVE/{topic}/a{{mine}}", qos=1)
        admin.publish(f"!RESERVE/{topic}/b{{mine}}", qos=1)
        command(admin, f"PRESUB/other/{topic}{{mine}}")
        for end in "ab":
            reader.subscribe(f"!AP/{topic}/{end}{{mine}}", qos=1)
        before = {
            key: it for key, it in stored(opened.config).items() if key.kind != "purpose-state"
        }
        command(admin, "PERSIST")
        # All of it is stored at once, and none of it counts after RELOAD.
        admin.publish(f"!RESERVE/{topic}/a{{theirs}}", qos=1)
        admin.publish(f"!RESERVE/{topic}/b{{}}", qos=1)
        admin.publish(f"!RESERVE/{topic}/new{{theirs}}", qos=1)
        apply(opened.config, [Document("reservation", f"{topic}/file", {"allow": ["theirs"]})])
        command(admin, f"PRESUB/other/{topic}{{theirs}}")
        reader.subscribe(f"!AP/{topic}/a{{theirs}}", qos=1)
        reader.subscribe(f"!AP/{topic}/new{{theirs}}", qos=1)
        command(admin, "RELOAD")
        settle(opened, "reader")
        reader.settle()
        now = {key: it for key, it in stored(opened.config).items() if key.kind != "purpose-state"}
        assert now == before
        for end in ("a", "b", "new"):
            admin.publish(f"{topic}/{end}", end.encode(), qos=1)
        assert sorted(reader.texts(2)) == [(f"{topic}/a", b"a"), (f"{topic}/b", b"b")]


@VERSIONS
def test_reload_brings_back_what_clear_has_ended(
    opened: GatewayThread, topic: str, version: int
) -> None:
    keep: dict[str, Any] = {"clean": False} | ({"expiry": 600} if version == V5 else {})
    with connect(opened, "admin") as admin, connect(opened, "reader", version) as reader:
        away = RawClient(opened.port, version=version)
        away.connect("away", **keep)
        for client in (reader, away):
            client.subscribe(f"!AP/{topic}/a{{mine}}", f"!AP/{topic}/b{{mine}}", qos=1)
        away.close()
        admin.publish(f"!RESERVE/{topic}/HASH{{mine}}", qos=1)
        command(admin, "PERSIST")
        command(admin, "CLEAR")
        admin.publish(f"!RESERVE/{topic}/HASH{{theirs}}", qos=1)
        settle(opened, "reader")
        # What the client itself has ended is its own decision: MQTT5 3.10.4.
        reader.unsubscribe(f"{topic}/b")
        command(admin, "RELOAD")
        settle(opened, "reader")
        reader.settle()
        with connect(opened, "away", version, **keep) as away:
            settle(opened, "away")
            away.settle()
            for end in "ab":
                admin.publish(f"{topic}/{end}", end.encode(), qos=1)
            assert reader.texts(1) == [(f"{topic}/a", b"a")]
            assert sorted(away.texts(2)) == [(f"{topic}/a", b"a"), (f"{topic}/b", b"b")]


def test_a_session_that_has_ended_since_stays_ended(opened: GatewayThread, topic: str) -> None:
    with connect(opened, "admin") as admin:
        with connect(opened, "reader") as reader:
            reader.subscribe(f"!AP/{topic}{{mine}}", qos=1)
            command(admin, "PERSIST")
        with connect(opened, "reader") as reader:
            command(admin, "RELOAD")
            settle(opened, "reader")
            admin.publish(topic, b"x", qos=1)
            assert reader.texts() == []


def test_a_restart_loses_nothing_of_what_was_persisted(
    broker: MosquittoServer, tmp_path: Path, topic: str
) -> None:
    keep: dict[str, Any] = {"clean": False, "expiry": 600}
    with (
        run_gateway(tmp_path / "g", broker.port, MANY) as gateway,
        connect(gateway, "admin") as admin,
    ):
        admin.publish(f"!RESERVE/{topic}{{mine}}", qos=1)
        with connect(gateway, "away", **keep) as away:
            away.subscribe(f"!AP/{topic}{{mine}}", qos=1)
        command(admin, "PERSIST")
        command(admin, "CLEAR")
    with (
        run_gateway(tmp_path / "g", broker.port, MANY) as gateway,
        connect(gateway, "admin") as admin,
    ):
        command(admin, "RELOAD")
        with connect(gateway, "away", **keep) as away:
            settle(gateway, "away")
            away.settle()
            admin.publish(topic, b"x", qos=1)
            assert away.texts(1) == [(topic, b"x")]


def test_a_shared_subscription_goes_back_to_its_purpose(opened: GatewayThread, topic: str) -> None:
    with (
        connect(opened, "admin") as admin,
        connect(opened, "one") as one,
        connect(opened, "two") as two,
    ):
        for client in (one, two):
            client.subscribe(f"!AP/$share/g/{topic}{{mine}}", qos=1)
        admin.publish(f"!RESERVE/{topic}{{mine}}", qos=1)
        command(admin, "PERSIST")
        for client in (one, two):
            client.unsubscribe(f"$share/g/{topic}")
        # Both ended it themselves; one of them has taken it up again for something else.
        one.subscribe(f"!AP/$share/g/{topic}{{theirs}}", qos=1)
        command(admin, "RELOAD")
        settle(opened, "one", "two")
        one.settle()
        admin.publish(topic, b"x", qos=1)
        assert one.texts() == []
        for client in (one, two):
            client.subscribe(f"!AP/$share/g/{topic}{{mine}}", qos=1)
        command(admin, "PERSIST")
        command(admin, "CLEAR")
        for client in (one, two):
            client.subscribe(f"!AP/$share/g/{topic}{{theirs}}", qos=1)
        command(admin, "RELOAD")
        settle(opened, "one", "two")
        for client in (one, two):
            client.settle()
        for count in range(4):
            admin.publish(topic, b"%d" % count, qos=1)
        got = one.texts() + two.texts()
        assert sorted(payload for _, payload in got) == [b"0", b"1", b"2", b"3"]


def test_some_are_excepted_from_clear(broker: MosquittoServer, tmp_path: Path, topic: str) -> None:
    """By user, group or client of a user; who is nobody gains nothing by a name."""
    passwords = write_passwords(tmp_path / "p", {"olga": "o", "ann": "a", "bob": "b"})
    chosen: dict[str, Any] = {
        "authentication": {"passwords": str(passwords), "anonymous": True},
        "filtering": {"clear_excepts": ["group:operators", "client:ann:desk"]},
        **MANY,
    }
    apply(
        write_config(tmp_path / "g", broker.port, chosen),
        [
            Document("group", "operators", {"includes": ["night"]}),
            Document("group", "night", {"members": ["user:olga"]}),
        ],
    )
    who = {"olga:1": "olga", "ann:desk": "ann", "ann:1": "ann", "bob:1": "bob", "nobody": None}
    keep: dict[str, Any] = {"clean": False, "expiry": 600}
    with run_gateway(tmp_path / "g", broker.port, chosen) as gateway:

        def login(name: str) -> RawClient:
            client, user = RawClient(gateway.port), who[name]
            word = {"username": user, "password": user[0].encode()} if user else {}
            assert client.connect(name, **keep, **word).reason == 0  # type: ignore[arg-type]
            return client

        for away in (False, True):
            clients = {name: login(name) for name in who}
            for client in clients.values():
                client.subscribe(f"!AP/{topic}/{away}{{mine}}", qos=1)
            if away:
                for client in clients.values():
                    client.close()
            with connect(gateway, "admin") as admin:
                command(admin, "CLEAR")
                if away:
                    clients = {name: login(name) for name in who}
                settle(gateway, *who)
                admin.publish(f"{topic}/{away}", b"x", qos=1)
                got = {name for name, client in clients.items() if client.texts()}
            assert got == {"olga:1", "ann:desk"}
            for client in clients.values():
                client.close()


def test_without_auto_persist_clear_holds_here_until_it_is_taken_back(
    opened: GatewayThread, topic: str
) -> None:
    key = Key("reservation", topic)
    with connect(opened, "admin") as admin, connect(opened, "reader") as reader:
        admin.publish(f"!RESERVE/{topic}{{mine}}", qos=1)
        reader.subscribe(f"!AP/{topic}{{mine}}", qos=1)
        command(admin, "PERSIST")
        command(admin, "SET/auto_persist", b"false")
        command(admin, "CLEAR")
        settle(opened, "reader")
        assert key in stored(opened.config)
        assert opened.do(lambda: opened.gateway.rules.engine.effective(topic)) is None
        admin.publish(topic, b"cleared", qos=1)
        assert reader.texts() == []
        command(admin, "RELOAD")
        settle(opened, "reader")
        reader.settle()
        admin.publish(topic, b"back", qos=1)
        assert reader.texts(1) == [(topic, b"back")]


def test_as_many_reservations_as_there_are_can_be_cleared(opened: GatewayThread) -> None:
    """More than one change may hold that comes from outside."""
    many = [Document("reservation", f"m/{count}", {"allow": ["x"]}) for count in range(10_050)]
    for start in (0, 9_000):
        apply(opened.config, many[start : start + 9_000])
    with connect(opened, "admin") as admin:
        wait_until(
            lambda: opened.do(lambda: len(opened.gateway.rules.engine.reservations)) == 10_050
        )
        for word in ("PERSIST", "CLEAR", "RELOAD"):
            packet = admin.next_id()
            admin.send(Publish.of(f"!PBAC/{word}", qos=1, packet_id=packet))
            assert admin.expect_answer(packet, 60).reason == 0
            left = opened.do(lambda: len(opened.gateway.rules.engine.reservations))
            assert left == (0 if word == "CLEAR" else 10_050)
    with Database.open(opened.config.store.connection_url()) as database:
        assert Definitions(database).snapshot().epoch == 5


def test_a_clear_amid_a_large_subscribe_leaves_memory_store_and_broker_alike(
    opened: GatewayThread, topic: str
) -> None:
    """Each filter was subscribed before the command, or after it; nothing is in between."""
    keep: dict[str, Any] = {"clean": False, "expiry": 600}
    ends = range(600)
    with connect(opened, "admin") as admin, connect(opened, "reader", **keep) as reader:
        session = opened.gateway.clients["reader"].session
        for delay in (0, 0.002, 0.01, 0.05):
            wanted = tuple(RequestedSubscription(f"!AP/{topic}/{end}{{mine}}", 1) for end in ends)
            reader.send(Subscribe(reader.next_id(), wanted))
            time.sleep(delay)
            command(admin, "CLEAR")
            assert set(reader.expect(Suback).reasons) == {1}
            settle(opened, "reader")
            reader.settle()
            held = opened.do(lambda: {it.text for it in session.by_number.values()})
            stored_now = opened.gateway.sessions.load("reader")
            assert stored_now is not None
            assert {it.filter for it in stored_now.subscriptions if it.number > 0} == held
            assert not [it for it in stored_now.subscriptions if it.number < 0]
            for end in ends:
                admin.publish(f"{topic}/{end}", b"x")
            admin.settle()
            reader.settle()
            assert {name for name, _ in reader.texts(len(held))} == held
            command(admin, "CLEAR")
            settle(opened, "reader")
