import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import UnavailableError
from penstock.telemetry import Endpoint, Health, endpoint


@pytest.fixture
def served() -> Iterator[Endpoint]:
    with Endpoint(Health()) as running:
        yield running


def ask(running: Endpoint, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def ask_json(running: Endpoint, path: str) -> tuple[int, Any]:
    status, body = ask(running, path)
    return status, json.loads(body)


def test_metrics(served: Endpoint) -> None:
    status, body = ask(served, "/metrics")
    assert status == 200
    assert b"penstock_log_withheld_total" in body
    assert b"process_resident_memory_bytes" in body


def test_live_and_not_yet_ready(served: Endpoint) -> None:
    assert ask_json(served, "/healthz") == (200, {"ok": True, "checks": ["process"], "failing": {}})
    assert ask_json(served, "/readyz")[0] == 503
    served.health.register("store", lambda: None)
    assert ask_json(served, "/readyz") == (200, {"ok": True, "checks": ["store"], "failing": {}})


def test_readiness_names_what_fails(served: Endpoint) -> None:
    def fail() -> None:
        raise RuntimeError("alice")

    served.health.register("store", lambda: None)
    served.health.register("broker", fail)
    status, found = ask_json(served, "/readyz")
    assert status == 503
    assert found["failing"] == {"broker": "raised RuntimeError"}


def test_readiness_tells_figures(served: Endpoint) -> None:
    served.health.register("store", lambda: None, details=lambda: {"epoch": 3})
    assert ask_json(served, "/readyz")[1]["details"] == {"store": {"epoch": 3}}


def test_other_paths_and_methods(served: Endpoint) -> None:
    assert ask(served, "/../etc/passwd")[0] == 404
    assert ask(served, "/metrics", "POST")[0] == 501
    assert ask(served, "/healthz", "HEAD") == (200, b"")


def test_it_listens_on_loopback_by_itself(served: Endpoint) -> None:
    assert served.url == f"http://127.0.0.1:{served.port}"
    assert served._server is not None
    assert served._server.socket.getsockname()[0] == "127.0.0.1"


def test_where_there_are_too_many_the_oldest_is_closed_and_the_newest_answered(
    served: Endpoint,
) -> None:
    address = ("127.0.0.1", served.port)
    held = [socket.create_connection(address) for _ in range(endpoint.CONNECTIONS_LIMIT)]
    try:
        for one in held:
            one.sendall(b"GET /healthz HTTP/1.1\r\n")  # and never an end of it
        assert ask(served, "/healthz")[0] == 200
        held[0].settimeout(10)
        assert held[0].recv(1) == b""
        held[-1].sendall(b"\r\n")
        held[-1].settimeout(10)
        assert held[-1].recv(8) == b"HTTP/1.0"
    finally:
        for one in held:
            one.close()


def test_figures_are_rendered_a_few_times_a_second_however_often_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rendered = 0

    def render() -> bytes:
        nonlocal rendered
        rendered += 1
        return b"figures"

    monkeypatch.setattr(endpoint, "FRESH_SECONDS", 3_600.0)
    with endpoint.Endpoint(Health(), render=render) as asked:
        assert {ask(asked, "/metrics") for _ in range(50)} == {(200, b"figures")}
    assert rendered == 1


def test_threads_are_bounded_even_while_checks_hang(served: Endpoint) -> None:
    ended = threading.Event()
    served.health.register("slow", lambda: str(ended.wait(10)), timeout=4)
    asked = []
    try:
        for _ in range(endpoint.THREADS_LIMIT + 20):
            one = socket.create_connection(("127.0.0.1", served.port), timeout=10)
            asked.append(one)
            one.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        names = [it.name for it in threading.enumerate()]
        assert names.count("telemetry-answer") <= endpoint.THREADS_LIMIT
    finally:
        ended.set()
        for one in asked:
            one.close()


def test_a_slow_asker_is_cut_off(monkeypatch: pytest.MonkeyPatch, served: Endpoint) -> None:
    monkeypatch.setattr(endpoint, "SECONDS_LIMIT", 0.2)
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        assert slow.recv(1) == b""


def test_a_port_in_use_is_named(served: Endpoint) -> None:
    with pytest.raises(UnavailableError, match=f"port {served.port}"):
        Endpoint(Health(), port=served.port).start()


def test_it_stops() -> None:
    running = Endpoint(Health())
    running.start()
    port = running.port
    running.stop()
    running.stop()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=2)
