"""What every sink of a view can do.

    write ─→ commit ─→ deliver

Rules that hold here:
- What a batch writes are files that do not count yet. The commit makes them count, and after
  it they are delivered: shown to those who read the view elsewhere than in its folder.
- After a crash the newest commit is delivered once more. `deliver` finds out what is there
  already and adds the rest, so that each record is there once.
- Whatever a sink needs for that stands in the commit (`begin`), or in the store it delivers
  to, changed in one step with the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.sinks.commits import Commit


class Sink(Protocol):
    """How a view's records leave."""

    def write(self, frame: DataFrame, target: Path) -> None:
        """Write rows as files `part-*` into the folder `target`, which is not there yet."""

    def write_table(self, spark: SparkSession, table: pa.Table, target: Path) -> None:
        """Write rows that are on the driver; otherwise as `write`."""

    def begin(self) -> int:
        """Return where the next batch begins in the store that records are delivered to."""

    def deliver(self, commit: Commit, files: Sequence[Path], *, again: bool) -> None:
        """Show what a commit made count; `again` after a crash or a pause."""
