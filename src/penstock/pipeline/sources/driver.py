"""Sources of Spark that this process answers for, on the driver, without processes of their own.

    Spark's query ─ py4j ─▶ DriverSource: which offsets there are, and what is between two of them
    Spark's tasks ─▶ lines of files, by Spark's own reader of text; or texts that come with the task

Rules that hold here:
- Spark starts a Python process for each Python data source of a query, which takes long on a busy
  machine. So the process that runs the query implements Spark's interfaces itself (`SupportsRead`,
  `Scan`, `MicroBatchStream`), and Spark calls it back.
- No Python runs in tasks. What they run is part of Spark, so that a cluster needs nothing of ours.
- An offset is a JSON object. The same one is always the same text: Spark compares the texts.
- Spark learns the kind of an error, and nothing that it says: that goes to Spark's log.
- Some classes that are used here are no public interface of Spark's. `pyproject.toml` bounds its
  version, and the tests of this module run each of them.
"""

# ruff: noqa: N802, SLF001 - Spark calls methods by Java's names, and hides its JVM.

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession

from penstock.eventlog.files import Slice
from penstock.hadoop import is_remote, read_path

TEXT: Final = "value"
"""The one column of what is read: a line of a file, or a text."""
_SCHEMA: Final = f"{TEXT} string"
_CONNECTOR: Final = "org.apache.spark.sql.connector."
_HASH: Final = 0x7FFFFFFF

Offset = dict[str, Any]


class DriverSource(Protocol):
    """What Spark asks of a source."""

    name: str
    """Stands in plans."""
    reads_files: bool
    """Whether a batch is made of lines of files; else texts come with the task."""

    def first(self) -> Offset:
        """Return where a query begins that has no checkpoint yet."""

    def latest(self, start: Offset) -> Offset:
        """Return where the next batch ends; `start` itself, where nothing is new."""

    def bound(self) -> None:
        """Prepare for a query that ends with what is there now."""

    def plan(self, start: Offset, end: Offset) -> Sequence[Slice | str]:
        """Return what is between two offsets: whole lines, for a task each, or texts."""


def read_stream(spark: SparkSession, source: DriverSource) -> DataFrame:
    """Return the texts of a source as a stream."""
    driver = _Driver(spark)
    relation = driver.sql.catalyst.streaming.StreamingRelationV2
    unnamed = getattr(relation, "apply$default$9")()
    plan = relation(
        driver.none,
        source.name,
        _Table(driver, source),
        driver.sql.util.CaseInsensitiveStringMap.empty(),
        driver.sql.catalyst.types.DataTypeUtils.toAttributes(driver.schema),
        driver.none,
        driver.none,
        driver.none,
        unnamed,
    )
    return driver.frame(plan)


def read_batch(spark: SparkSession, source: DriverSource) -> DataFrame:
    """Return the texts that a source has now."""
    driver = _Driver(spark)
    relation = driver.sql.execution.datasources.v2.DataSourceV2Relation
    return driver.frame(relation.create(_Table(driver, source), driver.none, driver.none))


class _Driver:
    """The driver's JVM, and the objects of it that Spark is answered with."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self.java = context._jvm
        self.sql = self.java.org.apache.spark.sql
        self.none = self.java.scala.Option.empty()
        self.schema = self.sql.types.StructType.fromDDL(_SCHEMA)
        self._python = spark
        self._session = spark._jsparkSession
        self._context = context._jsc
        self._gateway = context._gateway
        # Spark does so for `foreachBatch`, too.
        ensure_callback_server_started(self._gateway)  # type: ignore[no-untyped-call]

    def frame(self, plan: Any) -> DataFrame:
        return DataFrame(self.sql.classic.Dataset.ofRows(self._session, plan), self._python)

    def array(self, kind: Any, *items: Any) -> Any:
        made = self._gateway.new_array(kind, len(items))
        for number, item in enumerate(items):
            made[number] = item
        return made

    def offset(self, offset: Offset) -> Any:
        text = json.dumps(offset, sort_keys=True)
        return self.sql.execution.streaming.runtime.SerializedOffset(text)

    def partitions(self, items: Sequence[Slice | str]) -> Any:
        """Return what tasks get, one each."""
        made = [
            self._text(item) if isinstance(item, str) else self._lines(number, item)
            for number, item in enumerate(items)
        ]
        return self.array(self.sql.connector.read.InputPartition, *made)

    def _text(self, text: str) -> Any:
        expressions = self.sql.catalyst.expressions
        cell = self.java.org.apache.spark.unsafe.types.UTF8String.fromString(text)
        row = expressions.GenericInternalRow(self.array(self.java.java.lang.Object, cell))
        written = expressions.UnsafeProjection.create(self.schema).apply(row)
        rows = self.array(expressions.UnsafeRow, written)
        return self.sql.execution.streaming.runtime.MemoryStreamInputPartition(rows)

    def _lines(self, number: int, piece: Slice) -> Any:
        files, java = self.sql.execution.datasources, self.java.java
        made = self.java.org.apache.hadoop.fs.Path
        remote = is_remote(read_path(piece.path))
        path = made(piece.path) if remote else made(java.io.File(piece.path).toURI())
        # Hadoop reads the lines that begin behind the first byte, up to the one after the last.
        # Only the very first line of a file it reads from its first byte on.
        start = max(0, piece.start - 1)
        file = files.PartitionedFile(
            self.sql.catalyst.InternalRow.empty(),
            self.java.org.apache.spark.paths.SparkPath.fromPath(path),
            start,
            piece.end - 1 - start,
            self.array(java.lang.String),
            0,
            piece.end,
            getattr(files.PartitionedFile, "apply$default$8")(),
        )
        return files.FilePartition(number, self.array(files.PartitionedFile, file))

    def reader_of_texts(self) -> Any:
        factory = getattr(self.sql.execution.streaming.runtime, "MemoryStreamReaderFactory$")
        return getattr(factory, "MODULE$")

    def reader_of_lines(self) -> Any:
        """Return Spark's reader of text files; a line ends with a line feed and nothing else."""
        state = self._session.sessionState()
        hadoop = self.java.org.apache.spark.util.SerializableConfiguration(state.newHadoopConf())
        options = self.java.PythonUtils.toScalaMap({"lineSep": "\n"})
        return self.sql.execution.datasources.v2.text.TextPartitionReaderFactory(
            state.conf(),
            self._context.broadcast(hadoop),
            self.schema,
            self.sql.types.StructType(),
            self.sql.execution.datasources.text.TextOptions(options),
        )


