"""Runs the views of one stream: as few queries as their places in the stream allow.

    views at the beginning ─┬─▶ one query        a view that holds records back ─▶ its own
    views at the same place ┘                    a view that missed a batch ────▶ its own

Rules that hold here:
- Row-wise views that stand at the same place share a query, so that a batch is read and parsed
  once. Views that came apart are put together again when their queries stand still at one place.
- A view that fails stops by itself, with the reason; the others go on.
- A query that ends since others are out of reach is started again, after a while that grows. One
  that ends for good fails its views.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from pyspark.sql import SparkSession

from penstock.config.installation import PipelineSettings
from penstock.errors import PenstockError
from penstock.eventlog.connection import BrokerError
from penstock.eventlog.registry import SchemaRegistry
from penstock.model.kinds import Stream
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.sources.source import Source
from penstock.pipeline.views.checkpoints import (
    Checkpoint,
    find_holders,
    give_copy,
    read_place,
    remove_unused,
)
from penstock.pipeline.views.failures import (
    TRIES,
    OperatorEndedError,
    QueryEndedError,
    ReplacedSourceError,
    describe,
    is_passing,
    is_slow_start,
)
from penstock.pipeline.views.places import Places, stand
from penstock.pipeline.views.query import ViewQuery
from penstock.pipeline.views.real_time import RealTimeQuery
from penstock.pipeline.views.stateful_query import StatefulQuery
from penstock.pipeline.views.view_runner import ViewRunner

LEAST_WAIT: Final = 0.5
MOST_WAIT: Final = 30.0
JOIN_SECONDS: Final = 5.0
"""So often it is looked whether queries can be put together."""
Query = TypeVar("Query", bound=ViewQuery)


def checkpoints_folder(stream: str, settings: PipelineSettings) -> Path:
    """Return where Spark keeps the progress of a stream's queries."""
    return settings.files / ".checkpoints" / stream


