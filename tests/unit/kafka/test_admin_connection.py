"""What answers at an address and is not a Kafka broker is told so, at once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.config.brokers import KafkaSettings
from penstock.config.secrets import SecretVariable
from penstock.errors import UnavailableError
from penstock.kafka.admin_connection import AdminConnection


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def settings(*ports: int, timeout: float = 5) -> KafkaSettings:
    return KafkaSettings(
        bootstrap=",".join(f"127.0.0.1:{port}" for port in ports),
        security="sasl_plaintext",
        password=SecretVariable("KAFKA_TEST_PASSWORD"),
        timeout=timeout,
    )


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_TEST_PASSWORD", "secret")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not a Kafka broker"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "not a Kafka broker"),
        (b"", "broke off"),
        (b"\0\0\0\x04", "broke off"),
        (b"\0\0\0\x04\0\0\0\x09", "not a Kafka broker"),
        (b"\0\0\0\x05\0\0\0\x01\0", "broke off"),
        (b"\0\0\0\x06\0\0\0\x01\0\x21", "does not let 'admin' in: it does not know that way"),
        (b"\0\0\0\x06\0\0\0\x01\x7f\xff", "error 32767"),
    ],
)
def test_strange_answers(answer: bytes, said: str) -> None:
    with answering(answer) as port, pytest.raises(UnavailableError, match=said):
        AdminConnection.open(settings(port))


def test_all_brokers_that_cannot_be_reached_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    with pytest.raises(UnavailableError, match=f"127.0.0.1:{free}: Connection refused; 127") as why:
        AdminConnection.open(settings(free, free))
    assert "kafka.bootstrap" in str(why.value)


def test_a_broker_that_is_silent_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{port} does not answer"):
            AdminConnection.open(settings(port, timeout=1))
