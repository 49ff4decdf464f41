"""Whoever connects to a leader without being a follower, through real sockets."""

from __future__ import annotations

import asyncio
import socket

import pytest

from penstock.gateway.replication.link import MAX_STRANGERS
from tests.support.gateway.replication import LONG, Detector, Record, make_follower, run, until


def open_from(address: str, port: int) -> socket.socket:
    it = socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(address, 0))
    it.settimeout(0)
    return it


def is_open(it: socket.socket) -> bool:
    """Say whether the leader has not closed a connection; what it said is read."""
    try:
        return bool(it.recv(1_024)) and is_open(it)
    except BlockingIOError:
        return True
    except OSError:
        return False


@pytest.mark.parametrize("address", ["127.0.0.2", "127.0.0.1"])
def test_silent_strangers_are_few_and_keep_no_follower_out(address: str) -> None:
    async def work() -> None:
        detector = Detector(Record())
        await detector.start()
        detector.leader.lead(None)
        strangers = []
        for _ in range(4 * MAX_STRANGERS):
            strangers.append(open_from(address, detector.port))
            await asyncio.sleep(0)
        await until(lambda: sum(map(is_open, strangers)) <= MAX_STRANGERS // 2)
        follower, _, _ = make_follower()
        joined = ""
        # One from the same address has to wait until the oldest has had its time.
        for _ in range(100):
            joined = await follower.join(f"127.0.0.1:{detector.port}", LONG)
            if not joined:
                break
            await asyncio.sleep(0.05)
        assert joined == ""
        follower.leave("the test ends")
        detector.kill()
        for it in strangers:
            it.close()

    run(work, sockets=True)


def test_their_refusal_is_logged_once_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        detector = Detector(Record())
        await detector.start()
        for _ in range(200):
            it = open_from("127.0.0.1", detector.port)
            it.sendall(b"x" * 100)
            await until(lambda it=it: not is_open(it))  # type: ignore[misc]
            it.close()
        detector.kill()

    run(work, sockets=True)
    lines = [it for it in capsys.readouterr().err.splitlines() if "were refused" in it]
    assert 0 < len(lines) < 50
