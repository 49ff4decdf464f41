"""One streaming query, and the views that it feeds: each batch is read and parsed once for all.

    readStream (sources) ─▶ foreachBatch: parse ─▶ each view: masks, commit under the batch's number

Rules that hold here:
- A batch is done for Spark once every view of the query has it. A view that fails, or is defined
  otherwise by now, leaves the query with a checkpoint of its own that ends before the batch; the
  others go on.
- Before each batch the definitions, the people who opted out and the identity of the source are
  asked for again.
- The query ends between two batches, never within one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import PenstockError, quote
from penstock.model.kinds import Stream
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.records.avro import FindSchema
from penstock.pipeline.records.parser import parse_records
from penstock.pipeline.sinks.commits import Batch
from penstock.pipeline.sources.event_log import Position
from penstock.pipeline.sources.source import Source
from penstock.pipeline.views.checkpoints import Checkpoint, give_copy
from penstock.pipeline.views.failures import QueryEndedError, ReplacedSourceError, is_slow_start
from penstock.pipeline.views.single_pass import Written
from penstock.pipeline.views.view_runner import ViewRunner, process_together


class Leave(Protocol):
    """Takes note of a view that left its query; without an error it may come back at once."""

    def __call__(self, view: ViewRunner, error: BaseException | None) -> None:
        """Take note."""


class ViewQuery:
    """Views that go by one checkpoint, and the query that feeds them."""

    def __init__(
        self,
        spark: SparkSession,
        stream: Stream,
        source: Source,
        checkpoint: Checkpoint,
        *,
        is_current: Callable[[Blueprint], bool],
        find_schema: FindSchema | None,
        leave: Leave,
    ) -> None:
        self.views: dict[str, ViewRunner] = {}
        self.checkpoint = checkpoint
        self.lock = threading.RLock()
        self.lost: BaseException | None = None
        """Why a view left last, if it failed."""
        self.advanced = False
        """Whether a batch was done since the start."""
        self._spark = spark
        self._stream = stream
        self._source = source
        self._is_current = is_current
        self._find_schema = find_schema
        self._leave = leave
        self._closing = False
        self._trouble: BaseException | None = None
        self._query: StreamingQuery | None = None
        self._session: SparkSession | None = None
        """That of the batches; Spark hands it out anew with each."""

    def start(self, rows: int, **trigger: Any) -> None:
        """Let Spark offer batches; where it refuses, the query has ended."""
        try:
            self._query = (
                self._read(rows)
                .writeStream.foreachBatch(self._take)
                .option("checkpointLocation", str(self.checkpoint.folder))
                .queryName(f"penstock {self._stream.name} {self.checkpoint.name}")
                .trigger(**trigger)
                .start()
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, other queries go on
            self._trouble = error

    def _read(self, rows: int) -> DataFrame:
        """Return what each batch is made of."""
        return self._source.read_stream(self._spark, rows, self.checkpoint.owner.start)

    def wait(self) -> None:
        """Wait for the end of the query; `failure` tells how it ended."""
        if self._query is not None:
            with suppress(Exception):
                self._query.awaitTermination()

    @property
    def has_ended(self) -> bool:
        """Whether the query runs no more, or could not be started."""
        return self._trouble is not None if self._query is None else not self._query.isActive

    @property
    def failure(self) -> BaseException | None:
        """Why the query ended by itself, if it did."""
        if self._query is None:
            return self._trouble
        if self._query.isActive:
            return None
        error = self._trouble or self._query.exception()
        return error if error is None else self._find_cause(error)

    def _find_cause(self, error: BaseException) -> BaseException:
        """Return what is wrong with the source, where that made Spark fail."""
        if isinstance(error, PenstockError):
            return error
        try:
            self._check_records(self.checkpoint.committed)
        except PenstockError as cause:
            return cause
        return error

    def count_behind(self) -> int | None:
        """Return how many records Spark has seen in the source and not read, as it last said."""
        progress = self._query.lastProgress if self._query is not None else None
        return count_behind(progress)

    def stop(self) -> None:
        """Finish the batch at hand, and end the query."""
        with self.lock:
            self._closing = True
        if self._query is not None:
            with suppress(Exception):  # it may have ended by itself; `failure` tells
                self._query.stop()

    def release(self, view: ViewRunner) -> None:
        """Let a view go: where others stay, with a checkpoint of its own."""
        with self.lock:
            self.views.pop(view.name, None)
            if self.views:
                # Where its own folder fails, the copy is made when the view comes back.
                with suppress(OSError, PenstockError):
                    give_copy(self.checkpoint, view.folder)

    def _take(self, frame: DataFrame, number: int) -> None:
        """Take a batch that Spark offers; called by Spark."""
        # What is kept from batch to batch, columns and tables, is kept by session.
        self._session = self._session or frame.sparkSession
        frame = DataFrame(frame._jdf, self._session)  # noqa: SLF001 - no other way
        with self.lock:
            if self._closing:
                raise QueryEndedError("the query was told to end")
            try:
                self._check_source()
                self._check_records(number - 1)
                self._take_batch(
                    frame, Batch(self.checkpoint.name, number, self.checkpoint.offsets(number))
                )
            except Exception as error:
                # Kept for `failure`: Spark passes on no more than that something went wrong.
                self._trouble = error
                raise
            if not self.views:
                self._closing = True
                self._trouble = QueryEndedError("the query has no view left")
                raise self._trouble
            self.advanced = True

    def _check_source(self) -> None:
        known = self.checkpoint.owner.source
        if self._source.identify() != known:
            raise ReplacedSourceError(f"the topic {quote(self._stream.topic)} is another one now")

    def _check_records(self, batch: int) -> None:
        """Raise if records behind a batch are not as they were found."""
        checkpoint = self.checkpoint
        place = checkpoint.offsets(batch) if batch >= 0 else checkpoint.owner.start
        self._source.check(Position(checkpoint.folder, place))

    def _take_batch(self, frame: DataFrame, batch: Batch) -> None:
        for view in [it for it in self.views.values() if not it.has(batch)]:
            if not self._is_current(view.blueprint):
                self._lose(view, None)
            else:
                self._guard(view, view.ask)
        views = [it for it in self.views.values() if not it.has(batch)]
        if not views:
            return
        parsed = parse_records(frame, self._stream, self._find_schema)
        with _kept(parsed, _count_passes(views)):
            written = _write_together(views, parsed)
            for view in views:
                done = written.get(view.name)
                self._guard(view, partial(view.process, parsed, batch, done))

    def _guard(self, view: ViewRunner, action: Callable[[], object]) -> None:
        """Do something for a view; if it fails, the view leaves and the others go on."""
        try:
            action()
        except Exception as error:
            if is_slow_start(error):
                raise  # the query begins anew, with this batch
            self._lose(view, self._find_cause(error))

    def _lose(self, view: ViewRunner, error: BaseException | None) -> None:
        self.lost = error
        self.release(view)
        self._leave(view, error)


def _write_together(views: Sequence[ViewRunner], parsed: DataFrame) -> dict[str, Written]:
    """Write the views that join in one pass; nothing, where one of them fails."""
    joining = [view for view in views if view.joins]
    if len(joining) <= 1:
        return {}
    try:
        return process_together(joining, parsed)
    except Exception:  # noqa: BLE001 - each by itself then, so that it shows which one fails
        return {}


def _count_passes(views: Iterable[ViewRunner]) -> int:
    """Return how often what was parsed is gone through: by those that join, once."""
    joins = [view.joins for view in views]
    return joins.count(False) + any(joins)


@contextmanager
def _kept(parsed: DataFrame, passes: int) -> Iterator[None]:
    """Keep what was parsed as long as it is needed; for one pass it would only cost."""
    if passes > 1:
        parsed.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield
    finally:
        if passes > 1:
            parsed.unpersist()


def count_behind(progress: Mapping[str, Any] | None) -> int | None:
    """Return what Spark says of Kafka's partitions: how far they reach beyond what was read."""
    sources = progress["sources"] if progress else []
    if not sources:
        return None
    latest, read = (_read_offset(sources[0][it]) for it in ("latestOffset", "endOffset"))
    if not all(isinstance(it, dict) for it in latest.values()) or not latest:
        return None
    return sum(
        max(0, int(end) - int(read.get(topic, {}).get(partition, 0)))
        for topic, partitions in latest.items()
        for partition, end in partitions.items()
    )


def _read_offset(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