class StreamRunner:
    """The views of one stream, and the queries that feed them."""

    def __init__(
        self,
        spark: SparkSession,
        stream: Stream,
        source: Source,
        checkpoints: Path,
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
        self._checkpoints = checkpoints
        self._rows = rows
        self._is_current = is_current
        self._waiting: dict[str, ViewRunner] = {}
        """Views that no query feeds yet."""
        self._queries: list[ViewQuery] = []
        self._lock = threading.RLock()
        self._trouble: BaseException | None = None
        # After trouble with the source it is left alone until then, for longer each time.
        self._rest_until, self._wait = 0.0, LEAST_WAIT
        self._join_at = 0.0
        self._places = Places(spark, stream, source, checkpoints)
        kafka = stream.source.kafka if stream.source else None
        registry = kafka.registry if kafka else None
        self._find_schema = SchemaRegistry(registry) if registry else None

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the views that run."""
        return tuple(self._all())

    def _all(self) -> dict[str, ViewRunner]:
        found = dict(self._waiting)
        for query in list(self._queries):
            found |= query.views
        return found

    def find(self, name: str) -> ViewRunner | None:
        """Return a view, if it runs."""
        return self._all().get(name)

    @property
    def failure(self) -> str | None:
        """Why records do not come at present, if so."""
        return describe(self._trouble) if self._trouble is not None else None

    def add(self, view: ViewRunner) -> None:
        """Open a view, and let it take part from now on."""
        with self._lock:
            view.open()
            self._waiting[view.name] = view
            self.failures.pop(view.name, None)
            self.passing.discard(view.name)

    def remove(self, name: str, *, flush: bool = False) -> None:
        """Let a view take part no longer; with `flush`, publish what it holds back."""
        with self._lock:
            view = self.find(name)
            if view is None:
                return
            self._waiting.pop(name, None)
            for query in [it for it in self._queries if name in it.views]:
                if flush and isinstance(query, StatefulQuery):
                    query.finish()
                    if not query.views:
                        view.open()  # it left, and was closed: below it is tried once more
                query.release(view)
                if not query.views:
                    query.stop()
                    self._queries.remove(query)
            try:
                if flush:
                    self._drain(view)
            finally:
                view.close()

    def flush(self, view: ViewRunner) -> None:
        """Publish what a view holds back that does not take part."""
        with self._lock:
            view.open()
            try:
                self._drain(view)
            finally:
                view.close()

    def start(self, interval: float) -> None:
        """Let Spark offer new records as they come, at most so often; call again to keep it so."""
        with self._lock:
            self._collect_ended()
            self._join_queries()
            milliseconds = f"{max(1, round(interval * 1000))} milliseconds"
            for query in self._arrange():
                query.start(self._rows, processingTime=milliseconds)

    def catch_up(self) -> None:
        """Bring all views to the end that the source has now, and leave it at that."""
        with self._lock:
            for _ in range(TRIES):
                started = self._arrange()
                for query in started:
                    query.start(self._rows, availableNow=True)
                for query in started:
                    query.wait()
                self._collect_ended()
                if self._trouble is None or isinstance(self._trouble, PenstockError):
                    break
                self._rest_until = 0.0

    def stop(self) -> None:
        """Finish the batches at hand, end the queries, and close all views."""
        with self._lock:
            for query in self._queries:
                query.stop()
                self._waiting |= query.views
            self._queries.clear()
            for name in list(self._waiting):
                self.remove(name)

    def count_behind(self, name: str) -> int | None:
        """Return how much of the source a view has not read, as far as Spark tells it."""
        query = next((it for it in list(self._queries) if name in it.views), None)
        return self._note_behind(query) if query is not None else None

    def tick(self) -> None:
        """Let leave what the clock lets leave, of views whose queries do not run.

        Those that run are told by signals; see `stateful_query`.
        """
        now = time.time_ns() // 1_000_000
        with self._lock:
            for view in [it for it in self._waiting.values() if it.stateful and it.is_due(now)]:
                self._run_without_records(view, StatefulQuery.tick)

    def _drain(self, view: ViewRunner) -> None:
        """Let everything leave that a view holds back; raises where that fails."""
        if view.held:
            earlier = view.before_change()
            self._run_without_records(earlier or view, StatefulQuery.drain, raising=True)

    def _run_without_records(
        self, view: ViewRunner, run: Callable[[StatefulQuery], None], *, raising: bool = False
    ) -> None:
        checkpoint = self._places.find(view, self.source.identify())
        error: BaseException | None = None
        for _ in range(TRIES):
            query = self._new_query(StatefulQuery, checkpoint)
            query.views[view.name] = view
            run(query)
            error = query.lost or query.failure
            if error is None or isinstance(error, QueryEndedError):
                return
            if not is_slow_start(error):
                break
        if error is not None and raising:
            raise error if isinstance(error, PenstockError) else OperatorEndedError(describe(error))
        if error is not None:
            self._fail(view, error)

    # --- which query a view takes part in ---

    def _arrange(self) -> list[ViewQuery]:
        """Return new queries for the views that wait, with all their checkpoints in order."""
        if not self._waiting or time.monotonic() < self._rest_until:
            return []
        try:
            if any(read_place(view.folder) is None for view in self._waiting.values()):
                self.source.begin()
            identity = self.source.identify()
        except BrokerError as error:
            # Views stay where they are: what they lack will be there later.
            self._rest(error)
            return []
        except PenstockError as error:
            for view in list(self._waiting.values()):
                self._fail(view, error)
            return []
        self._trouble = None
        groups: dict[str, list[ViewRunner]] = {}
        for view in list(self._waiting.values()):
            try:
                if view.before_change() is not None:
                    self._drain(view)
                checkpoint = self._places.find(view, identity, self._waiting.values())
                self._places.check_records(view, checkpoint)
            except (PenstockError, OSError) as error:
                self._fail(view, error)
            else:
                groups.setdefault(checkpoint.name, []).append(view)
        made = [self._make_query(name, views) for name, views in self._places.merge(groups).items()]
        self._queries += made
        return made

    def _new_query(self, kind: type[Query], checkpoint: Checkpoint) -> Query:
        return kind(
            self._spark,
            self.stream,
            self.source,
            checkpoint,
            is_current=self._is_current,
            find_schema=self._find_schema,
            leave=self._let_go,
        )

    def _make_query(self, name: str, views: Sequence[ViewRunner]) -> ViewQuery:
        checkpoint = Checkpoint(self._checkpoints / name)
        alone = StatefulQuery if views[0].stateful else RealTimeQuery
        query = self._new_query(alone if views[0].alone else ViewQuery, checkpoint)
        for view in views:
            query.views[view.name] = self._waiting.pop(view.name)
        # Views that go by the checkpoint, and do not run now, get copies of their own.
        folder = views[0].folder.parent
        for absent in set(find_holders(folder, name)) - {view.folder for view in views}:
            # Where its own folder fails, the copy is made when the view comes back.
            with suppress(OSError, PenstockError):
                give_copy(checkpoint, absent)
        remove_unused(self._checkpoints, folder)
        return query

    # --- what ended ---

    def _let_go(self, view: ViewRunner, error: BaseException | None) -> None:
        """Close a view that left its query; called while a batch is done."""
        if error is not None:
            self._note(view, error)
        view.close()

    def _collect_ended(self) -> None:
        """Take the views of queries that ended back, and note what ended them."""
        for query in [it for it in self._queries if it.has_ended]:
            self._note_behind(query)
            query.stop()
            self._queries.remove(query)
            self._waiting |= query.views
            error = query.failure
            if query.advanced:
                self._wait = LEAST_WAIT
            if error is None or isinstance(error, QueryEndedError):
                continue
            if is_passing(error) or isinstance(error, ReplacedSourceError):
                self._rest(error)
            else:
                for view in list(query.views.values()):
                    self._fail(view, error)

    def _note_behind(self, query: ViewQuery) -> int | None:
        told = query.count_behind()
        if told is not None:
            self._places.behind[query.checkpoint.name] = told
        return told

    def _rest(self, error: BaseException) -> None:
        self._trouble = error
        self._rest_until = time.monotonic() + self._wait
        self._wait = min(MOST_WAIT, self._wait * 2)

    def _join_queries(self) -> None:
        """End queries that stand at the same place, so that they become one."""
        if time.monotonic() < self._join_at:
            return
        self._join_at = time.monotonic() + JOIN_SECONDS
        still: dict[str, list[ViewQuery]] = {}
        for query in self._queries:
            views = list(query.views.values())
            if views and not views[0].alone:
                still.setdefault(stand(query.checkpoint, views), []).append(query)
        still.pop("", None)
        for together in still.values():
            for query in together if len(together) > 1 else ():
                query.stop()
                self._queries.remove(query)
                self._waiting |= query.views

    def _fail(self, view: ViewRunner, error: BaseException) -> None:
        self._note(view, error)
        self.remove(view.name)

    def _note(self, view: ViewRunner, error: BaseException) -> None:
        self.failures[view.name] = describe(error)
        if is_passing(error):
            self.passing.add(view.name)
