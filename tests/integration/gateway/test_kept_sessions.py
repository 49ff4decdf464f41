"""Sessions that outlive their connections: how many, for how long, and what status says."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import utc_now
from penstock.components import MosquittoServer
from penstock.mqtt import V3, V5, Connack, Connect, Disconnect, Properties, ReasonCode
from penstock.store.database import Database
from penstock.store.sessions import Sessions
from tests.support.commands import run_command
from tests.support.gateway.clients import VERSIONS
from tests.support.gateway.harness import (
    GatewayThread,
    make_process,
    run_gateway,
    share,
)
from tests.support.gateway.pair import wait_until
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

LIMITS = {"sessions_per_user": 3, "sessions_per_address": 2, "session_expiry": "60s"}
USERS = {"ann": "a", "bob": "b"}


def settings(folder: Path) -> dict[str, Any]:
    passwords = write_passwords(folder / "passwords", USERS)
    login = {"passwords": str(passwords), "anonymous": True}
    return {"limits": LIMITS, "authentication": login}


@pytest.fixture
def gateway(broker: MosquittoServer, tmp_path: Path) -> Iterator[GatewayThread]:
    with run_gateway(tmp_path / "g", broker.port, settings(tmp_path)) as running:
        yield running


def keep(port: int, name: str, user: str | None = "ann", version: int = V5) -> Any:
    """Connect with a session that is to be kept, leave it, and return the CONNACK."""
    login: dict[str, Any] = {}
    if user is not None:
        login = {"username": user, "password": USERS[user].encode()}
    with RawClient(port, version=version) as client:
        return client.connect(name, clean=False, expiry=30 if version == V5 else None, **login)


def connect(name: str) -> Connect:
    kept = Properties(session_expiry=60)
    return Connect(name, V5, False, 60, "ann", b"a", None, kept)  # noqa: FBT003


def is_at_broker(broker: MosquittoServer, name: str) -> bool:
    """Say whether the broker keeps a session; it is ended by asking."""
    with RawClient(broker.port) as direct:
        return direct.connect(name, clean=False).session_present


def left(gateway: GatewayThread) -> int:
    return gateway.gateway.sessions.count().kept


@VERSIONS
def test_one_session_too_many_is_refused_and_nobody_else_is_harmed(
    gateway: GatewayThread, broker: MosquittoServer, version: int
) -> None:
    names = [f"ann:{version}-{number}" for number in range(3)]
    for name in names:
        assert keep(gateway.port, name, version=version).reason == 0
    refused = keep(gateway.port, f"ann:{version}-more", version=version)
    if version == V5:
        assert refused.reason == ReasonCode.QUOTA_EXCEEDED
        assert "as many sessions as allowed are kept for you: 3" in (
            refused.properties.reason_string
        )
    else:
        assert refused.reason == ReasonCode.SERVER_UNAVAILABLE  # MQTT3 3.2.2.3 has no better one
    assert not is_at_broker(broker, f"ann:{version}-more")
    # Everybody else has room, and so has who comes back, or keeps nothing.
    assert keep(gateway.port, f"bob:{version}", "bob", version).reason == 0
    assert all(keep(gateway.port, name, version=version).session_present for name in names)
    with RawClient(gateway.port, version=version) as plain:
        assert plain.connect(f"ann:{version}-more", username="ann", password=b"a").reason == 0
    # One that is ended makes room.
    with RawClient(gateway.port, version=version) as clean:
        clean.connect(names[0], username="ann", password=b"a")
    wait_until(lambda: left(gateway) == 3)
    assert keep(gateway.port, f"ann:{version}-more", version=version).reason == 0


def test_sessions_of_nobody_count_for_their_address(
    gateway: GatewayThread, broker: MosquittoServer, tmp_path: Path
) -> None:
    assert [keep(gateway.port, f"n{it}", None).reason for it in range(3)] == [
        0,
        0,
        ReasonCode.QUOTA_EXCEEDED,
    ]
    assert keep(gateway.port, "", None).reason == ReasonCode.QUOTA_EXCEEDED
    assert keep(gateway.port, "ann").reason == 0
    assert not is_at_broker(broker, "n2")
    assert b"127.0.0.1" not in b"".join(it.read_bytes() for it in tmp_path.rglob("*.db*"))


def test_the_expiry_is_capped_and_told(gateway: GatewayThread, broker: MosquittoServer) -> None:
    login: dict[str, Any] = {"username": "ann", "password": b"a"}
    for asked, told in ((3_600, 60), (0xFFFF_FFFF, 60), (60, None), (10, None)):
        with RawClient(gateway.port) as client:
            answer = client.connect("ann:cap", clean=False, expiry=asked, **login)
            assert answer.properties.session_expiry == told
            # MQTT5 3.14.2.2.2: a client that leaves may ask for more, and does not get it.
            client.send(Disconnect(properties=Properties(session_expiry=3_600)))
        wait_until(lambda: ends_within(gateway, "ann:cap"))
    with RawClient(gateway.port, version=V3) as old:
        assert old.connect("ann:old", clean=False, **login).reason == 0
    wait_until(lambda: ends_within(gateway, "ann:old"))
    assert is_at_broker(broker, "ann:old")


def ends_within(gateway: GatewayThread, name: str, seconds: int = 61) -> bool:
    """Say whether the store forgets a session in so many seconds."""
    with Database.open(gateway.config.store.connection_url()) as database:
        later = Sessions(database, clock=lambda: utc_now() + timedelta(seconds=seconds))
        return later.owner(name) is None


def test_who_gives_up_while_connecting_leaves_nothing_at_the_broker(
    gateway: GatewayThread, broker: MosquittoServer
) -> None:
    """Whoever sends a CONNECT and is gone at once is not counted: nor must the broker keep it."""
    for number in range(40):
        packet = connect(f"ann:gone-{number}")
        with socket.create_connection(("127.0.0.1", gateway.port)) as client:
            client.sendall(packet.encode(V5))
            time.sleep(number / 2_000)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: not gateway.do(lambda: set(gateway.gateway.clients.connections)))
    gateway.call(gateway.gateway.session_writer.finish)
    at_broker = sum(is_at_broker(broker, f"ann:gone-{number}") for number in range(40))
    assert at_broker <= left(gateway) <= 3


def test_gateways_of_one_store_count_together(broker: MosquittoServer, tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    common = share(tmp_path)
    with (
        run_gateway(tmp_path / "one", broker.port, chosen, **common) as one,
        run_gateway(tmp_path / "two", broker.port, chosen, **common) as two,
    ):
        clients = [RawClient(it.port) for _ in range(6) for it in (one, two)]
        for number, client in enumerate(clients):
            client.send(connect(f"ann:{number}"))
        reasons = [client.expect(Connack).reason for client in clients]
        assert sorted(reasons) == [0] * 3 + [ReasonCode.QUOTA_EXCEEDED] * 9
        for client in clients:
            client.vanish()
        refused = [number for number, reason in enumerate(reasons) if reason]
        assert not any(is_at_broker(broker, f"ann:{number}") for number in refused)


def test_what_a_killed_gateway_held_does_not_stay_for_ever(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    process = make_process(tmp_path, broker.port, settings(tmp_path))
    with process, RawClient(process.port) as client:
        client.connect("ann", expiry=60, username="ann", password=b"a")
        process.kill()
    with Database.open(process.config.store.connection_url()) as database:
        assert Sessions(database).count().kept == 1
        two_days = Sessions(database, clock=lambda: utc_now() + timedelta(days=2))
        assert two_days.count().kept == 0
        assert two_days.sweep() == 1


def test_status_tells_how_many_are_kept(gateway: GatewayThread, tmp_path: Path) -> None:
    folder = tmp_path / "g"
    for name in ("ann", "ann:1"):
        keep(gateway.port, name)
    keep(gateway.port, "bob", "bob")
    told = json.loads(run_command(folder, "status", "--json").stdout)
    assert told["sessions"] == {
        "kept": 3,
        "owners": 2,
        "most": 2,
        "per_user": 3,
        "per_address": 2,
    }
    shown = " ".join(run_command(folder, "status", env={"COLUMNS": "200"}).stdout.split())
    assert "sessions: 3 kept, of 2 users or addresses, at most 2 of one" in shown
    assert "ann" not in shown.replace("cannot", "")
