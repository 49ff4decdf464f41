"""`pipeline`: Spark, which turns streams into their views."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from penstock.config.quantities import Duration
from penstock.config.secrets import KeyFile
from penstock.config.settings import DataPath, Kind, Port, Settings, setting

Memory = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,5}[mg]$"), Kind("a size", "such as 2g")]
Master = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^\S+$"), Kind("a master")]


class PipelineSettings(Settings):
    """Where Spark runs, and where streams and views are kept."""

    master: Master = setting(
        "local[2]",
        "The Spark master: local[2] for two cores of this machine, spark://HOST:7077, yarn, "
        "or k8s://https://HOST:PORT.",
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
