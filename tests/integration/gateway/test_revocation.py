"""Users that are removed or blocked: their connections end, at every gateway."""

from __future__ import annotations

import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer, find, processes
from penstock.config import Config
from penstock.model.document import Document, Key
from penstock.mqtt import V3, V5, Connack, Connect, Disconnect, ReasonCode, Will
from penstock.store.audit.reader import read_last
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from tests.support.gateway.certificates import Authority
from tests.support.gateway.clients import VERSIONS
from tests.support.gateway.harness import GatewayThread, make_process, run_gateway, share
from tests.support.gateway.pair import wait_until
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")

USERS = {"ann": "a", "bob": "b"}


@pytest.fixture
def passwords(tmp_path: Path) -> Path:
    return write_passwords(tmp_path / "passwords", USERS, {"ann": "sensor-*"})


def rewrite(path: Path, users: dict[str, str], patterns: dict[str, str] | None = None) -> None:
    """Put another file in the place of this one, as editors do."""
    made = write_passwords(path.with_suffix(".new"), users, patterns)
    made.replace(path)


@pytest.fixture
def gateway(mosquitto: MosquittoServer, tmp_path: Path, passwords: Path) -> Iterator[GatewayThread]:
    settings = {"authentication": {"passwords": str(passwords), "anonymous": True}}
    store = {"lease": "2s"}
    with run_gateway(tmp_path / "g", mosquitto.port, settings, store=store) as running:
        yield running


def login(port: int, user: str, client: str = "", version: int = V5, **options: Any) -> RawClient:
    made = RawClient(port, version=version)
    answer = made.connect(client or user, username=user, password=USERS[user].encode(), **options)
    assert not answer.reason, answer
    return made


def change(config: Config, *documents: Document, delete: tuple[Key, ...] = ()) -> None:
    with Database.open(config.store.connection_url()) as database:
        checked = CheckedDefinitions(Definitions(database))
        if documents:
            checked.apply(documents, actor="test")
        if delete:
            checked.delete(delete, actor="test")


def expect_closed(client: RawClient) -> None:
    """Wait until the gateway has closed a connection, with the reason where it can be told."""
    if client.version == V5:
        assert client.expect(Disconnect).reason == ReasonCode.NOT_AUTHORIZED
    client.wait_closed()


@VERSIONS
def test_a_user_that_is_removed_from_the_file_is_closed(
    gateway: GatewayThread, passwords: Path, version: int
) -> None:
    ann = [login(gateway.port, "ann", f"ann:{it}", version) for it in range(3)]
    bob = login(gateway.port, "bob", version=version)
    nobody = RawClient(gateway.port, version=version)
    nobody.connect("anything")
    rewrite(passwords, {"bob": "b"})
    # The line of bob has another hash as well: he has to log in again.
    for client in (*ann, bob):
        expect_closed(client)
    nobody.settle()
    with RawClient(gateway.port, version=version) as again:
        refused = again.connect("ann", username="ann", password=b"a").reason
        assert refused == ReasonCode.BAD_USER_NAME_OR_PASSWORD
    login(gateway.port, "bob", version=version).close()
    nobody.close()


def test_those_whose_lines_are_unchanged_stay(gateway: GatewayThread, passwords: Path) -> None:
    with login(gateway.port, "ann") as ann, login(gateway.port, "bob") as bob:
        lines = passwords.read_text().splitlines(keepends=True)
        passwords.write_text("".join(it for it in lines if it.startswith("bob:")))
        expect_closed(ann)
        bob.settle()


def test_the_will_of_a_removed_user_is_not_sent_and_nothing_is_inherited(
    gateway: GatewayThread, passwords: Path, mosquitto: MosquittoServer
) -> None:
    with RawClient(gateway.port) as reader:
        reader.connect("reader")
        reader.subscribe("wills/#")
        ann = login(
            gateway.port, "ann", clean=False, expiry=600, will=Will("wills/ann", b"gone", 1)
        )
        ann.subscribe("private", qos=1)
        passwords.write_text(passwords.read_text().replace("ann:", "someone:"))
        expect_closed(ann)
        wait_until(lambda: gateway.gateway.sessions.owner("ann") is None)
        reader.publish("private", b"for the ann of then", qos=1)
        reader.settle()
        assert reader.texts() == []
        rewrite(passwords, {"ann": "a"})
        with RawClient(gateway.port) as another:
            answer = another.connect("ann", clean=False, expiry=600, username="ann", password=b"a")
            assert (answer.reason, answer.session_present) == (0, False)
            assert another.texts() == []


