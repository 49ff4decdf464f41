"""Runs a worker until it is stopped, with metrics and health: `penstock requests work`.

    worker ──▶ services, teams, people
       └─────▶ /metrics, /healthz, /readyz

Rules that hold here:
- Ready means: the store can be read, and a round ended. A service out of reach does not make a
  worker unready: it is told again, and a restart would not help.
- A store that fails for a while is tried again; what was accepted is in it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.config import Config
from penstock.errors import UnavailableError
from penstock.rights.worker import RightsWorker
from penstock.store.rights.requests import RequestBook
from penstock.telemetry import Endpoint, Health, gauge, get_logger

OPEN: Final = gauge(
    "penstock_rights_open", "Services that still have to do their part of a privacy request."
).plain
DEAD: Final = gauge(
    "penstock_rights_dead_letters", "Services that failed a privacy request, to be redriven."
).plain
LONGEST_WAIT: Final = 30.0
COUNT_SECONDS: Final = 10.0

_log = get_logger("rights")


def run_worker(
    config: Config,
    book: RequestBook,
    worker: RightsWorker,
    stop: threading.Event,
    *,
    once: bool = False,
) -> None:
    """Work on what is due, and answer probes, until `stop` is set; `once`: until nothing is."""
    if once:
        while worker.run_once():
            pass
        return
    ended = threading.Event()
    with _endpoint(config, make_health(book, ended)):
        wait, counted = config.rights.poll, 0.0
        while not stop.is_set():
            try:
                worker.run_once()
                if time.monotonic() - counted > COUNT_SECONDS:
                    counted = time.monotonic()
                    still, dead = book.compliance.totals()
                    OPEN.set(still)
                    DEAD.set(dead)
                wait = config.rights.poll
                ended.set()
            except UnavailableError:
                wait = min(2 * wait, LONGEST_WAIT)
                _log.warning("the store is not available", delay_s=wait)
            stop.wait(wait)


def make_health(book: RequestBook, ended: threading.Event) -> Health:
    """Make the checks of a worker."""
    health = Health()

    def check_store() -> str | None:
        book.show("")
        return None

    def check_round() -> str | None:
        return None if ended.is_set() else "no round has ended yet"

    health.register("store", check_store)
    health.register("round", check_round)
    return health


@contextmanager
def _endpoint(config: Config, health: Health) -> Iterator[None]:
    if not config.monitor.enabled:
        yield
        return
    with Endpoint(health, host=config.monitor.host, port=config.rights.monitor_port) as endpoint:
        _log.info("answering probes", port=endpoint.port)
        yield
