"""Fixtures for tests against a real broker: one broker and one open gateway per module."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.mqtt import V3, V5
from tests.gateway.harness import GatewayThread, run_gateway
from tests.gateway.raw import RawClient

Make = Callable[..., RawClient]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MosquittoServer]:
    with MosquittoServer(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(
    broker: MosquittoServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayThread]:
    with run_gateway(tmp_path_factory.mktemp("gateway"), broker.port) as running:
        yield running


@pytest.fixture
def make(gateway: GatewayThread) -> Iterator[Make]:
    """Make connected clients that end with the test."""
    yield from make_clients(gateway.port)


def make_clients(port: int) -> Iterator[Make]:
    made: list[RawClient] = []

    def connect(client_id: str = "", *, version: int = V5, **options: Any) -> RawClient:
        answers = options.pop("answers", True)
        client = RawClient(port, version=version, answers=answers)
        made.append(client)
        accepted = client.connect(client_id or f"c-{uuid.uuid4().hex[:12]}", **options)
        assert not accepted.reason, accepted
        return client

    yield connect
    for client in made:
        client.close()


@pytest.fixture
def topic() -> str:
    """Give a topic that no other test uses."""
    return f"t/{uuid.uuid4().hex[:12]}"


VERSIONS = pytest.mark.parametrize("version", [V3, V5], ids=["v3", "v5"])
