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
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from pyspark.sql import SparkSession

from penstock.config.sections.processes import PipelineSettings
from penstock.errors import PenstockError, UnavailableError, quote
from penstock.eventlog.connection import BrokerError
from penstock.model.kinds import Stream
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.records.avro import NO_ANSWER, RegistrySchemas
from penstock.pipeline.sources.source import Source
from penstock.pipeline.views.checkpoints import (
    Checkpoint,
    Owner,
    Place,
    find_batch,
    find_holders,
    give_copy,
    read_place,
    remove_unused,
    write_place,
)
from penstock.pipeline.views.query import QueryEndedError, ReplacedSourceError, ViewQuery
from penstock.pipeline.views.stateful_query import (
    OperatorEndedError,
    StatefulQuery,
    choose_partitions,
    explain,
)
from penstock.pipeline.views.view_runner import ViewRunner
from penstock.store.consent import ConsentUnknownError

LEAST_WAIT: Final = 0.5
MOST_WAIT: Final = 30.0
JOIN_SECONDS: Final = 5.0
"""So often it is looked whether queries can be put together."""
_STORE_AWAY: Final = "tasks could not reach the store of tokens → check that it runs"
_SLOW_START: Final = "a Python process of Spark was slow to start → is the machine busy?"
# What Spark's own words tell of those that tasks talk to, and what is said of it.
_ABROAD: Final = {
    NO_ANSWER: f"{NO_ANSWER} → check `registry` of the stream's source",
    "penstock.errors.UnavailableError": _STORE_AWAY,
    "penstock.store.sqlite_file.FileReplacedError": _STORE_AWAY,
    "org.apache.kafka": "Kafka did not give records → check that its brokers run",
    "org.apache.spark.sql.kafka010": "Kafka did not give records → check that its brokers run",
    "connect back": _SLOW_START,
    "INITIALIZATION_FAILURE": _SLOW_START,
}
TRIES: Final = 3
Query = TypeVar("Query", bound=ViewQuery)
_LOST: Final = "failOnDataLoss"
"""Stands in what Spark says where Kafka does not have records any more."""


