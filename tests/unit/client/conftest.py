from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.components import MosquittoServer
from tests.support.mqtt.tap import Tap


@pytest.fixture
def tap(mosquitto: MosquittoServer) -> Iterator[Tap]:
    line = Tap(mosquitto.port)
    yield line
    line.close()
