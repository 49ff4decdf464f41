"""Clients for tests: made, connected, and closed again."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.mqtt import V3, V5
from tests.support.gateway.raw import RawClient

Make = Callable[..., RawClient]
VERSIONS = pytest.mark.parametrize("version", [V3, V5], ids=["v3", "v5"])


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
