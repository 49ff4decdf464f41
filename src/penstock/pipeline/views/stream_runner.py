"""Runs the views of one stream: a batch is read and parsed once, for all of them.

Rules that hold here:
- A view's own commit says where it goes on. Spark's checkpoint only says what to offer
  next; what a view has missed (paused, added later, failed) is read again from the source
  for it alone, until it has caught up with the others.
- A view whose definition has changed takes no part in the next batch; who runs the views brings
  it back as it is defined then.
- A view that fails stops by itself, with the reason; the others go on. So do views whose
  records the source cannot give any more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses
from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import PenstockError
from penstock.eventlog.connection import BrokerError
from penstock.eventlog.registry import NO_ANSWER, SchemaRegistry
from penstock.model.kinds import Stream
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.records.columns import OFFSET
from penstock.pipeline.records.parser import parse_records
from penstock.pipeline.sources.source import Source
from penstock.pipeline.views.operator.query import StepEndedError
from penstock.pipeline.views.single_pass import Written
from penstock.pipeline.views.view_runner import ViewRunner, process_together
from penstock.store.consent import ConsentUnknownError

LEAST_WAIT: Final = 0.5
MOST_WAIT: Final = 30.0
# Milliseconds that a record may take from its time of arrival to where a source shows it.
SETTLING: Final = 1000


_STORE_AWAY: Final = "tasks could not reach the store of tokens → check that it runs"
# What Spark's own words tell of those that tasks talk to, and what is said of it.
_ABROAD: Final = {
    NO_ANSWER: f"{NO_ANSWER} → check `registry` of the stream's source",
    "penstock.errors.UnavailableError": _STORE_AWAY,
    "penstock.store.sqlite_file.FileReplacedError": _STORE_AWAY,
    "org.apache.kafka": "Kafka did not give records → check that its brokers run",
    "org.apache.spark.sql.kafka010": "Kafka did not give records → check that its brokers run",
}


class StreamRunner:
    """The views of one stream, and the query that feeds them."""

    def __init__(
        self,
        spark: SparkSession,
        stream: Stream,
        source: Source,
        checkpoint: Path,
        rows: int,
        *,
        is_current: Callable[[Blueprint], bool] = lambda _: True,
    ) -> None:
        self.stream = stream
        self.source = source
        self.failures: dict[str, str] = {}
        self.passing: set[str] = set()
        """Those of them that failed for what may be over soon."""
        self._spark = spark
        self._checkpoint = checkpoint
        self._rows = rows
        self._is_current = is_current
        self._views: dict[str, ViewRunner] = {}
        self._lock = threading.RLock()
        self._query: StreamingQuery | None = None
        self._closing = False
        self._trouble: PenstockError | None = None
        self._follower: threading.Thread | None = None
        self._told = threading.Event()
        # After trouble with the source it is left alone until then, for longer each time.
        self._rest_until, self._wait = 0.0, LEAST_WAIT
        kafka = stream.source.kafka if stream.source else None
        registry = kafka.registry if kafka else None
        self._find_schema = SchemaRegistry(registry) if registry else None

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the views that run."""
        return tuple(self._views)

    def add(self, view: ViewRunner) -> None:
        """Open a view, and let it take part from now on."""
        with self._lock:
            view.open()
            self._views[view.name] = view
            self.failures.pop(view.name, None)
            self.passing.discard(view.name)

    def remove(self, name: str, *, flush: bool = False) -> None:
        """Let a view take part no longer; with `flush`, publish what it holds back."""
        with self._lock:
            view = self._views.pop(name, None)
            if view is None:
                return
            try:
                if flush:
                    view.flush()
            finally:
                view.close()

    def find(self, name: str) -> ViewRunner | None:
        """Return a view, if it runs."""
        return self._views.get(name)

    def start(self, interval: float) -> None:
        """Let Spark offer new records as they come, at most so often."""
        with self._lock:
            self._closing, self._trouble = False, None
            places = [view.next for view in self._views.values()]
            start = min(places) if places else self.source.take_in()
        frame = self.source.read_on(self._spark, start, self._rows)
        if frame is None:
            self._told = threading.Event()
            self._follower = threading.Thread(
                target=self._follow, args=(interval, self._told), name="follower", daemon=True
            )
            self._follower.start()
            return
        self._query = (
            frame.writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self._checkpoint))
            .queryName(f"penstock {self.stream.name}")
            .trigger(processingTime=f"{max(1, round(interval * 1000))} milliseconds")
            .start()
        )

    def _follow(self, interval: float, told: threading.Event) -> None:
        """Look for new records again and again, where Spark has no stream of them."""
        while not told.wait(interval):
            self.catch_up()

    def stop(self) -> None:
        """Finish the batch at hand, end the query, and close all views."""
        with self._lock:
            # What Spark offers from now on is left alone: views know where they are.
            self._closing = True
        self._told.set()
        if self._follower is not None:
            self._follower.join()
            self._follower = None
        if self._query is not None:
            self._query.stop()
            self._query = None
        with self._lock:
            for name in list(self._views):
                self.remove(name)

    @property
    def streams(self) -> bool:
        """Whether the query runs."""
        if self._follower is not None:
            return self._follower.is_alive()
        return self._query is not None and self._query.isActive

    @property
    def follows(self) -> bool:
        """Whether new records are looked for without a query."""
        return self._follower is not None

    @property
    def failure(self) -> str | None:
        """Why the query ended, if it did."""
        query = self._query
        if query is None or query.isActive:
            return describe(self._trouble) if self._trouble else None
        return describe(self._trouble or query.exception() or PenstockError("the query ended"))

    def catch_up(self) -> None:
        """Bring all views to the end that the source has now."""
        with self._lock:
            if self._closing or time.monotonic() < self._rest_until:
                return
            try:
                end = self.source.take_in()
            except BrokerError as error:
                # Views stay where they are: what they lack will be there later.
                self._trouble = error
                self._rest_until = time.monotonic() + self._wait
                self._wait = min(MOST_WAIT, self._wait * 2)
                return
            except PenstockError as error:
                for view in list(self._views.values()):
                    self._fail(view, error)
                return
            self._trouble, self._wait = None, LEAST_WAIT
            self._bring_to(end)

    def tick(self) -> None:
        """Let windows end by the clock, of views that have read all that arrived before.

        Of other views, what has waited for long enough leaves, whatever the source says.
        """
        with self._lock:
            # The clock is read before the source is asked: what comes later is newer.
            clock = time.time_ns() // 1_000_000
            now = clock - SETTLING
            views = list(self._views.values())
            for view in views:
                if not view.waits_for_reading and view.is_due(clock) and self._keeps(view):
                    self._guard(view, partial(view.tick, clock))
            due = [view for view in views if view.waits_for_reading and view.is_due(now)]
            if not due:
                return
            try:
                end = self.source.take_in()
            except PenstockError:
                return  # `catch_up` tells it, and windows wait that long
            for view in due:
                if view.next >= end and self._keeps(view):
                    self._guard(view, partial(view.tick, now))

    def _take(self, frame: DataFrame, _: int) -> None:
        """Take a batch that Spark offers."""
        with self._lock:
            if not self._views or self._closing:
                return
            try:
                self._take_batch(self.source.place(frame))
            except PenstockError as error:
                # Kept for `failure`: Spark passes on no more than that something went wrong.
                self._trouble = error
                raise

    def _ask(self, views: Iterable[ViewRunner]) -> None:
        for view in list(views):
            if self._keeps(view):
                self._guard(view, view.ask)

    def _keeps(self, view: ViewRunner) -> bool:
        """Let a view go on only as it is defined now."""
        current = self._is_current(view.blueprint)
        if not current:
            self.remove(view.name)
        return current

    def _take_batch(self, placed: DataFrame) -> None:
        self._ask(self._views.values())
        parsed = parse_records(placed, self.stream, self._find_schema)
        passes = _count_passes(self._views.values())
        with _kept(parsed, passes):
            # Without a copy of what was parsed, the offsets alone are cheap to look at.
            surveyed = parsed if passes > 1 else placed
            first, end = _survey(surveyed)
            if first < end:
                self.source.check(first, end)
                if self._bring_to(first):
                    # That may have taken long: what held before it need not hold now.
                    self._ask(self._views.values())
                self._advance(self._views.values(), parsed, first, end)

    def _bring_to(self, end: int) -> bool:
        """Read for views that are behind, those at the same place together; say if some were."""
        read = False
        while True:
            behind = [view for view in self._views.values() if view.next < end]
            if not behind:
                return read
            read = True
            start = min(view.next for view in behind)
            together = [view for view in behind if view.next == start]
            others = [view.next for view in behind if view.next > start]
            stretch = min([end, start + self._rows, *others])
            try:
                self.source.check(start, stretch)
            except PenstockError as error:
                for view in together:
                    self._fail(view, error)
                continue
            self._ask(together)
            together = [view for view in together if view.name in self._views]
            if not together:
                continue
            raw = self.source.read_stretch(self._spark, start, stretch)
            parsed = parse_records(raw, self.stream, self._find_schema)
            with _kept(parsed, _count_passes(together)):
                self._advance(together, parsed, start, stretch)

    def _advance(
        self, views: Iterable[ViewRunner], parsed: DataFrame, first: int, end: int
    ) -> None:
        chosen = [view for view in views if max(first, view.next) < end]
        written = _write_together([view for view in chosen if view.next <= first], parsed)
        for view in chosen:
            start = max(first, view.next)
            seen = start > first
            frame = parsed.where(F.col(f"`{OFFSET}`") >= start) if seen else parsed
            done = written.get(view.name)
            self._guard(view, partial(view.process, frame, end, done))

    def _guard(self, view: ViewRunner, action: Callable[[], object]) -> None:
        """Do something for a view; if it fails, the view stops and the others go on."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not stop the others
            self._fail(view, error)

    def _fail(self, view: ViewRunner, error: BaseException) -> None:
        self.failures[view.name] = describe(error)
        if is_passing(error):
            self.passing.add(view.name)
        self.remove(view.name)


def is_passing(error: BaseException) -> bool:
    """Whether what failed a view is worth another try: others were out of reach."""
    if isinstance(error, PenstockError):
        return isinstance(error, BrokerError | ConsentUnknownError | StepEndedError)
    return any(word in str(error) for word in _ABROAD)


def describe(error: BaseException) -> str:
    """Say what failed without what records said: only our own errors are quoted."""
    if not isinstance(error, PenstockError) and is_passing(error):
        return next(said for word, said in _ABROAD.items() if word in str(error))
    return str(error) if isinstance(error, PenstockError) else type(error).__name__


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


def _survey(frame: DataFrame) -> tuple[int, int]:
    """Return where records begin and end; offsets have no gaps between."""
    offset = F.col(f"`{OFFSET}`")
    row = frame.agg(F.min(offset), F.max(offset)).first()
    return (0, 0) if row is None or row[0] is None else (row[0], row[1] + 1)
