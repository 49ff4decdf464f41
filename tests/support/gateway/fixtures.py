"""Fixtures for tests against a real broker: one broker and one open gateway per module.

A module whose marks include `BROKERS` runs before each of the brokers.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from penstock.components import MosquittoServer
from tests.support.gateway.clients import Make, make_clients
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.gateway.hivemq import HiveMqServer

BROKERS = pytest.mark.parametrize(
    "broker",
    [
        pytest.param(MosquittoServer, id="mosquitto", marks=pytest.mark.needs("mosquitto")),
        pytest.param(HiveMqServer, id="hivemq", marks=pytest.mark.needs("java", "hivemq")),
    ],
    indirect=True,
    scope="module",
)

AnyBroker = MosquittoServer | HiveMqServer


@pytest.fixture(scope="module")
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AnyBroker]:
    kind: type[AnyBroker] = getattr(request, "param", MosquittoServer)
    with kind(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(broker: AnyBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayThread]:
    with run_gateway(tmp_path_factory.mktemp("gateway"), broker.port) as running:
        yield running


@pytest.fixture
def make(gateway: GatewayThread) -> Iterator[Make]:
    """Make connected clients that end with the test."""
    yield from make_clients(gateway.port)


@pytest.fixture
def topic() -> str:
    """Give a topic that no other test uses."""
    return f"t/{uuid.uuid4().hex[:12]}"
