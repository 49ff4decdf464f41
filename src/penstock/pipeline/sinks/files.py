"""Files in the view's folder: Parquet, JSON lines, CSV. Being there is all their delivery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from typing_extensions import override

from penstock.pipeline.sinks.commits import Commit

OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "parquet": {"compression": "zstd", "parquet.compression.codec.zstd.level": "1"},
    "json": {"ignoreNullFields": "false"},
    "csv": {"header": "true"},
}


class FileSink:
    """Files that Spark writes by itself."""

    def __init__(self, form: str) -> None:
        self._form = form

    def write(self, frame: DataFrame, target: Path) -> None:
        """Write rows as files."""
        frame.write.format(self._form).options(**OPTIONS[self._form]).save(str(target))

    def write_table(self, spark: SparkSession, table: pa.Table, target: Path) -> None:
        """Write rows that are on the driver."""
        self.write(spark.createDataFrame(table), target)

    def begin(self) -> int:
        """Return nothing of use: files need no place."""
        return 0

    def deliver(self, commit: Commit, files: Sequence[Path], *, again: bool) -> None:
        """Do nothing: files are where they are read."""


class ParquetSink(FileSink):
    """Parquet files; small batches are written without Spark."""

    def __init__(self) -> None:
        super().__init__("parquet")

    @override
    def write_table(self, spark: SparkSession, table: pa.Table, target: Path) -> None:
        target.mkdir()
        path = target / "part-0.parquet"
        pyarrow.parquet.write_table(table, path, compression="zstd", compression_level=1)
