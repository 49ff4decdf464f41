"""Who is let in: passwords, certificates, the broker's word, client identifiers, transports."""

from __future__ import annotations

import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidHandshake
from websockets.sync.client import connect as connect_websocket

from penstock.components import MosquittoServer, find, processes
from penstock.model.document import Document
from penstock.mqtt import (
    V3,
    V5,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Reader,
    ReasonCode,
    RequestedSubscription,
    Sender,
    Suback,
    Subscribe,
)
from tests.support.gateway.certificates import Authority
from tests.support.gateway.clients import VERSIONS
from tests.support.gateway.definitions import apply
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient
from tests.support.gateway.tokens import TokenIssuer
from tests.support.store.installation import until

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)


@pytest.fixture(scope="module")
def guarded(
    broker: MosquittoServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayThread]:
    folder = tmp_path_factory.mktemp("guarded")
    path = write_passwords(
        folder / "passwords",
        {"alice": "right", "bob": "other", "carol": "c"},
        {"bob": "sensor-*,gauge", "carol": "sensor-*"},
    )
    settings = {"authentication": {"passwords": str(path)}}
    with run_gateway(folder / "g", broker.port, settings) as running:
        yield running


def answer(gateway: GatewayThread, client_id: str, version: int = V5, **login: Any) -> Connack:
    with RawClient(gateway.port, version=version) as client:
        return client.connect(client_id, **login)


@VERSIONS
def test_passwords_decide(guarded: GatewayThread, version: int) -> None:
    cases = {
        ("alice", b"right"): 0,
        ("alice", b"wrong"): ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ("nobody", b"right"): ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ("alice", b""): ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ("anonymous", b"right"): ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ("alice", b"right" * 1000): ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    }
    for _ in range(2):  # a password that was right is remembered, a wrong one never counts
        for (name, password), expected in cases.items():
            got = answer(guarded, name, version, username=name, password=password)
            assert got.reason == expected, (name, password)
    assert answer(guarded, "x", version).reason == ReasonCode.NOT_AUTHORIZED


def test_client_identifiers_belong_to_users(guarded: GatewayThread) -> None:
    taken = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    for name, password, client_id, expected in (
        ("alice", b"right", "alice", 0),
        ("alice", b"right", "alice:phone", 0),
        ("alice", b"right", "alicex", taken),
        ("alice", b"right", "bob", taken),
        ("bob", b"other", "sensor-7", 0),
        ("bob", b"other", "gauge", 0),
        ("bob", b"other", "gauge2", taken),
    ):
        got = answer(guarded, client_id, username=name, password=password)
        assert got.reason == expected, client_id
    assigned = answer(guarded, "", username="alice", password=b"right")
    assert str(assigned.properties.assigned_client_id).startswith("alice:")


def test_a_takeover_by_another_user_is_refused(guarded: GatewayThread) -> None:
    with RawClient(guarded.port) as bob:
        assert not bob.connect("sensor-1", username="bob", password=b"other").reason
        got = answer(guarded, "sensor-1", username="carol", password=b"c")
        assert got.reason == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        bob.settle()


def test_a_stored_session_of_another_user_is_refused(guarded: GatewayThread) -> None:
    with RawClient(guarded.port) as bob:
        bob.connect("sensor-2", clean=False, expiry=300, username="bob", password=b"other")
        bob.subscribe("a/b")
    got = answer(guarded, "sensor-2", username="carol", password=b"c")
    assert got.reason == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID


def test_authentication_methods_are_refused(guarded: GatewayThread) -> None:
    got = answer(guarded, "x", authentication_method="SCRAM")
    assert got.reason == ReasonCode.BAD_AUTHENTICATION_METHOD


def test_the_broker_decides_where_it_is_asked(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    passwords = folder / "passwords"
    passwords.touch(mode=0o600)
    for name, password in (("dora", "secret"), ("emil", "other")):
        subprocess.run(
            ["mosquitto_passwd", "-b", str(passwords), name, password],
            check=True,
            capture_output=True,
        )
    port = processes.free_port()
    configuration = folder / "mosquitto.conf"
    configuration.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous false\npassword_file {passwords}\nuser root\n"
    )
    program = find("mosquitto").path
    broker = processes.start(
        [str(program), "-c", str(configuration)],
        log=folder / "log",
        ready=lambda: processes.accepts(port),
    )
    try:
        settings = {"authentication": {"relay": True}}
        with run_gateway(tmp_path / "g", port, settings) as gateway:
            assert answer(gateway, "dora", username="dora", password=b"secret").reason == 0
            got = answer(gateway, "dora", username="dora", password=b"wrong")
            assert got.reason in {
                ReasonCode.NOT_AUTHORIZED,
                ReasonCode.BAD_USER_NAME_OR_PASSWORD,
            }
            got = answer(gateway, "meter-17", username="dora", password=b"secret")
            assert got.reason == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        chosen: dict[str, Any] = {"authentication": {"relay": True, "client_ids": "any"}}
        with run_gateway(tmp_path / "any", port, chosen) as gateway:
            named = Document("right", "r", {"subjects": ["client:pump-7"], "reserve": ["#"]})
            apply(gateway.config, [named])
            rules = gateway.running.gateway.rules
            until(lambda: "pump-7" in gateway.do(rules.named_clients))
            with RawClient(gateway.port) as meter:
                assert meter.connect("meter-17", username="dora", password=b"secret").reason == 0
                for taken in ("meter-17", "pump-7"):
                    got = answer(gateway, taken, username="emil", password=b"other")
                    assert got.reason == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, taken
                assert meter.publish("a", b"still there", qos=1).reason in {0, 0x10}
    finally:
        processes.stop(broker)


