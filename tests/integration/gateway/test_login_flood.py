"""Peers that nobody has let in: they cannot keep others out, nor fill the gateway's memory."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from argon2 import PasswordHasher

from penstock.components import MosquittoServer, processes
from penstock.mqtt import V5, Connack, Connect, Publish, ReasonCode
from tests.support.gateway.certificates import Authority
from tests.support.gateway.flood import Flood, wrong_logins
from tests.support.gateway.harness import GatewayProcess, make_process
from tests.support.gateway.passwords import broker_with_passwords
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

FLOOD = 160
COLD = 6
WAIT = 30.0
HERE = "127.0.0.1"
OTHERS = tuple(f"127.0.0.{number}" for number in range(2, 10))


@pytest.fixture(scope="module")
def hashed() -> str:
    """Hash the right password, as costly to check as those of users."""
    return PasswordHasher().hash("right")


@pytest.fixture
def guarded(broker: MosquittoServer, hashed: str, tmp_path: Path) -> Iterator[GatewayProcess]:
    names = ["alice", *(f"cold-{number}" for number in range(COLD))]
    path = tmp_path / "passwords"
    path.touch(mode=0o600)
    path.write_text("".join(f"{name}:{hashed}\n" for name in names))
    settings = {"authentication": {"passwords": str(path)}}
    with make_process(tmp_path / "g", broker.port, settings) as process:
        yield process


def log_in(port: int, name: str) -> int:
    """Log in with the right password; return the reason code."""
    with RawClient(port, address=HERE) as client:
        client.send(Connect(name, username=name, password=b"right"))
        return client.expect(Connack, WAIT).reason


@pytest.mark.parametrize(
    ("names", "addresses"),
    [
        pytest.param(("alice",), OTHERS, id="the-same-user-from-elsewhere"),
        pytest.param((), OTHERS, id="new-names-from-elsewhere"),
        pytest.param((), (HERE,), id="new-names-from-the-same-address"),
        pytest.param(("alice", "mallory"), (HERE,), id="others-from-the-same-address"),
    ],
)
def test_a_right_password_gets_in_while_wrong_ones_flood(
    guarded: GatewayProcess, names: tuple[str, ...], addresses: tuple[str, ...]
) -> None:
    """None of them has logged in before, so that each password has to be checked."""
    with Flood(guarded.port, FLOOD, wrong_logins(*names), *addresses):
        got = [log_in(guarded.port, f"cold-{number}") for number in range(COLD)]
        if HERE not in addresses:
            # Nor is a user locked out whose name is tried elsewhere.
            got.append(log_in(guarded.port, "alice"))
    assert set(got) == {0}


def test_who_hangs_up_during_its_check_is_slowed_down_as_well(guarded: GatewayProcess) -> None:
    """Else guesses would cost the gateway more than the one who guesses."""
    make = wrong_logins("alice")
    for _ in range(40):
        with RawClient(guarded.port, address=HERE) as client:
            client.send_bytes(make())
    assert log_in(guarded.port, "cold-0") == 0


def test_a_wrong_password_is_told_as_such_and_then_as_busy(guarded: GatewayProcess) -> None:
    """Of one name from one address so many wait at a time; what is more is told at once."""
    make = wrong_logins("alice")
    with RawClient(guarded.port, address=HERE) as client:
        client.send_bytes(make())
        assert client.expect(Connack, WAIT).reason == ReasonCode.BAD_USER_NAME_OR_PASSWORD
    waiting = [RawClient(guarded.port, address=HERE) for _ in range(140)]
    for client in waiting:
        client.send_bytes(make())
    assert waiting[-1].expect(Connack, WAIT).reason == ReasonCode.SERVER_BUSY
    assert log_in(guarded.port, "cold-0") == 0
    for client in waiting:
        client.vanish()


def test_where_the_broker_checks_passwords_it_is_asked_turn_by_turn(tmp_path: Path) -> None:
    """The flood reaches the broker slower and slower, and a right password in between."""
    with broker_with_passwords(tmp_path / "m") as port:
        settings = {"authentication": {"relay": True}}
        with (
            make_process(tmp_path / "g", port, settings) as gateway,
            Flood(gateway.port, FLOOD, wrong_logins("dora"), *OTHERS),
        ):
            for _ in range(20):
                with RawClient(gateway.port, address=HERE) as client:
                    client.send(Connect("dora", username="dora", password=b"secret"))
                    assert client.expect(Connack, WAIT).reason == 0
        asked = (tmp_path / "m" / "log").read_text().count("not authorised")
    # Of each address those that were under way when the first was wrong, then few.
    assert 0 < asked < 3 * FLOOD


# --- memory ---


def grown(pid: int, work: Callable[[], None]) -> int:
    """Return by how many bytes a process grew while something was done."""
    process = psutil.Process(pid)
    before = process.memory_info().rss
    work()
    return int(process.memory_info().rss) - before


def hold(port: int, count: int, data: bytes) -> None:
    """Open connections, send each the same, and keep them for a moment."""
    held: list[RawClient] = []
    try:
        for _ in range(count):
            with contextlib.suppress(OSError):
                client = RawClient(port)
                held.append(client)
                client.socket.settimeout(0.2)
                client.socket.sendall(data)
        with contextlib.suppress(OSError, TimeoutError):
            RawClient(port).connect("x")  # what was sent before is here now
    finally:
        for client in held:
            client.vanish()


def test_a_connect_without_end_is_not_kept(guarded: GatewayProcess) -> None:
    size = 1_000_000
    head = b"\x10" + bytes((size & 127 | 128, size >> 7 & 127 | 128, size >> 14))
    data = head + b"\x00\x04MQTT\x05" + bytes(900_000)
    assert grown(guarded.pid, lambda: hold(guarded.port, 150, data)) < 60 << 20


def test_connects_that_never_end_are_bounded_together(guarded: GatewayProcess) -> None:
    """Each is small enough by itself."""
    size = 131_000
    head = b"\x10" + bytes((size & 127 | 128, size >> 7 & 127 | 128, size >> 14))
    data = head + b"\x00\x04MQTT\x05" + bytes(130_000)
    assert grown(guarded.pid, lambda: hold(guarded.port, 900, data)) < 80 << 20


def test_packets_behind_a_connect_are_not_read_before_it_is_answered(
    guarded: GatewayProcess,
) -> None:
    """Small packets become large objects: nobody gets them made without a password."""
    behind = Publish.of("a").encode(V5) * 30_000

    def attack() -> None:
        hold(guarded.port, 60, wrong_logins()() + behind)

    assert grown(guarded.pid, attack) < 80 << 20


# --- before TLS ---


@pytest.fixture
def encrypted(broker: MosquittoServer, tmp_path: Path) -> Iterator[tuple[GatewayProcess, Path]]:
    """Give a gateway with TLS and few places, and the file of its authority."""
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.issue("server")
    port = processes.free_port()
    listener = {
        "port": port,
        "transport": "tls",
        "certificate": str(certificate),
        "key": str(key),
    }
    settings = {
        "listeners": {"mqtt": listener},
        "limits": {"handshakes": 20, "connections_per_address": 50},
    }
    process = make_process(tmp_path / "g", broker.port, settings)
    process.port = port
    with process:
        yield process, authority.path


def test_connections_are_limited_before_tls_begins(
    encrypted: tuple[GatewayProcess, Path],
) -> None:
    """Silent ones of some addresses neither pile up nor keep others out."""
    gateway, authority = encrypted
    process = psutil.Process(gateway.pid)
    before = process.num_fds()
    with Flood(gateway.port, 200, lambda: b"", *OTHERS):
        context = ssl.create_default_context(cafile=str(authority))
        for _ in range(20):
            with RawClient(gateway.port, address=HERE) as client:
                client.socket.settimeout(WAIT)
                client.socket = context.wrap_socket(client.socket, server_hostname=HERE)
                assert client.connect("honest").reason == 0
                assert process.num_fds() - before < 40
    assert _eventually(lambda: process.num_fds() <= before + 2)


def test_what_is_no_tls_leaves_nothing_behind(encrypted: tuple[GatewayProcess, Path]) -> None:
    gateway, _ = encrypted
    process = psutil.Process(gateway.pid)
    before = process.num_fds()
    for data in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(100_000), b"\x16\x03\x01\x02\x00\x01"):
        for _ in range(10):
            with contextlib.suppress(OSError), socket.create_connection((HERE, gateway.port)) as it:
                it.sendall(data)
    assert _eventually(lambda: process.num_fds() <= before)


def _eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
