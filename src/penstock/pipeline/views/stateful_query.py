"""The query of one stateful view: records and signals go through its operator to its files.

    readStream (source) ─▶ parse ─▶ make_view: masks, transformWithState, masks ─▶ foreachBatch
    readStream (signals) ────────────────▲                                         publish

Rules that hold here:
- Spark's checkpoint holds what was read, what was told and what is held back, batch by batch. A
  batch that the view has already is run once more where Spark did not note it, for the state
  alone, and nothing of it is published.
- A batch that the view does not have, and that a kill ended, is planned anew: who opted out since
  is heard before anything is published.
- What a view holds back when it is stopped leaves with the next batch of its query, which is warm.
- What has to leave under definitions that do not hold any more, or with another number of shards,
  leaves in a query of its own, in a batch without records.
- The number of partitions is that of the checkpoint, for good.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from typing_extensions import override

from penstock.errors import PenstockError
from penstock.eventlog.erasure import find_asked
from penstock.model.kinds.views import SHARD_LIMIT
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.dataframes.view import PARTITIONS, SETTINGS, count_shards, make_view
from penstock.pipeline.records.opt_outs import mark_subjects
from penstock.pipeline.records.parser import parse_records
from penstock.pipeline.sinks.commits import Batch
from penstock.pipeline.sources.event_log import Position
from penstock.pipeline.views.failures import QueryEndedError, explain
from penstock.pipeline.views.query import ViewQuery
from penstock.pipeline.views.signals import FOLDER, Signals, read_signals, save_numbers
from penstock.pipeline.views.view_runner import ViewRunner
from penstock.store.opt_outs import number_of

# Milliseconds that a record may take from its time of arrival to where a source shows it.
SETTLING: Final = 1000


class StatefulQuery(ViewQuery):
    """A stateful view, and the query that is it."""

    _asked: Mapping[Path, str] = MappingProxyType({})
    """Notes of people who are forgotten in the batch that was planned last."""
    _draining = False
    _flush = False
    _finishing = False
    """Whether the query ends once nothing is held back."""

    @property
    def _view(self) -> ViewRunner:
        if not self.views:
            raise QueryEndedError("the query has no view left")
        (view,) = self.views.values()
        return view

    @override
    def start(self, rows: int, **trigger: Any) -> None:
        with set_up(self._spark, self.checkpoint.owner.partitions):
            super().start(rows, **trigger)

    @override
    def _read(self, rows: int) -> DataFrame:
        view = self._view
        view.ask()
        session = self._spark
        raw = self._source.read_stream(session, rows, self.checkpoint.owner.start)
        parsed = parse_records(raw, self._stream, self._find_schema)
        records = mark_subjects(parsed, self._stream, view.marks)
        folder = self.checkpoint.folder / FOLDER
        signals = read_signals(session, Signals(folder, self._tell))
        # The cluster may have other cores by now; who is held back where may not change by that.
        shards = count_shards(session, view.blueprint, cores=self.checkpoint.owner.partitions)
        return make_view(
            records,
            view.blueprint,
            view.secret,
            shards=shards,
            signals=signals,
            vault=view.vault,
        )

    def finish(self) -> None:
        """Let everything leave in the next batch of the query that runs, and end it."""
        with self.lock:
            if not self.views or not self._view.held or self.has_ended:
                return
            self._flush = self._finishing = True
        self.wait()

    def drain(self) -> None:
        """Let everything leave that the view holds back, and read nothing."""
        self._draining = self._flush = True
        self._run_without_records()

    def tick(self) -> None:
        """Let leave what the clock lets leave, forget who is erased, and read nothing."""
        if self.find_clock(self._view) or find_asked(self._view.folder):
            self._run_without_records()

    def _run_without_records(self) -> None:
        self.start(0, availableNow=True)
        self.wait()
        self.stop()

    def _tell(self, before: dict[str, Any]) -> dict[str, Any]:
        """Return what counts from the next batch on; asked for by Spark, before each batch."""
        with self.lock:
            if self._closing:
                raise QueryEndedError("the query was told to end")
            view = self._view
            if self._finishing and not view.held:
                raise QueryEndedError("nothing is held back any more")
            try:
                self._check_source()
            except PenstockError as error:
                self._trouble = error
                raise
            # What is drained leaves under definitions that do not hold any more.
            if not self._draining and not self._is_current(view.blueprint):
                self._end_with(view, None)
            try:
                view.ask()
            except Exception as error:
                self._end_with(view, error)
                raise
            numbers = np.array(sorted({number_of(it) for it in view.refusing}), dtype=np.int64)
            opted_out = save_numbers(self.checkpoint.folder / FOLDER, numbers)
            clock, flush = self.find_clock(view), self._flush and view.held > 0
            self._flush = False
            self._asked = find_asked(view.folder)
            if opted_out == before["opted_out"] and not (clock or flush or self._asked):
                return before
            return {
                "order": before["order"] + 1,
                "opted_out": opted_out,
                "erased": sorted(set(map(int, self._asked.values()))),
                "clock": clock,
                "flush": flush,
            }

    def find_clock(self, view: ViewRunner) -> int:
        """Return what the clock says, if that lets something leave; 0 where it does not.

        Windows end by it only once all that arrived before has been read.
        """
        windowed = view.blueprint.is_windowed
        # Read before the source is asked: what comes later is newer.
        now = time.time_ns() // 1_000_000 - (SETTLING if windowed else 0)
        if not view.is_due(now):
            return 0
        if windowed:
            try:
                if self._source.count_behind(Position(self.checkpoint.folder, view.batch.place)):
                    return 0
            except PenstockError:
                return 0  # the query tells it, and windows wait that long
        return now

    def _end_with(self, view: ViewRunner, error: BaseException | None) -> None:
        """End the query: the view leaves it, with the reason or as it is defined otherwise."""
        self._closing = True
        self._lose(view, error)
        self._trouble = QueryEndedError("the view is defined otherwise by now")
        if error is None:
            raise self._trouble

    @override
    def _take_batch(self, frame: DataFrame, batch: Batch) -> None:
        view = self._view
        if view.has(batch):
            # Spark was killed before it noted the batch: only the state is missing.
            frame.write.format("noop").mode("overwrite").save()
            return
        self._guard(view, lambda: view.publish(frame, batch))
        if view.has(batch):
            for note in self._asked:
                note.unlink(missing_ok=True)  # it is durable that none of this is held any more
            # Spark notes the batch, and asks for no other one.
            self._closing |= self._finishing and not self._flush

    @override
    def _find_cause(self, error: BaseException) -> BaseException:
        return explain(super()._find_cause(error))


def choose_partitions(spark: SparkSession, blueprint: Blueprint) -> int:
    """Return how many partitions the state of a view gets: one for each shard, or core."""
    if not blueprint.divides:
        return 1
    cores = max(int(spark.conf.get(PARTITIONS) or 1), spark.sparkContext.defaultParallelism)
    return max(blueprint.view.shards or 0, min(SHARD_LIMIT, cores))


@contextmanager
def set_up(session: SparkSession, partitions: int) -> Iterator[None]:
    """Let queries that start meanwhile have the settings of stateful ones.

    A query keeps the settings of its start. Another session would not do: Spark registers no
    Python data source there that this one has.
    """
    wanted = {**SETTINGS, PARTITIONS: str(partitions)}
    before: dict[str, str | None] = {name: session.conf.get(name, None) for name in wanted}
    try:
        for name, value in wanted.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, earlier in before.items():
            if earlier is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, earlier)
