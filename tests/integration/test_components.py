"""The servers that tests and demos stand on really start, serve and stop."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.components import MosquittoServer, PostgresServer
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
