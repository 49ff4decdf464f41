"""How processes run and report: `supervisor`, `log`, `monitor`, and `pipeline` with its Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from penstock.config.secrets import KeyFile, Secret
from penstock.config.settings import (
    Conflict,
    DataPath,
    Duration,
    Host,
    Port,
    Settings,
    TypeLabel,
    setting,
)


class SupervisorSettings(Settings):
    """How `penstock up` starts, restarts and stops the parts."""

    ready_timeout: Annotated[Duration, Field(gt=0, le=3600)] = setting(
        "30s", "How long a part may take to become ready."
    )
    grace: Annotated[Duration, Field(ge=0, le=3600)] = setting(
        "10s", "How long a part may take to stop before it is killed."
    )
    backoff: Annotated[Duration, Field(gt=0, le=3600)] = setting(
        "500ms", "The wait before the first restart; it doubles each time."
    )
    backoff_limit: Annotated[Duration, Field(gt=0, le=3600)] = setting(
        "30s", "The longest wait before a restart."
    )
    failures: Annotated[int, Field(ge=1, le=1000)] = setting(
        5, "So many failures within the window, and the part is given up."
    )
    window: Annotated[Duration, Field(gt=0, le=86400)] = setting(
        "1m", "The window in which failures are counted."
    )

    def conflicts(self) -> Iterator[Conflict]:
        """Yield a limit below its start."""
        if self.backoff_limit < self.backoff:
            yield Conflict(
                "backoff_limit", "the longest wait is shorter than the first", "raise it to backoff"
            )


class LogSettings(Settings):
    """What the processes say on standard error."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "The least important lines that are written."
    )
    format: Literal["auto", "json", "console"] = setting(
        "auto",
        "One JSON object per line, lines for people, or whichever fits the place they go to.",
    )


class MonitorSettings(Settings):
    """Where `penstock up` answers /metrics, /healthz and /readyz."""

    enabled: bool = setting(default=True, description="Whether it listens at all.")
    host: Host = setting("127.0.0.1", "The address it listens on.")
    port: Port = setting(9464, "The port it listens on; 0 takes a free one.")


Memory = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,5}[mg]$"), TypeLabel("a size", "such as 2g")]
Master = Annotated[
    str, Field(min_length=1, max_length=1000, pattern=r"^\S+$"), TypeLabel("a master")
]


class PipelineSettings(Settings):
    """Where Spark runs, and where streams and views are kept."""

    master: Master = setting(
        "local[2]",
        "The Spark master: local[2] for two cores of this machine, spark://HOST:7077, yarn, "
        "or k8s://https://HOST:PORT.",
    )
    secret: Secret | None = setting(
        None,
        "The secret that master, workers and driver of a standalone cluster share "
        "(`spark.authenticate.secret`). Elsewhere Spark makes one for each application.",
        examples=("{file: keys/spark-secret}", "{env: SPARK_SECRET}"),
    )
    memory: Memory = setting("2g", "The memory of the driver, in m or g.")
    executor_memory: Memory = setting("1g", "The memory of each executor on a cluster.")
    event_log: DataPath = setting(
        "eventlog", "The folder of the embedded event log; on a cluster, one that all nodes see."
    )
    folder: DataPath = setting(
        "views",
        "The folder of what views have published, with their checkpoints; on a cluster, one "
        "that all nodes see.",
    )
    key: KeyFile = setting(
        "keys/masks.key",
        "The file of the key behind pseudonyms, substitutes and noise; created if missing.",
    )
    batch: Annotated[int, Field(ge=1, le=10_000_000)] = setting(
        100_000, "The most records that are read together."
    )
    interval: Annotated[Duration, Field(ge=0, le=3600)] = setting(
        "1s", "How often new records are looked for."
    )
    monitor_port: Port = setting(
        9466,
        "Where `penstock views run` answers /metrics, /healthz and /readyz, at the host of "
        "`monitor`; 0 takes a free one.",
    )
