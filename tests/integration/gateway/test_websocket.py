"""WebSocket peers: which web pages may connect, and what a peer can make the gateway keep."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_websocket

from penstock.components import MosquittoServer, processes
from penstock.mqtt import V5, Connack, Connect, Reader, Sender
from penstock.telemetry import metrics
from tests.support.gateway.harness import GatewayProcess, GatewayThread, make_process, run_gateway

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

LISTED = "https://ward.example.org"
HEAD = (
    "GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Protocol: mqtt\r\n"
)


@pytest.fixture(scope="module")
def gateway(
    broker: MosquittoServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayThread]:
    listeners = {
        "usual": {"port": 0, "transport": "websocket"},
        "listed": {"port": 0, "transport": "websocket", "origins": [LISTED]},
        "open": {"port": 0, "transport": "websocket", "origins": ["*"]},
    }
    folder = tmp_path_factory.mktemp("web")
    with run_gateway(folder, broker.port, {"listeners": listeners}) as running:
        yield running


@pytest.fixture
def process(broker: MosquittoServer, tmp_path: Path) -> Iterator[GatewayProcess]:
    """Give a gateway of its own process, so that its memory can be looked at."""
    port = processes.free_port()
    settings = {"listeners": {"web": {"port": port, "transport": "websocket"}}}
    gateway = make_process(tmp_path, broker.port, settings)
    gateway.port = port
    with gateway:
        yield gateway


# --- origins ---


def dial(gateway: GatewayThread, name: str, origin: str | None) -> ClientConnection:
    port = gateway.running.port(name)
    return connect_websocket(
        f"ws://127.0.0.1:{port}/mqtt",
        origin=origin.replace("PORT", str(port)) if origin else None,  # type: ignore[arg-type]
        subprotocols=["mqtt"],  # type: ignore[list-item]
    )


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("usual", "https://evil.example.org"),
        ("usual", "null"),
        ("usual", "http://127.0.0.1"),
        ("usual", "https://127.0.0.1:PORT"),
        ("listed", "https://ward.example.org.evil.example"),
        ("listed", "http://ward.example.org"),
    ],
)
def test_a_page_of_a_foreign_origin_is_refused(
    gateway: GatewayThread, name: str, origin: str
) -> None:
    before = _counted("origin")
    with pytest.raises(InvalidStatus) as caught:
        dial(gateway, name, origin)
    assert caught.value.response.status_code == 403
    assert b"origins" in (caught.value.response.body or b"")
    assert _counted("origin") == before + 1


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("usual", None),
        ("usual", "http://127.0.0.1:PORT"),
        ("listed", None),
        ("listed", LISTED),
        ("listed", "HTTPS://WARD.example.org"),
        ("open", "https://evil.example.org"),
    ],
)
def test_a_page_that_may_connect_is_served(
    gateway: GatewayThread, name: str, origin: str | None
) -> None:
    with dial(gateway, name, origin) as web:
        web.send(Connect("x").encode(V5))
        reader = Reader(Sender.SERVER, version=V5)
        reader.feed(bytes(web.recv(timeout=10)))  # type: ignore[arg-type]
        (answer,) = reader.packets()
        assert isinstance(answer, Connack)
        assert answer.reason == 0


def test_a_name_that_stands_for_our_address_proves_no_origin(gateway: GatewayThread) -> None:
    """DNS rebinding: the page of evil.example lets its name stand for the gateway."""
    with socket.create_connection(("127.0.0.1", gateway.running.port("usual")), 10) as it:
        it.sendall(
            HEAD.replace("127.0.0.1", "evil.example").encode()
            + b"Origin: http://evil.example\r\n\r\n"
        )
        assert it.recv(64).startswith(b"HTTP/1.1 403")


def _counted(cause: str) -> float:
    name = "penstock_gateway_turned_away_total"
    return float(metrics.REGISTRY.get_sample_value(name, {"cause": cause}) or 0)


# --- what a peer can make the gateway keep ---


def frame(opcode: int, payload: bytes = b"", *, size: int | None = None) -> bytes:
    """Make a masked frame, under a mask of zeros."""
    size = len(payload) if size is None else size
    if size < 126:
        head = struct.pack("!BB", 0x80 | opcode, 0x80 | size)
    elif size < 65_536:
        head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, size)
    return head + bytes(4) + payload


def upgrade(port: int) -> socket.socket:
    """Open a WebSocket by hand."""
    it = socket.create_connection(("127.0.0.1", port), 10)
    it.sendall(HEAD.encode() + b"\r\n")
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += it.recv(1)
    assert answer.startswith(b"HTTP/1.1 101")
    return it


def read_all(it: socket.socket) -> bytes:
    """Read until the gateway closes."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := it.recv(65_536):
            data += piece
    return data


