"""The commands for a collective step as a stream of Spark: one at a time, in order.

The place in the stream is the number of the next command. There is no record of commands
that were obeyed beyond that number, however long a view runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from typing_extensions import override

from penstock.pipeline.views.operator.commands import Workshop

FORMAT: Final = "penstock_commands"


class CommandSource(DataSource):
    """`spark.readStream.format("penstock_commands")`; options: folder, start."""

    @classmethod
    @override
    def name(cls) -> str:
        return FORMAT

    @override
    def schema(self) -> str:
        return "step int, command string"

    @override
    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return CommandReader(self.options)


class CommandReader(DataSourceStreamReader):
    """Reads commands from `start` on."""

    def __init__(self, options: Any) -> None:
        self._folder = str(options["folder"])
        self._start = int(options["start"])

    @override
    def initialOffset(self) -> dict[str, int]:
        return {"next": self._start}

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(1)

    @override
    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        number = start["next"]
        given = Workshop(Path(self._folder)).path(number).exists()
        return {"next": number + 1 if given else number}

    @override
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(start["next"], end["next"])]

    @override
    def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
        path = Workshop(Path(self._folder)).path(partition.value)
        yield 0, path.read_text(encoding="utf-8")


def read_commands(spark: SparkSession, folder: Path, start: int) -> DataFrame:
    """Return the commands from a number on, as they are given."""
    spark.dataSource.register(CommandSource)
    reader = spark.readStream.format(FORMAT).option("folder", str(folder))
    return reader.option("start", start).load()
