"""The query of one view in real time: each record goes from topic to topic as it comes.

    readStream (Kafka) ─▶ parse ─▶ masks, in columns ─▶ writeStream (Kafka)
                           what Spark counted of a batch ─▶ commit: counts, dead letters

Rules that hold here:
- A record is in the view's topic at least once. Spark notes what was read at the end of a batch,
  which lasts for `BATCH`; what one that did not end has written is written again.
- Who opted out and the definitions stand in the plan. They are asked for again and again, whatever
  else this process does; where they changed, or cannot be known, the query ends at once, and begins
  anew with what holds then.
- Of rejected records Spark tells how many there are. Where there are some, the batch is read once
  more, to tell which and why.
- A task for each partition runs all the time, so that one core at least is left to others.
- A single run (`availableNow`) goes batch by batch, on the same checkpoint.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses
from typing_extensions import override

from penstock.errors import UnavailableError, quote
from penstock.pipeline.anonymizers.stateful import DeadLetter
from penstock.pipeline.dataframes.shards import REASON
from penstock.pipeline.dataframes.view import named
from penstock.pipeline.records.columns import OFFSET
from penstock.pipeline.records.opt_outs import OptedOut
from penstock.pipeline.records.parser import parse_records
from penstock.pipeline.sinks.commits import Batch
from penstock.pipeline.views.checkpoints import Place, find_batch, write_place
from penstock.pipeline.views.query import ViewQuery
from penstock.pipeline.views.view_runner import ViewRunner
from penstock.telemetry import get_logger

BATCH: Final = "10 seconds"
"""How long a batch lasts; Spark allows no less than five seconds."""
LOOK_SECONDS: Final = 0.25
_COUNTED: Final = "records"
_log = get_logger("pipeline")
_cores: dict[int, int] = {}
"""Query → how many cores it has for itself."""


class RealTimeQuery(ViewQuery):
    """A view whose records do not wait for others, and the query that is it."""

    _refusing = OptedOut()
    """Who stands in the plan as wanting no part in the view."""
    _ended: threading.Event | None = None

    @override
    def start(self, rows: int, **trigger: Any) -> None:
        if "availableNow" in trigger:
            super().start(rows, **trigger)
            return
        try:
            (view,) = self.views.values()
            self._check_source()
            self._take_cores()
            self._settle_planned(view)
            view.ask()
            self._refusing = view.refusing
            made = view.make(self._parse(self._source.read_stream(self._spark, None, self._begin)))
            rejected = named(REASON)
            counts = [F.count(F.lit(1)).alias("read"), F.count(rejected).alias("rejected")]
            fields = F.struct(*map(named, view.blueprint.plan.output))
            self._query = (
                made.observe(_COUNTED, *counts)
                .where(rejected.isNull())
                .select(F.to_json(fields, {"ignoreNullFields": "false"}).alias("value"))
                .writeStream.format("kafka")
                .options(**view.topic_options())
                .option("checkpointLocation", str(self.checkpoint.folder))
                .queryName(f"penstock {self._stream.name} {self.checkpoint.name}")
                .outputMode("update")
                .trigger(realTime=BATCH)  # type: ignore[call-overload]
                .start()
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, other queries go on
            self._trouble = error
            _cores.pop(id(self), None)
            return
        _log.info("a view runs in real time: its records come at least once", view=view.name)
        self._ended = threading.Event()
        watch = threading.Thread(target=self._watch, args=(self._ended,), daemon=True)
        watch.start()

    def _settle_planned(self, view: ViewRunner) -> None:
        """Let no batch be on its way: what comes under its number would be taken for it."""
        planned = self.checkpoint.planned
        if planned <= self.checkpoint.committed:
            return
        if find_batch(view.folder, self.checkpoint.name) < planned:
            self.checkpoint.forget_planned()
        else:
            self.checkpoint.note_done(planned)

    @property
    def _begin(self) -> str:
        return self.checkpoint.owner.start

    def _parse(self, frame: DataFrame) -> DataFrame:
        return parse_records(frame, self._stream, self._find_schema)

    def _take_cores(self) -> None:
        """Raise unless a core is left to others beside one for each partition."""
        # Loaded here: not everyone who runs views has a client of Kafka.
        from penstock.pipeline.sources.kafka import KafkaSource  # noqa: PLC0415

        wanted = self._source.count_partitions() if isinstance(self._source, KafkaSource) else 1
        there = self._spark.sparkContext.defaultParallelism
        if sum(_cores.values()) + wanted >= there:
            raise UnavailableError(
                f"real time takes a core for each of the {wanted} partitions of "
                f"{quote(self._stream.topic)}, and leaves one to others: there are {there}, of "
                f"which {sum(_cores.values())} are taken",
                fix="give Spark more cores (`pipeline.master`), or leave `trigger` out",
            )
        _cores[id(self)] = wanted

    def _watch(self, ended: threading.Event) -> None:
        """End the query where what its plan holds is not so any more."""
        while not self.has_ended and not ended.wait(LOOK_SECONDS):
            with self.lock:
                for view in list(self.views.values()):
                    self._guard(view, lambda it=view: self._look(it))  # type: ignore[misc]
                if self._closing or not self.views:
                    break
        self.stop()

    def _look(self, view: ViewRunner) -> None:
        self._check_source()
        self._note(view)
        if not self._is_current(view.blueprint):
            self._lose(view, None)
            return
        view.ask()
        # With an error of its own, it would be left alone for a while.
        self._closing |= view.refusing != self._refusing

    def _note(self, view: ViewRunner) -> None:
        """Commit what became of the records of batches that ended."""
        ended = self.checkpoint.committed
        for told in self._query.recentProgress if self._query is not None else ():
            number = told.batchId
            # One that was broken off is told of, too: it comes again, under the same number.
            if not find_batch(view.folder, self.checkpoint.name) < number <= ended:
                continue
            if not (counted := told.observedMetrics.get(_COUNTED)) or not counted["read"]:
                write_place(view.folder, Place(self.checkpoint.name, number))
                continue
            self.advanced = True
            place = self.checkpoint.offsets(number)
            dead = self._find_rejected(view, number) if counted["rejected"] else []
            view.note(Batch(self.checkpoint.name, number, place), counted["read"], dead)

    def _find_rejected(self, view: ViewRunner, number: int) -> list[DeadLetter]:
        """Return the records of a batch that are not in the view, by the plan that holds."""
        begin = self.checkpoint.offsets(number - 1) if number else self._begin
        read = self._source.read(self._spark, begin, self.checkpoint.offsets(number))
        made = view.make(self._parse(read), self._refusing)
        table = made.where(named(REASON).isNotNull()).select(named(OFFSET), named(REASON)).toArrow()
        return list(map(DeadLetter, table[OFFSET].to_pylist(), table[REASON].to_pylist()))

    @override
    def stop(self) -> None:
        super().stop()
        _cores.pop(id(self), None)
        with self.lock:
            ended, self._ended = self._ended, None
            if ended is None:
                return
            ended.set()
            for view in self.views.values():
                # What is not noted here is read again.
                with suppress(Exception):
                    self._note(view)

    @override
    def release(self, view: ViewRunner) -> None:
        self.stop()
        super().release(view)