def test_what_a_removed_user_left_behind_is_inherited_by_nobody(
    gateway: GatewayThread, passwords: Path
) -> None:
    """Neither subscriptions nor what waits for them, though nobody was connected."""
    for name in ("ann", "bob"):
        with login(gateway.port, name, clean=False, expiry=600) as left:
            left.subscribe("private", qos=1)
    with RawClient(gateway.port) as publisher:
        publisher.connect("publisher")
        publisher.publish("private", b"for the ann of then", qos=1)
        lines = passwords.read_text()
        passwords.write_text(
            "".join(it for it in lines.splitlines(keepends=True) if "ann" not in it)
        )
        wait_until(lambda: gateway.gateway.sessions.owner("ann") is None)
        passwords.write_text(lines)
        with RawClient(gateway.port) as another:
            answer = another.connect("ann", clean=False, expiry=600, username="ann", password=b"a")
            assert answer.reason == 0
            publisher.publish("private", b"for nobody", qos=1)
            another.settle()
            assert another.texts() == []
        with RawClient(gateway.port) as bob:
            answer = bob.connect("bob", clean=False, expiry=600, username="bob", password=b"b")
            assert (answer.reason, answer.session_present) == (0, True)
            assert len(bob.texts(2)) == 2


def test_a_file_that_is_half_written_ends_no_session_that_was_left(
    gateway: GatewayThread, passwords: Path
) -> None:
    login(gateway.port, "ann", clean=False, expiry=600).close()
    revocation, lines = gateway.gateway.revocation, passwords.read_text()
    passwords.write_text("")
    wait_until(lambda: "ann" in revocation._gone)
    passwords.write_text(lines)
    wait_until(lambda: "ann" not in revocation._gone)
    assert gateway.gateway.sessions.owner("ann") is not None


def test_a_changed_password_asks_for_another_login_and_keeps_the_session(
    gateway: GatewayThread, passwords: Path
) -> None:
    with login(gateway.port, "ann", clean=False, expiry=600) as ann:
        ann.subscribe("kept", qos=1)
        rewrite(passwords, {**USERS, "ann": "new"})
        expect_closed(ann)
    with RawClient(gateway.port) as again:
        answer = again.connect("ann", clean=False, expiry=600, username="ann", password=b"new")
        assert (answer.reason, answer.session_present) == (0, True)


def test_client_identifiers_that_are_no_longer_theirs_are_closed(
    gateway: GatewayThread, passwords: Path
) -> None:
    """Those of a user whose patterns shrink, and those of nobody that are somebody's now."""
    with (
        login(gateway.port, "ann", "sensor-1") as sensor,
        login(gateway.port, "ann", "ann:1") as ann,
        RawClient(gateway.port) as nobody,
    ):
        nobody.connect("carol")
        passwords.write_text(passwords.read_text().replace(":sensor-*", ""))
        expect_closed(sensor)
        nobody.settle()
        with passwords.open("a") as file:
            file.write("carol:$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$AAAA\n")
        expect_closed(nobody)
        ann.settle()


@pytest.mark.parametrize("how", ["gone", "open to others", "malformed"])
def test_a_file_that_cannot_be_used_lets_nobody_stay_for_long(
    gateway: GatewayThread, passwords: Path, how: str
) -> None:
    with login(gateway.port, "ann") as ann, RawClient(gateway.port) as nobody:
        nobody.connect("anything")
        before = passwords.read_bytes()
        if how == "gone":
            passwords.unlink()
        elif how == "malformed":
            passwords.write_text("ann\n")
        else:
            passwords.write_bytes(before + b"\n")
            passwords.chmod(0o644)
        expect_closed(ann)
        passwords.unlink(missing_ok=True)
        passwords.touch(mode=0o600)
        passwords.write_bytes(before)
        wait_until(lambda: gateway.do(lambda: gateway.gateway.revocation._usable))
        login(gateway.port, "ann").close()


def test_who_logs_in_while_they_are_removed_is_not_let_in(
    gateway: GatewayThread, passwords: Path
) -> None:
    async def keep_busy() -> None:
        for _ in range(8):
            gateway.gateway.background.start(
                gateway.gateway.background.run_in_thread(time.sleep, 1.0)
            )

    login(gateway.port, "ann").close()  # from now on the password is remembered
    gateway.call(keep_busy)
    with RawClient(gateway.port) as ann:
        ann.send(Connect("ann", username="ann", password=b"a"))
        time.sleep(0.3)
        passwords.write_text(passwords.read_text().replace("ann:", "someone:"))
        assert ann.expect(Connack).reason == ReasonCode.NOT_AUTHORIZED


