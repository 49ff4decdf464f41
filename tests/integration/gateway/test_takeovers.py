"""One client identifier on several gateways: alternately, at once, and with a slow store."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.components import MosquittoServer
from penstock.gateway.connection.client_connection import ClientConnection
from penstock.mqtt import Connack, Connect, Properties
from tests.support.gateway.harness import GatewayThread, run_gateway, share
from tests.support.gateway.raw import ClosedError, RawClient
from tests.support.scale import scaled

pytestmark = pytest.mark.needs("mosquitto")

NAME = "moves"
ROUNDS = scaled(20)
SOON = 60.0


@pytest.fixture(params=[4, 0], ids=["lanes", "no lanes"])
def pair(
    request: pytest.FixtureRequest, mosquitto: MosquittoServer, tmp_path: Path
) -> Iterator[list[GatewayThread]]:
    lanes = {"lanes": request.param}
    with (
        run_gateway(tmp_path / "one", mosquitto.port, lanes, **share(tmp_path)) as one,
        run_gateway(tmp_path / "two", mosquitto.port, lanes, **share(tmp_path)) as two,
    ):
        yield [one, two]


def holders(pair: list[GatewayThread]) -> list[tuple[GatewayThread, ClientConnection]]:
    """Return the open connections of the client."""
    found = [(it, it.do(lambda it=it: it.gateway.clients.get(NAME))) for it in pair]  # type: ignore[misc]
    return [(it, client) for it, client in found if client is not None and client.open]


def settle(pair: list[GatewayThread]) -> tuple[GatewayThread, ClientConnection]:
    """Wait until one connection has the session, here and in the store."""
    deadline = time.monotonic() + SOON
    while True:
        found = holders(pair)
        if len(found) == 1:
            owner = pair[0].gateway.sessions.owner(NAME)
            if owner is not None and owner.holder == found[0][1].session.holder:
                return found[0]
        assert time.monotonic() < deadline, [it.session.holder for _, it in found]
        time.sleep(0.02)


def check_agreement(pair: list[GatewayThread], granted: set[str]) -> None:
    """Check that who has the session knows what the store knows, and all that was granted."""
    gateway, client = settle(pair)
    stored = gateway.gateway.sessions.load(NAME)
    assert stored is not None
    known = gateway.do(
        lambda: {(number, it.text, it.ap) for number, it in dict(client.session.by_number).items()}
    )
    assert known == {(it.number, it.filter, it.purpose) for it in stored.subscriptions}
    assert granted <= {it.filter for it in stored.subscriptions}


def test_a_client_that_alternates_keeps_all_it_has(
    pair: list[GatewayThread], mosquitto: MosquittoServer
) -> None:
    granted: set[str] = set()
    client = RawClient(pair[0].port)
    for turn in range(10):
        # Half of the connections before it are still there when the next one comes.
        if turn % 2:
            client.vanish()
        client = RawClient(pair[turn % 2].port)
        present = client.connect(NAME, clean=False, expiry=600).session_present
        assert present == bool(turn)
        assert not client.subscribe(f"!AP/f/{turn}{{mine}}").reasons[0] & 0x80
        granted.add(f"f/{turn}")
        check_agreement(pair, granted)
    with RawClient(mosquitto.port) as behind:
        behind.connect("behind")
        for turn in range(10):
            behind.publish(f"f/{turn}", b"x", qos=1)
        assert sorted(client.texts(10)) == sorted((it, b"x") for it in granted)
    client.close()


class Rival(threading.Thread):
    """Connects once, and subscribes to a filter of its own where it gets in."""

    def __init__(self, port: int, text: str, barrier: threading.Barrier, *, clean: bool) -> None:
        super().__init__(daemon=True)
        self.client = RawClient(port)
        self.text = text
        self.barrier = barrier
        self.clean = clean
        self.granted = False

    def run(self) -> None:
        self.barrier.wait(SOON)
        with suppress(ClosedError, OSError):
            self.client.send(
                Connect(NAME, clean_start=self.clean, properties=Properties(session_expiry=600))
            )
            if not self.client.expect(Connack, SOON).reason:
                answer = self.client.subscribe(f"!AP/{self.text}{{mine}}")
                self.granted = answer.reasons[0] < 0x80


def keep_busy(gateway: GatewayThread, seconds: float) -> None:
    """Let a gateway wait for its store now and then."""

    async def block() -> None:
        for _ in range(4):
            gateway.gateway.background.start(
                gateway.gateway.background.run_in_thread(time.sleep, seconds)
            )

    gateway.call(block)


@pytest.mark.parametrize("clean", [False, True], ids=["resume", "one begins anew"])
def test_two_that_come_at_once_leave_one_session_that_all_agree_on(
    pair: list[GatewayThread], mosquitto: MosquittoServer, *, clean: bool
) -> None:
    chance = random.Random(7)
    granted: set[str] = set()
    clients: list[RawClient] = []
    for turn in range(ROUNDS):
        barrier = threading.Barrier(2)
        rivals = [
            Rival(it.port, f"f/{turn}/{n}", barrier, clean=clean and not n)
            for n, it in enumerate(pair)
        ]
        keep_busy(chance.choice(pair), chance.uniform(0, 0.03))
        for rival in rivals:
            rival.start()
        for rival in rivals:
            rival.join(SOON)
            assert not rival.is_alive()
        granted |= {rival.text for rival in rivals if rival.granted}
        # Who begins anew forgets what was granted before.
        check_agreement(pair, set() if clean else granted)
        clients += [rival.client for rival in rivals]
    gateway, _ = settle(pair)
    stored = gateway.gateway.sessions.load(NAME)
    assert stored is not None
    with RawClient(mosquitto.port) as behind:
        behind.connect("behind")
        for it in stored.subscriptions:
            behind.publish(it.filter, b"x", qos=1)
    got = [topic for client in clients for topic, _ in client.texts()]
    assert len(got) == len(set(got))
    # One that was stored and lost its connection then was never acknowledged to the client.
    assert set(got) <= {it.filter for it in stored.subscriptions}
    assert got if clean else granted <= set(got)
    for client in clients:
        client.close()
