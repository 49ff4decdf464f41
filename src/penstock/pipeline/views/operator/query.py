"""Runs the stateful operator of one view as a query of Spark, on a stream of commands.

    rows written ─▶ command given ─▶ Spark: step, state ─▶ output published, commit of the view
                                                                └─▶ Spark notes: obeyed

Rules that hold here:
- Commands come one at a time, in order. The offset in their stream is the number of the next
  one; there is no other record of commands that were obeyed.
- The view's commit comes before Spark's note, and has the command's number. Killed between
  the two, Spark obeys again, from the state before, and what it brings is passed over.
- A command that was given is obeyed before anything else, also after a restart.
- The state is in Spark's state store (RocksDB), under the view's own checkpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery
from typing_extensions import override

from penstock.errors import PenstockError, UnavailableError
from penstock.pipeline.views.operator.commands import REPORT, Command, CommandFolder, Report
from penstock.pipeline.views.operator.processor import StepProcessor

FORMAT: Final = "penstock_commands"
LOOK: Final = "20 milliseconds"
WAIT_SECONDS: Final = 0.25
TRIES: Final = 3
_LAST: Final = 10**12


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
        given = CommandFolder(Path(self._folder)).path(number).exists()
        return {"next": number + 1 if given else number}

    @override
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(start["next"], end["next"])]

    @override
    def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
        path = CommandFolder(Path(self._folder)).path(partition.value)
        yield 0, path.read_text(encoding="utf-8")


def read_commands(spark: SparkSession, folder: Path, start: int) -> DataFrame:
    """Return the commands from a number on, as they are given."""
    spark.dataSource.register(CommandSource)
    reader = spark.readStream.format(FORMAT).option("folder", str(folder))
    return reader.option("start", start).load()


# What Spark says when a Python process took too long to start: the machine is busy.
_SLOW_START: Final = ("failed to connect back", "INITIALIZATION_FAILURE")
_SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # One view has one step, so that one task is all there is to do.
    "spark.sql.shuffle.partitions": "1",
    # States of the past hold values that were let go since: the fewest that Spark can do with.
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


class StepEndedError(UnavailableError):
    """Spark gave the step up; what was not published is obeyed again later."""


class StepQuery:
    """The stateful step of a view, for the one who runs the view."""

    def __init__(self, spark: SparkSession, view: Path, plans: Path, secret: bytes) -> None:
        self.command_folder = CommandFolder(view / "steps")
        self._spark = spark
        self._name = view.name
        self._plans = plans
        self._secret = secret
        self._query: StreamingQuery | None = None
        self._command: Command | None = None
        self._finish: Callable[[Report], object] = lambda _: None
        self._errors: list[BaseException] = []
        self._done = threading.Event()

    def run(self, command: Command, finish: Callable[[Report], object]) -> None:
        """Let a command be obeyed; `finish` makes the outcome count."""
        self._command, self._finish = command, finish
        self._errors.clear()
        self._done.clear()
        if self.command_folder.find(command.number) is None:
            self.command_folder.give(command)
        tries = 0
        while not self._done.is_set():
            query = self._query or self._start(command.number)
            if self._done.wait(WAIT_SECONDS) or query.isActive:
                continue
            self._query = None
            tries += 1
            if self._errors:
                raise self._errors[0]
            if tries == TRIES or not _started_slowly(query):
                raise _describe(query)
        self._command = None

    def close(self) -> None:
        """End the query; what it worked with is removed once Spark has noted that it is done."""
        query, self._query = self._query, None
        if query is None:
            return
        if self._command is None:
            with suppress(Exception):  # it ended by itself: what is there will be obeyed again
                query.processAllAvailable()
                self.command_folder.clear(_LAST)
        query.stop()

    def _start(self, number: int) -> StreamingQuery:
        session = _open_session(self._spark)
        steps = (
            read_commands(session, self.command_folder.folder, number)
            .groupBy("step")
            .transformWithState(
                StepProcessor(self.command_folder.folder, self._plans, self._secret),
                REPORT,
                "Update",
                "None",
            )
        )
        self._query = (
            steps.writeStream.foreachBatch(self._take)
            .outputMode("update")
            .option("checkpointLocation", str(self.command_folder.checkpoint))
            .queryName(f"penstock step {self._name}")
            .trigger(processingTime=LOOK)
            .start()
        )
        return self._query

    def _take(self, batch: DataFrame, _: int) -> None:
        """Take what became of a command; asked once, since asking is what lets Spark obey it."""
        for row in batch.collect():
            self._conclude(Report(*row))

    def _conclude(self, report: Report) -> None:
        command = self._command
        if command is None or report.number < command.number:
            return  # its commit counts already: Spark was killed before it noted that
        try:
            self._check(report)
            self._finish(report)
            # This one is at work, so that Spark has noted all before.
            self.command_folder.clear(report.number)
        except BaseException as error:
            self._errors.append(error)
            raise
        self._done.set()

    @staticmethod
    def _check(report: Report) -> None:
        if report.trouble is not None:
            raise PenstockError(report.trouble)


@lru_cache(maxsize=4)
def _open_session(spark: SparkSession) -> SparkSession:
    """Return a session for steps beside the one that reads: settings differ."""
    session = spark.newSession()
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
    return session


def _started_slowly(query: StreamingQuery) -> bool:
    text = str(query.exception())
    return any(word in text for word in _SLOW_START)


def _describe(query: StreamingQuery) -> PenstockError:
    """Say that Spark gave up; its own words may quote rows, and stand in its log alone."""
    found = query.exception()
    return StepEndedError(
        f"Spark ended the view's stateful step: {type(found).__name__ if found else 'no reason'}",
        fix="see .spark.log in the folder of views; the view is tried again by itself",
    )
