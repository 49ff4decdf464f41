"""Fixtures for tests against a real broker: one broker and one open gateway per module.

A module whose marks include `BROKERS` runs before each of the brokers. A long run takes all of
them a second time without publish lanes; a normal one those that say so (`run_both_ways`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from penstock.components import MosquittoServer
from tests.support.gateway.clients import Make, make_clients
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.gateway.hivemq import HiveMqServer
from tests.support.scale import is_long

BROKERS = pytest.mark.parametrize(
    "broker",
    [
        pytest.param(MosquittoServer, id="mosquitto", marks=pytest.mark.needs("mosquitto")),
        pytest.param(HiveMqServer, id="hivemq", marks=pytest.mark.needs("java", "hivemq")),
    ],
    indirect=True,
    scope="module",
)

LANES = pytest.mark.parametrize("lanes", [4, 0], ids=["lanes", "no lanes"])
"""With publish lanes, and each client on its own connection to the broker."""

AnyBroker = MosquittoServer | HiveMqServer


def run_both_ways(metafunc: pytest.Metafunc) -> None:
    """Run a module with publish lanes and without: let it be its `pytest_generate_tests`."""
    if "gateway" in metafunc.fixturenames and not is_long():
        ways = {"lanes": 4, "no lanes": 0}
        metafunc.parametrize("gateway", ways.values(), ids=ways, indirect=True, scope="module")


@pytest.fixture(scope="module")
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AnyBroker]:
    kind: type[AnyBroker] = getattr(request, "param", MosquittoServer)
    with kind(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture(scope="module", params=[4, 0] if is_long() else None)
def gateway(
    request: pytest.FixtureRequest, broker: AnyBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayThread]:
    settings = {"lanes": getattr(request, "param", 4)}
    with run_gateway(tmp_path_factory.mktemp("gateway"), broker.port, settings) as running:
        yield running


@pytest.fixture
def make(gateway: GatewayThread) -> Iterator[Make]:
    """Make connected clients that end with the test."""
    yield from make_clients(gateway.port)


@pytest.fixture
def topic() -> str:
    """Give a topic that no other test uses."""
    return f"t/{uuid.uuid4().hex[:12]}"