def test_a_blocked_user_is_closed_at_all_gateways_and_kept_out(
    mosquitto: MosquittoServer, tmp_path: Path, passwords: Path
) -> None:
    settings = {"authentication": {"passwords": str(passwords), "anonymous": True}}
    common = share(tmp_path)
    process = make_process(tmp_path / "two", mosquitto.port, settings, **common)
    with (
        run_gateway(tmp_path / "one", mosquitto.port, settings, **common) as one,
        process,
        ExitStack() as stack,
    ):
        ports = (one.port, process.port)
        clients = [
            stack.enter_context(login(port, "ann", f"ann:{port}-{version}", version))
            for port in ports
            for version in (V3, V5)
        ]
        others = [stack.enter_context(login(port, "bob", f"bob:{port}")) for port in ports]
        change(one.config, Document("user", "ann", {"blocked": True}))
        for client in clients:
            expect_closed(client)
        for other in others:
            other.settle()
        for port in ports:
            with RawClient(port) as again:
                answer = again.connect("ann", username="ann", password=b"a")
                assert answer.reason == ReasonCode.BANNED
                assert answer.properties.reason_string == "this user may not connect"
        one.do(one.gateway.tick)
        wait_until(lambda: "connection.revoked" in kinds_on_record(one.config))
        change(one.config, Document("user", "ann", {}))
        wait_until(lambda: not any(map(answers, ports)))


def answers(port: int) -> int:
    with RawClient(port) as client:
        return client.connect("ann", username="ann", password=b"a").reason


def kinds_on_record(config: Config) -> set[str]:
    with Database.open(config.store.connection_url()) as database, database.read() as connection:
        return {it.entry.kind for it in read_last(connection, 50)}


@pytest.mark.parametrize("only", [False, True], ids=["anybody", "defined users only"])
def test_a_user_whose_definition_is_removed_is_closed(
    mosquitto: MosquittoServer, tmp_path: Path, passwords: Path, *, only: bool
) -> None:
    settings = {"authentication": {"passwords": str(passwords), "defined_users": only}}
    with run_gateway(tmp_path / "g", mosquitto.port, settings) as gateway:
        if only:
            assert answers(gateway.port) == ReasonCode.BANNED
        change(gateway.config, Document("user", "ann", {}), Document("user", "bob", {}))
        wait_until(lambda: not answers(gateway.port))
        with login(gateway.port, "ann") as ann, login(gateway.port, "bob") as bob:
            change(gateway.config, delete=(Key("user", "ann"),))
            expect_closed(ann)
            bob.settle()
        assert answers(gateway.port) == (ReasonCode.BANNED if only else 0)
        login(gateway.port, "bob", clean=False, expiry=600).close()
        change(gateway.config, delete=(Key("user", "bob"),))
        gone = gateway.gateway.revocation._gone
        wait_until(lambda: gateway.gateway.rules.epoch == 3 and not gone)
        assert (gateway.gateway.sessions.owner("bob") is None) == only


def test_a_user_of_a_certificate_is_blocked(mosquitto: MosquittoServer, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.issue("server")
    listener = {
        "port": 0,
        "transport": "tls",
        "certificate": str(certificate),
        "key": str(key),
        "client_ca": str(authority.path),
    }
    context = ssl.create_default_context(cafile=str(authority.path))
    context.load_cert_chain(*map(str, authority.issue("erin")))
    settings = {"listeners": {"tls": listener}}
    with run_gateway(tmp_path / "g", mosquitto.port, settings) as gateway:

        def connect() -> RawClient:
            client = RawClient(gateway.port)
            client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")
            return client

        with connect() as erin:
            assert erin.connect("erin").reason == 0
            change(gateway.config, Document("user", "erin", {"blocked": True}))
            expect_closed(erin)
        with connect() as erin:
            assert erin.connect("erin").reason == ReasonCode.BANNED


def test_a_user_of_the_broker_is_blocked(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    users = folder / "passwords"
    users.touch(mode=0o600)
    subprocess.run(
        ["mosquitto_passwd", "-b", str(users), "ann", "a"], check=True, capture_output=True
    )
    port = processes.free_port()
    configuration = folder / "mosquitto.conf"
    configuration.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous false\npassword_file {users}\nuser root\n"
    )
    broker = processes.start(
        [str(find("mosquitto").path), "-c", str(configuration)],
        log=folder / "log",
        ready=lambda: processes.accepts(port),
    )
    try:
        settings = {"authentication": {"relay": True}}
        with run_gateway(tmp_path / "g", port, settings) as gateway:
            with login(gateway.port, "ann") as ann:
                change(gateway.config, Document("user", "ann", {"blocked": True}))
                expect_closed(ann)
            assert answers(gateway.port) == ReasonCode.BANNED
    finally:
        processes.stop(broker)
