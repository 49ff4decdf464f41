"""The servers that tests and demos stand on really start, serve and stop."""

from __future__ import annotations

import os
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from penstock.components import MosquittoServer, PostgresServer
from penstock.components.mosquitto import GATEWAY_USER
from penstock.components.processes import accepts


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.needs("mosquitto")
def test_mosquitto_serves_until_the_block_ends(tmp_path: Path) -> None:
    with MosquittoServer(tmp_path) as broker:
        assert accepts(broker.port)
        pid = broker.pid
    assert not accepts(broker.port)
    assert not _alive(pid)


@pytest.mark.needs("mosquitto")
@pytest.mark.parametrize(("password", "code"), [("right", 0), ("wrong", 0x87), (None, 0x87)])
def test_mosquitto_lets_nobody_in_without_the_password(
    tmp_path: Path, password: str | None, code: int
) -> None:
    with MosquittoServer(tmp_path, password="right") as broker:  # noqa: S106 - made up here
        client = mqtt.Client(CallbackAPIVersion.VERSION2)
        if password:
            client.username_pw_set(GATEWAY_USER, password)
        answers: list[int] = []
        client.on_connect = lambda _c, _u, _f, reason, _p: answers.append(reason.value)
        client.connect("127.0.0.1", broker.port)
        for _ in range(50):
            client.loop(0.1)
            if answers:
                break
        client.disconnect()
    assert answers[:1] == [code]


@pytest.mark.needs("postgresql")
def test_postgresql_keeps_what_was_committed_when_it_is_killed() -> None:
    import psycopg  # noqa: PLC0415

    server = PostgresServer()
    with server:
        url = server.url.replace("+psycopg", "")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept (value int)")
            connection.execute("INSERT INTO kept VALUES (42)")
        server.kill()
        assert not accepts(server.port)
        server.start()
        with psycopg.connect(url) as connection:
            row = connection.execute("SELECT value FROM kept").fetchone()
    assert row == (42,)