def test_pings_that_are_never_read_are_bounded_and_end_the_connection(
    process: GatewayProcess,
) -> None:
    """Before CONNECT, from peers that read nothing until they are closed."""
    watched = psutil.Process(process.pid)
    before = watched.memory_info().rss
    pings = frame(9, b"p" * 125) * 2_000
    for _ in range(4):
        with upgrade(process.port) as it:
            it.settimeout(10)
            closed = False
            try:
                for _ in range(100):
                    it.sendall(pings)
            except ConnectionError:
                closed = True
            assert closed, "it was read for as long as it sent"
    assert watched.memory_info().rss - before < 30 << 20


def test_too_many_pings_are_told_as_the_reason(gateway: GatewayThread) -> None:
    before = _counted("websocket")
    with upgrade(gateway.running.port("usual")) as it:
        it.sendall(frame(9, b"p" * 100) * 101)
        said = read_all(it)
    assert b"\x03\xf0too many pings" in said  # 1008
    assert said.count(b"\x8a") < 20  # of pings that came together, one is answered
    assert _counted("websocket") == before + 1


def test_pings_now_and_then_are_answered(gateway: GatewayThread) -> None:
    with dial(gateway, "usual", None) as web:
        for _ in range(50):
            assert web.ping().wait(10)


def test_many_frames_before_connect_end_the_connection(gateway: GatewayThread) -> None:
    with upgrade(gateway.running.port("usual")) as it:
        for byte in b"\x10\xff\x03" + bytes(300):
            with contextlib.suppress(ConnectionError):
                it.sendall(frame(2, bytes((byte,))))
        assert b"\x03\xf0too many frames" in read_all(it)


@pytest.mark.parametrize("fragments", [1, 8])
def test_a_large_frame_before_connect_is_not_kept(process: GatewayProcess, fragments: int) -> None:
    """A frame counts when it is whole: what is too large for a CONNECT is refused by its length."""
    watched = psutil.Process(process.pid)
    before = watched.memory_info().rss
    held = []
    size = 1_000_000 // fragments
    for _ in range(80):
        it = upgrade(process.port)
        held.append(it)
        with contextlib.suppress(OSError):
            for number in range(fragments):
                head = bytearray(frame(0 if number else 2, size=size))
                head[0] &= 0x7F
                it.sendall(bytes(head) + bytes(size if number + 1 < fragments else size - 1))
    said = read_all(held[-1])
    # 1009; of fragments the first may pass, and is no CONNECT.
    assert said[:4] == b"\x88" + said[1:2] + (b"\x03\xf1" if fragments == 1 else said[2:4])
    assert watched.memory_info().rss - before < 60 << 20
    for it in held:
        it.close()


def test_a_request_of_endless_headers_is_refused(gateway: GatewayThread) -> None:
    with socket.create_connection(("127.0.0.1", gateway.running.port("usual")), 10) as it:
        with contextlib.suppress(ConnectionError):
            it.sendall(HEAD.encode() + (b"X-Filler: " + b"x" * 4_000 + b"\r\n") * 100)
        assert read_all(it).startswith(b"HTTP/1.1 431")


def test_small_frames_of_a_client_that_is_let_in_arrive_whole(gateway: GatewayThread) -> None:
    """As many as it likes, in bounded steps."""
    with upgrade(gateway.running.port("usual")) as it:
        it.sendall(frame(2, Connect("tiny").encode(V5)))
        it.recv(4_096)
        packets = b"\xc0\x00" * 3_000
        it.sendall(b"".join(frame(2, bytes((byte,))) for byte in packets))
        answers = 0
        while answers < 3_000:
            answers += it.recv(65_536).count(b"\xd0\x00")


def test_a_peer_that_closes_in_the_middle_is_forgotten(gateway: GatewayThread) -> None:
    for data in (b"", b"GET /mq", HEAD.encode() + b"\r\n" + frame(2, b"\x10\x20")):
        with socket.create_connection(("127.0.0.1", gateway.running.port("usual")), 10) as it:
            it.sendall(data)
    with dial(gateway, "usual", None) as web:
        web.send("text")
        with pytest.raises(ConnectionClosed):
            web.recv(timeout=10)
    deadline = time.monotonic() + 10
    while gateway.do(lambda: len(gateway.gateway.arrivals)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert gateway.do(lambda: gateway.gateway.arrivals.held_bytes) == 0
