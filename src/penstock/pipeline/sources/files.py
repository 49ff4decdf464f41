"""Files of a folder as the source of a stream: streaming as they appear, and any stretch.

Tasks see the folder under the same path, and refuse a file that is not as it was when it
was taken in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StringType, StructField, StructType
from typing_extensions import override

from penstock.errors import UnavailableError
from penstock.model.kinds import Stream
from penstock.model.kinds.streams import StreamField
from penstock.pipeline.records.columns import MILLISECONDS, OFFSET, PROBLEM, VALUE
from penstock.pipeline.sources.blocks import read_block
from penstock.pipeline.sources.event_log import SCHEMA
from penstock.pipeline.sources.index import FileIndex, Piece
from penstock.pipeline.sources.values import wrong

FORMAT: Final = "penstock_files"
COLUMNS: Final = StructType([*SCHEMA.fields, StructField(PROBLEM, StringType())])


class FilesSource:
    """The rows of files as records of a stream."""

    def __init__(self, index: FileIndex, folder: Path, stream: Stream) -> None:
        self._index = index
        self._options = {
            "index": str(folder),
            "source": str(index.source),
            "form": index.form,
            "fields": json.dumps([field.model_dump(mode="json") for field in stream.fields]),
        }

    def take_in(self) -> int:
        """Take new files in; raises if a file that was taken in before was changed."""
        self._index.check()
        return self._index.take_in()

    def read_on(self, spark: SparkSession, start: int, rows: int) -> DataFrame:
        """Return the records from `start` on as a stream."""
        spark.dataSource.register(FileData)
        reader = spark.readStream.format(FORMAT).options(**self._options)
        return reader.option("start", start).option("rows", rows).load()

    def place(self, batch: DataFrame) -> DataFrame:
        """Return the batch: it has its offsets."""
        return batch

    def check(self, start: int, end: int) -> None:
        """Raise if a file with records of a stretch is gone or was changed."""
        self._index.check_stretch(start, end)

    def read_stretch(self, spark: SparkSession, start: int, end: int) -> DataFrame:
        """Return the records from `start` to before `end`."""
        spark.dataSource.register(FileData)
        reader = spark.read.format(FORMAT).options(**self._options)
        return reader.option("start", start).option("end", end).load()


class FileData(DataSource):
    """`spark.read.format("penstock_files")`; options: index, source, form, fields, a stretch."""

    @classmethod
    @override
    def name(cls) -> str:
        return FORMAT

    @override
    def schema(self) -> StructType:
        return COLUMNS

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        return FileReader(self.options)

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return FileStreamReader(self.options)


class Rows(InputPartition):
    """Rows of a file, for one task."""

    def __init__(self, piece: Piece) -> None:
        super().__init__(piece)
        self.piece = piece


class _Files:
    """What both readers know."""

    def __init__(self, options: Any) -> None:
        self._source = Path(options["source"])
        self._form = options["form"]
        self._index = FileIndex(Path(options["index"]), self._source, self._form)
        self._fields = [StreamField.model_validate(it) for it in json.loads(options["fields"])]

    def plan(self, start: int, end: int) -> list[InputPartition]:
        return [Rows(piece) for piece in self._index.locate(start, end)]

    def take_in(self, until: int | None) -> int:
        try:
            return self._index.take_in(until)
        except UnavailableError:
            # The folder cannot be read: the driver tells it to the views.
            return self._index.next_offset

    def read_rows(self, partition: InputPartition) -> pa.RecordBatch:
        if not isinstance(partition, Rows):
            raise TypeError(f"{type(partition).__name__} is no piece of a file")
        entry, block, skip, count, offset = partition.piece
        if block is None:
            found = wrong(count, entry.problem or "")
        else:
            entry.check(self._source)
            path = self._source / entry.name
            whole = read_block(path, self._form, entry.header, block, self._fields)
            found = whole.slice(skip, count)
        return pa.record_batch(
            {
                OFFSET: pa.array(np.arange(offset, offset + count, dtype=np.int64)),
                MILLISECONDS: pa.array(np.full(count, entry.taken, dtype=np.int64)),
                VALUE: found.values,
                PROBLEM: found.problems,
            }
        )


class FileReader(DataSourceReader):
    """Reads the records from `start` to before `end`."""

    def __init__(self, options: Any) -> None:
        self._files = _Files(options)
        self._start, self._end = int(options["start"]), int(options["end"])

    @override
    def partitions(self) -> Sequence[InputPartition]:
        return self._files.plan(self._start, self._end)

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield self._files.read_rows(partition)


class FileStreamReader(DataSourceStreamReader):
    """Reads on and on, at most `rows` records at a time, from `start` on."""

    def __init__(self, options: Any) -> None:
        self._files = _Files(options)
        self._start = int(options.get("start", 0))
        self._rows = int(options["rows"])

    @override
    def initialOffset(self) -> dict[str, int]:
        return {"offset": self._start}

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._rows)

    @override
    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        most = None if isinstance(limit, ReadAllAvailable) else start["offset"] + self._rows
        end = self._files.take_in(most)
        if most is not None:
            end = min(end, most)
        return {"offset": max(end, start["offset"])}

    @override
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self._files.plan(start["offset"], end["offset"])

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield self._files.read_rows(partition)
