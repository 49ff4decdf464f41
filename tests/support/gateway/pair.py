"""Two gateways of the ward on one store, for tests of what they share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from penstock.components import MosquittoServer
from penstock.config import Config
from penstock.mqtt import Publish
from penstock.mqtt.codes import FAILURE
from penstock.policy.access.emergencies import SituationsUnknownError
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.database import Database
from penstock.store.detection.situations import Situations
from tests.support.gateway.harness import (
    GatewayProcess,
    GatewayThread,
    make_process,
    run_gateway,
    share,
)
from tests.support.gateway.raw import RawClient
from tests.support.gateway.ward import WARD, define, settings

LONG: Final = 60.0


def wait_until(holds: Callable[[], object], seconds: float = LONG) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


@contextmanager
def pair(
    folder: Path,
    broker: MosquittoServer,
    *,
    lease: str = "300s",
    window: str = "1h",
    **sections: Any,
) -> Iterator[tuple[GatewayProcess, GatewayThread]]:
    """Run two gateways on one store: the first one detects, and can be killed."""
    common = share(folder) | sections
    chosen = settings(folder / "one", lease=lease)
    first = make_process(folder / "one", broker.port, chosen, **common)
    define(first.config, WARD.replace("WINDOW", window))
    with first:
        chosen = settings(folder / "two", lease=lease)
        with run_gateway(folder / "two", broker.port, chosen, **common) as second:
            wait_until(lambda: joined(second))
            yield first, second


def joined(gateway: GatewayThread) -> bool:
    return gateway.do(lambda: gateway.gateway.emergencies.detection.follower.joined)


def detects(gateway: GatewayThread) -> bool:
    return gateway.do(gateway.gateway.emergencies.detection.is_alive)


def look(gateway: GatewayThread, patient: str, scenario: str = "alert") -> str | None:
    board = gateway.gateway.emergencies.detection.board
    return gateway.do(lambda: board.current(scenario, patient))


def current(gateway: GatewayThread, patient: str, scenario: str = "alert") -> str | None:
    """Return a situation as soon as it is known: the machine may be too busy for a moment."""
    found: list[str | None] = []

    def know() -> bool:
        try:
            found.append(look(gateway, patient, scenario))
        except SituationsUnknownError:
            return False
        return True

    wait_until(know)
    return found[-1]


@contextmanager
def open_situations(config: Config) -> Iterator[Situations]:
    with Database.open(config.store.connection_url()) as database:
        log = AuditLog.open(database, config.audit.signing_key)
        yield Situations(database, log, Pseudonyms.open(config.audit.pseudonym_key))
        log.close()


def publish(client: RawClient, topic: str, payload: bytes = b"{}") -> None:
    """Publish, however long a hand-over takes; it has to be acknowledged."""
    packet_id = client.next_id()
    client.send(publication(topic, payload, packet_id))
    assert client.expect_answer(packet_id, LONG).reason < FAILURE


def publication(topic: str, payload: bytes, packet_id: int) -> Publish:
    return Publish.of(topic, payload, qos=1, packet_id=packet_id)
