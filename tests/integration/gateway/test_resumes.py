"""A broker that has forgotten a session, or does not let it be taken up again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.mqtt import V5, ReasonCode
from tests.support.gateway.clients import VERSIONS
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")

NAME = "reader"


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[MosquittoServer]:
    """Give a broker that keeps nothing over a restart."""
    with MosquittoServer(tmp_path / "forgetful", persistent=False) as server:
        yield server


def kept(version: int) -> dict[str, Any]:
    return {"clean": False, **({"expiry": 600} if version == V5 else {})}


def stored(gateway: GatewayThread) -> list[tuple[str, str | None]]:
    session = gateway.gateway.sessions.load(NAME)
    assert session is not None
    return sorted((it.filter, it.purpose) for it in session.subscriptions)


def leave_with_subscriptions(gateway: GatewayThread, version: int) -> None:
    with RawClient(gateway.port, version=version) as reader:
        assert not reader.connect(NAME, **kept(version)).session_present
        reader.subscribe("!AP/a/HASH{mine}", "!AP/b/HASH{mine}")
    assert stored(gateway) == [("a/#", "mine"), ("b/#", "mine")]


def restart(broker: MosquittoServer, *, password: str | None = None) -> None:
    broker.stop()
    broker.password = password
    broker.start()


@VERSIONS
def test_a_session_that_the_broker_has_forgotten_begins_anew(
    forgetful: MosquittoServer, tmp_path: Path, version: int
) -> None:
    """The client is told so, and no purpose of before is left."""
    with run_gateway(tmp_path / "g", forgetful.port) as gateway:
        leave_with_subscriptions(gateway, version)
        restart(forgetful)
        with RawClient(gateway.port, version=version) as back, RawClient(gateway.port) as writer:
            assert not back.connect(NAME, **kept(version)).session_present
            assert stored(gateway) == []
            writer.connect("writer")
            writer.publish("!RESERVE/a/HASH{mine}", qos=1)
            writer.publish("a/1", b"nobody subscribed", qos=1)
            assert back.texts() == []
            # Plainly now: what this filter stood for before must not let it pass.
            back.subscribe("a/#", "!AP/b/HASH{other}")
            writer.publish("a/2", b"not a purpose", qos=1)
            writer.publish("b/2", b"free", qos=1)
            assert back.texts(1) == [("b/2", b"free")]
            assert stored(gateway) == [("a/#", None), ("b/#", "other")]


@VERSIONS
def test_a_broker_that_refuses_to_resume_leaves_the_session_as_it_was(
    mosquitto: MosquittoServer, tmp_path: Path, version: int
) -> None:
    with run_gateway(tmp_path / "g", mosquitto.port) as gateway:
        leave_with_subscriptions(gateway, version)
        owner = gateway.gateway.sessions.owner(NAME)
        with RawClient(gateway.port) as writer:
            writer.connect("writer")
            writer.publish("a/1", b"queued", qos=1)
            writer.publish("!RESERVE/b/HASH{other}", qos=1)
            writer.publish("b/1", b"forbidden", qos=1)
        # From now on the broker wants a password that the gateway does not have.
        restart(mosquitto, password="secret")  # noqa: S106 (of this test alone)
        for _ in range(2):
            with RawClient(gateway.port, version=version) as refused:
                answer = refused.connect(NAME, **kept(version))
                assert answer.reason == ReasonCode.SERVER_UNAVAILABLE
                refused.wait_closed()
        assert gateway.gateway.sessions.owner(NAME) == owner
        assert stored(gateway) == [("a/#", "mine"), ("b/#", "mine")]
        restart(mosquitto)
        with RawClient(gateway.port, version=version) as back:
            assert back.connect(NAME, **kept(version)).session_present
            assert back.texts(1) == [("a/1", b"queued")]