# --- tokens ---


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> TokenIssuer:
    return TokenIssuer(tmp_path_factory.mktemp("issuer") / "keys.json")


@contextmanager
def published(issuer: TokenIssuer) -> Iterator[str]:
    """Answer the keys of an issuer over HTTP."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(HTTPStatus.OK)
            self.end_headers()
            self.wfile.write(issuer.published)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/keys"
        server.shutdown()


def test_a_token_is_a_password_until_its_end(
    broker: MosquittoServer, tmp_path: Path, issuer: TokenIssuer, topic: str
) -> None:
    passwords = write_passwords(tmp_path / "passwords", {"alice": "right"})
    tokens = {"keys": str(issuer.path), "issuer": "https://login.example", "audience": "penstock"}
    login = {"passwords": str(passwords), "tokens": {**tokens, "leeway": "0s"}}
    with run_gateway(tmp_path / "g", broker.port, {"authentication": login}) as gateway:
        token = issuer.issue("dora").encode()
        for name in ("dora", None):
            assert answer(gateway, "dora:1", username=name, password=token).reason == 0
        assert answer(gateway, "dora", V3, username="dora", password=token).reason == 0
        for name, given in (
            ("alice", token),
            ("dora", issuer.issue("dora", aud="other").encode()),
            ("dora", issuer.issue("dora", exp=1).encode()),
            ("dora", token[:-4] + b"AAAA"),
            (None, issuer.issue("anonymous").encode()),
        ):
            got = answer(gateway, "dora", username=name, password=given)
            assert got.reason == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        got = answer(gateway, "alice", username="dora", password=token)
        assert got.reason == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        assert answer(gateway, "alice", username="alice", password=b"right").reason == 0
        short = issuer.issue("dora", exp=int(time.time()) + 3).encode()
        with RawClient(gateway.port) as dora:
            assert dora.connect("dora", username="dora", password=short).reason == 0
            assert dora.publish(topic, b"x", qos=1).reason in {0, 0x10}
            assert dora.expect(Disconnect, timeout=30).reason == ReasonCode.NOT_AUTHORIZED


def test_keys_of_tokens_are_fetched_and_may_change(broker: MosquittoServer, tmp_path: Path) -> None:
    issuer = TokenIssuer(tmp_path / "keys.json")
    with published(issuer) as url:
        tokens = {"url": url, "issuer": "https://login.example", "audience": "penstock"}
        settings = {"authentication": {"tokens": tokens}}
        with run_gateway(tmp_path / "g", broker.port, settings) as gateway:
            old = issuer.issue("dora").encode()
            assert answer(gateway, "dora", username="dora", password=old).reason == 0
            issuer.rotate("second")
            new = issuer.issue("dora").encode()
            until(
                lambda: answer(gateway, "dora", username="dora", password=new).reason == 0,
                "the new key",
            )
            got = answer(gateway, "dora", username="dora", password=old)
            assert got.reason == ReasonCode.BAD_USER_NAME_OR_PASSWORD


# --- TLS ---


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def encrypted(
    broker: MosquittoServer, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayThread]:
    certificate, key = authority.issue("server")
    files = {"certificate": str(certificate), "key": str(key)}
    listeners = {
        "mutual": {"port": 0, "transport": "tls", "client_ca": str(authority.path), **files},
        "plain": {"port": 0, "transport": "tls", **files},
        "web": {"port": 0, "transport": "websocket-tls", **files},
        "bare": {"port": 0, "transport": "websocket", "path": "/here"},
    }
    folder = tmp_path_factory.mktemp("encrypted")
    with run_gateway(folder, broker.port, {"listeners": listeners}) as running:
        yield running


def secure(client: RawClient, authority: Authority, name: str | None) -> RawClient:
    context = ssl.create_default_context(cafile=str(authority.path))
    if name is not None:
        context.load_cert_chain(*map(str, authority.issue(name)))
    client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")
    return client


def test_a_client_certificate_names_its_user(
    encrypted: GatewayThread, authority: Authority, topic: str
) -> None:
    port = encrypted.running.port("mutual")
    with secure(RawClient(port), authority, "erin") as erin:
        assert erin.connect("erin").reason == 0
        erin.subscribe(topic)
        erin.publish(topic, b"x" * 100_000, qos=1)
        assert [len(it.payload) for it in erin.messages(1)] == [100_000]
    with secure(RawClient(port), authority, "frank") as frank:
        assert frank.connect("erin").reason == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID


def test_no_certificate_or_a_foreign_one_is_no_entrance(
    encrypted: GatewayThread, authority: Authority, tmp_path: Path
) -> None:
    port = encrypted.running.port("mutual")
    foreign = Authority(tmp_path / "foreign")
    context = ssl.create_default_context(cafile=str(authority.path))
    for name in (None, "mallory"):
        if name is not None:
            context.load_cert_chain(*map(str, foreign.issue(name)))
        client = RawClient(port)
        with pytest.raises((ssl.SSLError, OSError)):  # noqa: PT012 (TLS 1.3 tells it late)
            client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")
            client.send(Connect("x"))
            if not client.socket.recv(16):
                raise OSError("closed")
        client.vanish()


def test_tls_without_client_certificates(encrypted: GatewayThread, authority: Authority) -> None:
    with secure(RawClient(encrypted.running.port("plain")), authority, None) as client:
        assert client.connect("anonymous:x").reason == 0
    with secure(RawClient(encrypted.running.port("plain")), authority, None) as client:
        # Where certificates name users, any other identifier could be one of theirs.
        assert client.connect("erin").reason == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID


# --- WebSocket ---


def test_mqtt_over_websocket_in_any_cut(encrypted: GatewayThread, topic: str) -> None:
    address = f"ws://127.0.0.1:{encrypted.running.port('bare')}/here"
    with connect_websocket(address, subprotocols=["mqtt"], compression=None) as web:  # type: ignore[list-item]
        assert web.subprotocol == "mqtt"
        reader = Reader(Sender.SERVER, version=V5)
        request = (
            Connect("anonymous:web").encode()
            + Subscribe(1, (RequestedSubscription(topic, 1),)).encode(V5)
            + Publish.of(topic, b"hello", qos=1, packet_id=2).encode(V5)
        )
        for start in range(0, len(request), 3):
            web.send(request[start : start + 3])
        seen: list[object] = []
        while not any(isinstance(it, Publish) for it in seen):
            data = web.recv(timeout=5)
            assert isinstance(data, bytes)
            reader.feed(data)
            while batch := reader.packets():
                seen += batch
        assert {type(it) for it in seen} >= {Connack, Suback, Publish}


def test_websocket_and_tls(encrypted: GatewayThread, authority: Authority) -> None:
    context = ssl.create_default_context(cafile=str(authority.path))
    address = f"wss://127.0.0.1:{encrypted.running.port('web')}/mqtt"
    with connect_websocket(address, ssl=context, subprotocols=["mqtt"]) as web:  # type: ignore[list-item]
        web.send(Connect("anonymous:web-tls").encode())
        data = web.recv(timeout=5)
        assert isinstance(data, bytes)
        assert (data[0], data[3]) == (0x20, 0)


def test_other_websockets_are_refused(encrypted: GatewayThread) -> None:
    port = encrypted.running.port("bare")
    for address, protocols in (
        (f"ws://127.0.0.1:{port}/elsewhere", ["mqtt"]),
        (f"ws://127.0.0.1:{port}/here", ["chat"]),
        (f"ws://127.0.0.1:{port}/here", None),
    ):
        with pytest.raises(InvalidHandshake), connect_websocket(address, subprotocols=protocols):  # type: ignore[arg-type]
            pass


def test_text_frames_end_the_connection(encrypted: GatewayThread) -> None:
    address = f"ws://127.0.0.1:{encrypted.running.port('bare')}/here"
    with connect_websocket(address, subprotocols=["mqtt"]) as web:  # type: ignore[list-item]
        web.send("hello")
        with pytest.raises(Exception, match="1003"):
            web.recv(timeout=5)


def test_plain_http_gets_an_answer(encrypted: GatewayThread) -> None:
    client = RawClient(encrypted.running.port("bare"), version=V3)
    client.send_bytes(b"GET /here HTTP/1.1\r\nHost: x\r\n\r\n")
    assert client.socket.recv(64).startswith(b"HTTP/1.1 426")
    client.vanish()


def test_a_broker_that_is_away_is_said_so(tmp_path: Path) -> None:
    with run_gateway(tmp_path, processes.free_port()) as gateway:
        assert answer(gateway, "x").reason == ReasonCode.SERVER_UNAVAILABLE
        assert answer(gateway, "x", V3).reason == ReasonCode.SERVER_UNAVAILABLE
        assert gateway.running.health.readiness().failing.keys() == {"broker"}


def test_draining_tells_clients(broker: MosquittoServer, tmp_path: Path) -> None:
    with run_gateway(tmp_path, broker.port) as gateway:
        client = RawClient(gateway.port)
        client.connect("drained")
        gateway.stop()
        assert client.expect(Disconnect).reason == ReasonCode.SERVER_SHUTTING_DOWN
        client.wait_closed()
