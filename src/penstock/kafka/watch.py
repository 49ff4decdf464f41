"""Runs the reconciler until it is stopped, with metrics and health.

    definitions ──▶ reconciler ──▶ cluster
                        │
                        └──▶ /metrics, /healthz, /readyz

Rules that hold here:
- Ready means: the store can be read, and the cluster was tried. A cluster out of reach does
  not make it unready, for it will be tried again and a restart would not help:
  `penstock_kafka_behind` and `penstock rbac diff` show it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from penstock.config import Config
from penstock.errors import PenstockError
from penstock.kafka.reconciler import Reconciler, ReconcileResult
from penstock.telemetry import Endpoint, Health, counter, gauge, get_logger

EPOCH: Final = gauge("penstock_kafka_epoch", "The epoch of the definitions that Kafka has.").plain
BEHIND: Final = gauge(
    "penstock_kafka_behind", "1 while Kafka could not be given what the definitions say, else 0."
).plain
FAILURES: Final = counter(
    "penstock_kafka_failures", "Attempts to bring Kafka up to date that failed."
).plain
ACLS: Final = counter(
    "penstock_kafka_acls", "ACLs of users changed at Kafka.", change=("put", "removed")
)
USERS: Final = counter(
    "penstock_kafka_users", "Logins of users changed at Kafka.", change=("put", "removed")
)

_log = get_logger("kafka")


def run_watch(
    config: Config,
    reconciler: Reconciler,
    stop: threading.Event,
    on_done: Callable[[ReconcileResult], None] | None = None,
) -> None:
    """Reconcile with every change of definitions, and answer probes, until `stop` is set."""
    tried = threading.Event()

    def note_done(done: ReconcileResult) -> None:
        EPOCH.set(done.epoch)
        BEHIND.set(0)
        for metric, change, count in (
            (ACLS, "put", done.put),
            (ACLS, "removed", done.removed),
            (USERS, "put", done.users_put),
            (USERS, "removed", done.users_removed),
        ):
            metric[change].inc(count)
        tried.set()
        if on_done is not None:
            on_done(done)

    def note_failure(_: PenstockError) -> None:
        BEHIND.set(1)
        FAILURES.inc()
        tried.set()

    with _endpoint(config, make_health(reconciler, tried)):
        reconciler.watch(stop, note_done, note_failure)


def make_health(reconciler: Reconciler, tried: threading.Event) -> Health:
    """Make the checks of the watch."""
    health = Health()

    def check_store() -> str | None:
        reconciler.progress()
        return None

    def check_kafka() -> str | None:
        return None if tried.is_set() else "Kafka was not tried yet"

    health.register("store", check_store, details=reconciler.confirmed)
    health.register("kafka", check_kafka)
    return health


@contextmanager
def _endpoint(config: Config, health: Health) -> Iterator[None]:
    if not config.monitor.enabled:
        yield
        return
    with Endpoint(health, host=config.monitor.host, port=config.kafka.monitor_port) as endpoint:
        _log.info("answering probes", port=endpoint.port)
        yield
