"""Runs a detection as records come, and ends in order.

Rules that hold here:
- Where records happen when they arrive, time passes without them: what is due is detected
  `GRACE` later, since a record that is on its way still counts as of its arrival. Where
  records tell their own time, only they let it pass.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from penstock.config import Config
from penstock.config.sections.pipeline import PipelineSettings
from penstock.definitions import DefinitionSet
from penstock.pipeline.detection.plan import DetectionPlan
from penstock.pipeline.detection.runner import DetectionRunner
from penstock.pipeline.records.schema_registry import RegistrySchemas
from penstock.pipeline.sources.stream_sources import open_source
from penstock.telemetry import get_logger

GRACE: Final = 10_000
"""How long a record may be on its way from its arrival to the log, in milliseconds."""

_log = get_logger("pipeline")


def results_folder(settings: PipelineSettings, stream: str) -> Path:
    """Return where results of a stream's detection are kept."""
    return settings.folder / ".detection" / stream


def open_detection(
    config: Config, spark: SparkSession, definitions: DefinitionSet, stream: str
) -> DetectionRunner:
    """Return the detection of a stream, ready to take in records."""
    settings = config.pipeline
    plan = DetectionPlan.find(definitions, stream)
    kafka = plan.stream.source.kafka if plan.stream.source else None
    runner = DetectionRunner(
        spark,
        plan,
        open_source(plan.stream, settings, config.kafka),
        results_folder(settings, stream),
        rows=settings.batch,
        find_schema=RegistrySchemas(kafka.registry) if kafka and kafka.registry else None,
    )
    runner.open()
    return runner


def run_detection(runner: DetectionRunner, interval: float, told: threading.Event) -> None:
    """Take in records as they come, until told to end."""
    _log.info("detecting events", stream=runner.plan.stream.name)
    by_arrival = runner.plan.stream.time is None
    while not told.is_set():
        runner.catch_up()
        if by_arrival:
            runner.advance(time.time_ns() // 1_000_000 - GRACE)
        told.wait(interval)
    _log.info("detection has ended", stream=runner.plan.stream.name)
