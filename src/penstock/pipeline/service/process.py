"""Runs the views of an installation under watch, and ends in order.

    manager (its lock, its queries) ◀── observer ──▶ /metrics, /healthz, /readyz

Rules that hold here:
- Ready means: this process runs the views, Spark answers, and the definitions can be read. A
  view that failed does not make it unready: the others run, and `penstock views list` and
  `penstock_view_failures_total` tell.
- Alive means: Spark is not gone. A restart is what would help.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from penstock.config import Config
from penstock.definitions import DefinitionSet
from penstock.eventlog import EventLog
from penstock.pipeline.service.manager import Manager
from penstock.pipeline.service.metrics import Observer
from penstock.telemetry import Endpoint, Health, get_logger
from penstock.telemetry.health import Figures

_log = get_logger("pipeline")


def run_until_told(
    config: Config,
    spark: SparkSession,
    manager: Manager,
    definitions: Callable[[], DefinitionSet],
    told: threading.Event,
    confirmed: Callable[[], Figures] | None = None,
) -> None:
    """Run views, and answer how they are, until told to end.

    `confirmed` tells the newest epoch that the store has confirmed, and its age.
    """
    observer = Observer(manager.control, EventLog(config.pipeline.event_log), definitions)
    ended = threading.Event()
    watching = threading.Thread(target=observer.run, args=(ended,), name="observer", daemon=True)
    with _endpoint(config, make_health(spark, manager, definitions, confirmed)):
        watching.start()
        _log.info("the pipeline runs")
        try:
            manager.run(told)
        finally:
            ended.set()
            watching.join()
            _log.info("the pipeline has ended")


def make_health(
    spark: SparkSession,
    manager: Manager,
    definitions: Callable[[], DefinitionSet],
    confirmed: Callable[[], Figures] | None = None,
) -> Health:
    """Make the checks of the pipeline."""
    health = Health()

    def check_spark() -> str | None:
        context = spark.sparkContext._jsc  # noqa: SLF001 - there is no public way to ask
        return "Spark has stopped" if context is None or context.sc().isStopped() else None

    def check_definitions() -> str | None:
        definitions()
        return None

    def check_manager() -> str | None:
        if not manager.runs.is_set():
            return "the views are not run by this process yet"
        return manager.trouble

    health.register("spark", check_spark, liveness=True)
    health.register("definitions", check_definitions, details=confirmed)
    health.register("views", check_manager)
    return health


@contextmanager
def _endpoint(config: Config, health: Health) -> Iterator[None]:
    if not config.monitor.enabled:
        yield
        return
    port = config.pipeline.monitor_port
    with Endpoint(health, host=config.monitor.host, port=port) as endpoint:
        _log.info("answering probes", port=endpoint.port)
        yield