def checkpoints_folder(stream: str, settings: PipelineSettings) -> Path:
    """Return where Spark keeps the progress of a stream's queries."""
    return settings.folder / ".checkpoints" / stream


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
        # Checkpoint → how much of the source was not read when Spark told last.
        self._behind: dict[str, int] = {}
        kafka = stream.source.kafka if stream.source else None
        registry = kafka.registry if kafka else None
        self._find_schema = RegistrySchemas(registry) if registry else None

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
        checkpoint = self._find_checkpoint(view, self.source.identify())
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
            raise error if isinstance(error, PenstockError) else explain(error)
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
                checkpoint = self._find_checkpoint(view, identity)
            except PenstockError as error:
                self._fail(view, error)
            else:
                groups.setdefault(checkpoint.name, []).append(view)
        made = [self._make_query(name, views) for name, views in self._merge(groups).items()]
        self._queries += made
        return made

    def _find_checkpoint(self, view: ViewRunner, identity: str) -> Checkpoint:
        """Return the checkpoint that a view goes by: its own, one to share, or a new one."""
        place = read_place(view.folder)
        owner = Owner(self.stream.name, identity)
        if view.stateful:
            partitions = choose_partitions(self._spark, view.blueprint)
            owner = replace(owner, view=view.name, partitions=partitions)
        if place is None:
            if view.batch.number >= 0:
                raise UnavailableError(
                    f"where the view {quote(view.name)} goes on is not known: its place is gone",
                    fix="restore place.json in its folder, or move the folder away",
                )
            return self._begin(view, owner)
        checkpoint = Checkpoint(self._checkpoints / place.checkpoint)
        if is_replaced(checkpoint.owner, owner):
            self._check_read(view, checkpoint)
            return self._begin(view, owner)
        before = checkpoint.owner
        if not view.held and self._needs_another(view, before, owner):
            return self._begin(view, replace(owner, start=view.batch.place))
        checkpoint.check(replace(owner, view=before.view or owner.view))
        if before.view is not None:
            self._check_state(view, checkpoint)
        if find_batch(view.folder, checkpoint.name) < checkpoint.committed:
            # It missed a batch, and a kill came before it got a copy.
            give_copy(checkpoint, view.folder)
            return self._find_checkpoint(view, identity)
        return checkpoint

    def _needs_another(self, view: ViewRunner, before: Owner, now: Owner) -> bool:
        """Whether a view that holds nothing back goes on better with a new checkpoint."""
        if (before.stream, before.source) != (now.stream, now.source) or view.batch.number < 0:
            return False
        if (before.view is None) != (now.view is None):
            return True
        # Budgets stay where they are: figures are the same with any number of partitions.
        return before.partitions != now.partitions and view.blueprint.figures is None

    def _check_state(self, view: ViewRunner, checkpoint: Checkpoint) -> None:
        if view.held and not (checkpoint.folder / "state").exists():
            raise UnavailableError(
                f"the view {quote(view.name)} held {view.held} records back, and they are gone",
                fix=f"bring {checkpoint.folder / 'state'} back, or begin the view anew",
            )
        if find_batch(view.folder, checkpoint.name) < checkpoint.planned:
            checkpoint.forget_planned()

    def _begin(self, view: ViewRunner, owner: Owner) -> Checkpoint:
        """Return a checkpoint at the beginning of the source, shared by those who begin now."""
        for other in self._waiting.values():
            place = read_place(other.folder) if other is not view else None
            if place is not None and place.batch < 0:
                found = Checkpoint(self._checkpoints / place.checkpoint)
                if found.owner == owner and found.planned < 0:
                    break
        else:
            found = Checkpoint.make(self._checkpoints, owner)
        write_place(view.folder, Place(found.name))
        return found

    def _check_read(self, view: ViewRunner, checkpoint: Checkpoint) -> None:
        """Raise unless the view had all records of a topic that was deleted."""
        if self._behind.get(checkpoint.name) != 0:
            raise UnavailableError(
                f"the topic {quote(self.stream.topic)} was deleted and made again; whether the "
                f"view {quote(view.name)} had all records that went with it is not known",
                fix="feed them again, and give the view another name, or move its folder away",
            )

    def _merge(self, groups: dict[str, list[ViewRunner]]) -> dict[str, list[ViewRunner]]:
        """Put row-wise views together that stand at the same place in different checkpoints."""
        found: dict[str, list[ViewRunner]] = {}
        standing: dict[str, str] = {}
        for name, views in groups.items():
            checkpoint = Checkpoint(self._checkpoints / name)
            position = "" if views[0].stateful else stand(checkpoint, views)
            into = standing.setdefault(position, name) if position else name
            if into != name:
                batch = Checkpoint(self._checkpoints / into).committed
                for view in views:
                    write_place(view.folder, Place(into, batch))
            found.setdefault(into, []).extend(views)
        return found

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
        query = self._new_query(StatefulQuery if views[0].stateful else ViewQuery, checkpoint)
        for view in views:
            query.views[view.name] = self._waiting.pop(view.name)
        # Views that go by the checkpoint, and do not run now, get copies of their own.
        folder = views[0].folder.parent
        for absent in set(find_holders(folder, name)) - {view.folder for view in views}:
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
            if isinstance(query, StatefulQuery) and not isinstance(error, PenstockError):
                error = error if is_passing(error) else explain(error)
            if is_passing(error) or isinstance(error, ReplacedSourceError):
                self._rest(error)
            else:
                for view in list(query.views.values()):
                    self._fail(view, error)

    def _note_behind(self, query: ViewQuery) -> int | None:
        told = query.count_behind()
        if told is not None:
            self._behind[query.checkpoint.name] = told
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
            if views and not views[0].stateful:
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


def stand(checkpoint: Checkpoint, views: Sequence[ViewRunner]) -> str:
    """Return where all views of a checkpoint stand; nothing, while a batch is on its way."""
    last = checkpoint.committed
    if last < 0 or checkpoint.planned != last:
        return ""
    still = all(find_batch(view.folder, checkpoint.name) == last for view in views)
    return checkpoint.position(last) if still else ""


def is_replaced(before: Owner, now: Owner) -> bool:
    """Whether the topic of a checkpoint was deleted and made again."""
    (name, _, first), (again, _, second) = (it.source.rpartition(":") for it in (before, now))
    return name.startswith("kafka:") and name == again and first != second


def is_passing(error: BaseException) -> bool:
    """Whether what failed a view is worth another try: others were out of reach."""
    if isinstance(error, PenstockError):
        return isinstance(error, BrokerError | ConsentUnknownError | OperatorEndedError)
    text = str(error)
    return _LOST not in text and any(word in text for word in _ABROAD)


def is_slow_start(error: BaseException) -> bool:
    """Whether a Python process of Spark's did not start in time: the machine is busy."""
    return any(word in str(error) for word, said in _ABROAD.items() if said == _SLOW_START)


def describe(error: BaseException) -> str:
    """Say what failed without what records said: only our own errors are quoted."""
    if isinstance(error, PenstockError):
        return str(error)
    text = str(error)
    if _LOST in text:
        return "Kafka has forgotten records that the view lacks → keep them longer: retention.ms"
    if is_passing(error):
        return next(said for word, said in _ABROAD.items() if word in text)
    return type(error).__name__