@contextmanager
def _telling_the_kind() -> Iterator[None]:
    """Pass on no more of an error than its kind: Spark quotes what it is told."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - its kind is passed on
        raise RuntimeError(type(error).__name__) from None


class _Answerer:
    """An object that Spark calls as one of its own; names of methods are Java's."""

    def __init__(self, driver: _Driver, source: DriverSource) -> None:
        self._driver = driver
        self._source = source

    def hashCode(self) -> int:
        return id(self) & _HASH

    def equals(self, other: object) -> bool:
        return other is self

    def toString(self) -> str:
        return self._source.name

    def _none_of(self, kind: Any) -> Any:
        return self._driver.array(kind)


class _Table(_Answerer):
    """What a relation of a plan is about."""

    class Java:
        implements = (f"{_CONNECTOR}catalog.SupportsRead",)

    def name(self) -> str:
        return self._source.name

    def id(self) -> None:
        return None

    def version(self) -> None:
        return None

    def schema(self) -> Any:
        return self._driver.schema

    def columns(self) -> Any:
        column = self._driver.sql.connector.catalog.Column
        kind = self._driver.schema.fields()[0].dataType()
        return self._driver.array(column, column.create(TEXT, kind))

    def partitioning(self) -> Any:
        return self._none_of(self._driver.sql.connector.expressions.Transform)

    def constraints(self) -> Any:
        return self._none_of(self._driver.sql.connector.catalog.constraints.Constraint)

    def properties(self) -> Any:
        return self._driver.java.java.util.HashMap()

    def capabilities(self) -> Any:
        known = self._driver.sql.connector.catalog.TableCapability
        return self._driver.java.java.util.EnumSet.of(known.BATCH_READ, known.MICRO_BATCH_READ)

    def newScanBuilder(self, options: Any) -> _Scan:  # noqa: ARG002
        return _Scan(self._driver, self._source)


class _Scan(_Answerer):
    """One read of a relation: all that is there, or batch by batch."""

    class Java:
        implements = (f"{_CONNECTOR}read.ScanBuilder", f"{_CONNECTOR}read.Scan")

    def build(self) -> _Scan:
        return self

    def readSchema(self) -> Any:
        return self._driver.schema

    def description(self) -> str:
        return self._source.name

    def columnarSupportMode(self) -> Any:
        modes = getattr(self._driver.sql.connector.read, "Scan$ColumnarSupportMode")
        return modes.UNSUPPORTED

    def supportedCustomMetrics(self) -> Any:
        return self._none_of(self._driver.sql.connector.metric.CustomMetric)

    def reportDriverMetrics(self) -> Any:
        return self._none_of(self._driver.sql.connector.metric.CustomTaskMetric)

    def toBatch(self) -> _Batch:
        return _Batch(self._driver, self._source)

    def toMicroBatchStream(self, checkpoint: str) -> _Stream:  # noqa: ARG002
        return _Stream(self._driver, self._source)


class _Reading(_Answerer):
    """What batches and streams have in common."""

    _reader: Any = None

    def createReaderFactory(self) -> Any:
        # One for all batches: it is sent to the executors.
        if self._reader is None:
            driver = self._driver
            files = self._source.reads_files
            self._reader = driver.reader_of_lines() if files else driver.reader_of_texts()
        return self._reader


class _Batch(_Reading):
    """All that is there."""

    class Java:
        implements = (f"{_CONNECTOR}read.Batch",)

    def planInputPartitions(self) -> Any:
        with _telling_the_kind():
            source = self._source
            source.bound()
            first = source.first()
            return self._driver.partitions(source.plan(first, source.latest(first)))


class _Stream(_Reading):
    """Batch after batch."""

    class Java:
        implements = (
            f"{_CONNECTOR}read.streaming.MicroBatchStream",
            f"{_CONNECTOR}read.streaming.SupportsTriggerAvailableNow",
        )

    def initialOffset(self) -> Any:
        with _telling_the_kind():
            return self._driver.offset(self._source.first())

    def deserializeOffset(self, text: str) -> Any:
        return self._driver.offset(json.loads(text))

    def getDefaultReadLimit(self) -> Any:
        # `latest` has bounds of its own.
        return self._driver.sql.connector.read.streaming.ReadLimit.allAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        with _telling_the_kind():
            self._source.bound()

    def latestOffset(self, start: Any, limit: Any) -> Any:  # noqa: ARG002
        with _telling_the_kind():
            return self._driver.offset(self._source.latest(json.loads(start.json())))

    def reportLatestOffset(self) -> None:
        return None

    def planInputPartitions(self, start: Any, end: Any) -> Any:
        with _telling_the_kind():
            told = (json.loads(it.json()) for it in (start, end))
            return self._driver.partitions(self._source.plan(*told))

    def commit(self, end: Any) -> None:
        """Nothing is kept that could be let go."""

    def stop(self) -> None:
        """Nothing is kept open."""
