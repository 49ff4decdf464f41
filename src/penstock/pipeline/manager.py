"""Brings views to where they are wanted, keeps them there, and runs under watch.

    manager (its lock, its queries) ──▶ /healthz, /readyz; who watches ──▶ /metrics

Rules that hold here:
- The manager looks at definitions and wishes again and again and mends the difference: a
  view that is added, changed, paused or removed does not disturb the others.
- Where the definitions cannot be read, nothing is begun or changed, and views that run publish
  nothing: before each batch a view is held against the definitions of that moment, and takes no
  part in it unless they are still its own. The manager looks again until the store is back.
- A view that failed is tried again when its definition changes or somebody starts it again,
  not by itself: what failed once would fail again and again. Where others were out of reach,
  it is tried again by itself, after a while that grows.
- Ready means: this process runs the views, Spark answers, and the definitions can be read. A
  view that failed does not make it unready: the others run, and `penstock views list` and
  `penstock_view_failures_total` tell. Alive means: Spark is not gone. A restart is what would help.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from pyspark.sql import SparkSession
from typing_extensions import override

from penstock.config import Config
from penstock.config.brokers import KafkaSettings
from penstock.config.installation import PipelineSettings
from penstock.config.secrets import generate_key
from penstock.definitions import DefinitionSet
from penstock.errors import PenstockError, UnavailableError
from penstock.eventlog import EventLog
from penstock.masks.supplies import KEY_VAULT, Vault, fingerprint
from penstock.model.kinds import Stream, View
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.control import PAUSED, RUNNING, STOPPED, Condition, Control
from penstock.pipeline.records.opt_outs import Consent, nobody_opted_out
from penstock.pipeline.sinks.commits import Commit
from penstock.pipeline.sinks.formats import Sinks
from penstock.pipeline.sources.source import open_source
from penstock.pipeline.views.failures import is_passing
from penstock.pipeline.views.stream_runner import (
    LEAST_WAIT,
    MOST_WAIT,
    StreamRunner,
    checkpoints_folder,
)
from penstock.pipeline.views.view_runner import ViewRunner
from penstock.telemetry import Endpoint, Health, get_logger
from penstock.telemetry.health import Figures
from penstock.telemetry.metrics import histogram

LOOK_SECONDS: Final = 0.5
REPORT_SECONDS: Final = 1.0
RATE_SECONDS: Final = 10.0
# So often a single run tries views that failed for what passes, in some fifteen seconds.
TRIES: Final = 6

_log = get_logger("pipeline")


BATCH = histogram(
    "penstock_view_batch_seconds",
    "Time that a view took for a batch, without what it shares with other views.",
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
).plain


class TimedView(ViewRunner):
    """A view whose batches are timed."""

    @override
    def process(self, *args: Any, **options: Any) -> Commit:
        return self._time(super().process, *args, **options)

    @override
    def publish(self, *args: Any, **options: Any) -> Commit:
        return self._time(super().publish, *args, **options)

    def _time(self, action: Callable[..., Commit], *args: Any, **options: Any) -> Commit:
        began = time.perf_counter()
        made = action(*args, **options)
        seconds = time.perf_counter() - began
        BATCH.observe(seconds)
        _log.debug("batch", view=self.name, duration_ms=round(seconds * 1000))
        return made


class Manager:
    """All streams and views of an installation."""

    def __init__(
        self,
        spark: SparkSession,
        settings: PipelineSettings,
        definitions: Callable[[], DefinitionSet],
        vault: Vault | None = None,
        kafka: KafkaSettings | None = None,
        consent: Consent = nobody_opted_out,
    ) -> None:
        self.control = Control(settings.folder)
        self.runs = threading.Event()
        """Set while this process runs the views."""
        self.trouble: str | None = None
        """Why the views could not be looked at the last time, if so."""
        self._spark = spark
        self._settings = settings
        self._definitions = definitions
        self._log = EventLog(settings.event_log)
        self._secret = settings.key.read_or_create(generate_key)
        self._vault = vault
        self._kafka = kafka or KafkaSettings()
        self._consent = consent
        if vault is not None:
            # Tokens are turned back only by a key that has made some.
            vault.put(KEY_VAULT, {fingerprint(self._secret): b""})
        self._streams: dict[str, StreamRunner] = {}
        # View → what it was when it failed, and why.
        self._failed: dict[str, tuple[tuple[str, float], str]] = {}
        # View → when it is tried again, and how long it waits then, where what failed it passes.
        self._retries: dict[str, tuple[float, float]] = {}
        # Stream → why its query ended by itself the last time, if it did.
        self._troubles: dict[str, str | None] = {}
        self._known: dict[str, View] = {}
        # The definitions that the views which run were brought to.
        self._brought: DefinitionSet | None = None
        self._reporting = threading.Lock()
        self._seen: dict[str, deque[tuple[float, int]]] = {}

    def run(self, told: threading.Event) -> None:
        """Run views until told to end."""
        with self._alone():
            self._run(told)

    def _run(self, told: threading.Event) -> None:
        ended = threading.Event()
        # By itself, since catching up may keep the rest busy for long.
        reporter = threading.Thread(target=self._keep_reporting, args=(ended,), daemon=True)
        reporter.start()
        self.runs.set()
        try:
            while not told.is_set():
                self._look_again()
                told.wait(LOOK_SECONDS)
        finally:
            self.runs.clear()
            ended.set()
            reporter.join()
            self.close()

    def _look_again(self) -> None:
        try:
            self.look(stream=True)
        except UnavailableError as error:
            if self.trouble is None:
                _log.warning("the views cannot be looked at", error=error)
            self.trouble = error.message
        else:
            if self.trouble is not None:
                _log.info("the views are looked at again")
            self.trouble = None

    def _keep_reporting(self, ended: threading.Event) -> None:
        while not ended.wait(REPORT_SECONDS):
            self._report()

    def run_once(self) -> None:
        """Bring all views that should run to the end that their streams have now."""
        with self._alone():
            try:
                for _ in range(TRIES):
                    self.look(stream=False)
                    while self._catch_up():
                        # Views that changed meanwhile are back as they are defined now.
                        self.look(stream=False)
                    self.look(stream=False)
                    waits = [self._retries[it][0] for it in self._failed if it in self._retries]
                    if not waits:
                        break
                    # Others were out of reach: that may be over in a moment.
                    time.sleep(max(0.0, max(waits) - time.monotonic()))
            finally:
                self.close()

    def _catch_up(self) -> bool:
        """Bring the views that run to the end; say whether some left in between, unfailed."""
        left = False
        for name, runner in self._streams.items():
            began = set(runner.views)
            runner.catch_up()
            self._troubles[name] = runner.failure
            runner.tick()
            left |= not began <= {*runner.views, *runner.failures}
        return left

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep a second process from running the views of this folder."""
        self._settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._settings.folder / ".lock").open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UnavailableError(
                    f"the views in {self._settings.folder} are run by another process",
                    fix="it takes changes over by itself; to move it, stop it there first",
                ) from None
            yield

    def close(self) -> None:
        """End all queries, and release all views."""
        for runner in self._streams.values():
            runner.stop()
        self._streams.clear()

    def look(self, *, stream: bool) -> None:
        """Mend the difference between what is wanted and what is."""
        definitions = self._definitions()
        views = definitions.of(View)
        for name in [name for name in self._streams if definitions.get(Stream, name) is None]:
            self._streams.pop(name).stop()
        for runner in self._streams.values():
            self._note_failures(runner)
            for name in runner.views:
                # Gone, or moved to another stream.
                if name not in views or views[name].stream != runner.stream.name:
                    runner.remove(name)
        for name in views:
            try:
                self._bring(Blueprint.find(definitions, name))
            except PenstockError as error:
                self._note_failure(definitions, name, str(error), passing=is_passing(error))
        self._known = views
        self._brought = definitions
        self._report()
        if stream:
            self._keep_streaming()

    def _bring(self, blueprint: Blueprint) -> None:
        """Bring one view to where it is wanted."""
        name = blueprint.view.name
        wanted = self.control.wanted(name)
        runner = self._streams.get(blueprint.stream.name)
        # Looked up once: a batch that finds it changed removes it at any moment.
        running = runner.find(name) if runner is not None else None
        runs = running is not None
        changed = running is not None and running.blueprint.signature != blueprint.signature
        if runner is not None and runs and (changed or wanted.state != RUNNING):
            runner.remove(name, flush=wanted.state == STOPPED)
            runs = False
        if runner is not None and runner.stream != blueprint.stream:
            runner.stop()
            self._streams.pop(blueprint.stream.name)
            runner = None
        if wanted.state == RUNNING and not runs and not self._has_failed(blueprint, wanted.at):
            self._stream(blueprint.stream).add(self._make(blueprint))
        elif wanted.state == STOPPED:
            self._let_go(blueprint)

    def _let_go(self, blueprint: Blueprint) -> None:
        """Publish what a stopped view still holds back, if nobody did."""
        last = self.control.view(blueprint.view.name).last()
        if last is None or not last.held:
            return
        self._stream(blueprint.stream).flush(self._make(blueprint))

    def _make(self, blueprint: Blueprint) -> ViewRunner:
        folder = self._settings.folder / blueprint.view.name
        source = blueprint.stream.source
        at_kafka = self._kafka if source is not None and source.kafka is not None else None
        sinks = Sinks(self._log.topic(blueprint.view.topic), at_kafka)
        return TimedView(
            self._spark,
            blueprint,
            folder,
            self._secret,
            store=self._settings.files / blueprint.view.name,
            sinks=sinks,
            vault=self._vault,
            consent=self._consent,
            locate=self._stream(blueprint.stream).source.locate,
        )

    def _stream(self, stream: Stream) -> StreamRunner:
        if stream.name not in self._streams:
            checkpoints = checkpoints_folder(stream.name, self._settings)
            source = open_source(stream, self._settings, self._kafka)
            rows = self._settings.batch
            runner = StreamRunner(
                self._spark, stream, source, checkpoints, rows, is_current=self._is_current
            )
            self._streams[stream.name] = runner
        return self._streams[stream.name]

    def _is_current(self, blueprint: Blueprint) -> bool:
        """Say whether a view is still defined so; not so, where that cannot be known."""
        try:
            now = self._definitions()
            if now is self._brought:
                return True
            return Blueprint.find(now, blueprint.view.name).signature == blueprint.signature
        except PenstockError:
            return False

    def _keep_streaming(self) -> None:
        """Start queries that should run and do not; end those that nobody needs."""
        for name, runner in list(self._streams.items()):
            if not runner.views:
                runner.stop()
                del self._streams[name]
            else:
                # A query that ended by itself is begun again; its views are not less safe,
                # only later. What ended it is told with them.
                runner.start(self._settings.interval)
                self._troubles[name] = runner.failure
                runner.tick()

    def _note_failures(self, runner: StreamRunner) -> None:
        definitions = self._definitions()
        for name in list(runner.failures):
            # Taken out one by one: a batch may add another meanwhile.
            passing, reason = name in runner.passing, runner.failures.pop(name)
            runner.passing.discard(name)
            if definitions.get(View, name) is not None:
                self._note_failure(definitions, name, reason, passing=passing)

    def _note_failure(
        self, definitions: DefinitionSet, name: str, reason: str, *, passing: bool
    ) -> None:
        self._failed[name] = (self._mark(definitions, name), reason)
        if passing:
            self._plan_retry(name)
        else:
            self._retries.pop(name, None)

    def _plan_retry(self, name: str) -> None:
        """Let a view be tried again later; later still if it fails again soon after."""
        at, waited = self._retries.get(name, (0.0, 0.0))
        soon = time.monotonic() < at + 2 * MOST_WAIT
        wait = min(MOST_WAIT, 2 * waited) if soon and waited else LEAST_WAIT
        self._retries[name] = (time.monotonic() + wait, wait)

    def _mark(self, definitions: DefinitionSet, name: str) -> tuple[str, float]:
        signature = Blueprint.find(definitions, name).signature
        return signature, self.control.wanted(name).at

    def _has_failed(self, blueprint: Blueprint, wanted_at: float) -> bool:
        name = blueprint.view.name
        failed = self._failed.get(name)
        if failed is None:
            return False
        retry = self._retries.get(name)
        if failed[0] != (blueprint.signature, wanted_at) or (
            retry and retry[0] <= time.monotonic()
        ):
            del self._failed[name]
            return False
        return True

    def _report(self) -> None:
        with self._reporting:
            self._report_all(time.time())

    def _report_all(self, now: float) -> None:
        for name, view in self._known.items():
            runner = self._streams.get(view.stream)
            wanted = self.control.wanted(name).state
            failed = self._failed.get(name)
            if runner is not None and name in runner.views:
                state = RUNNING
            elif failed is not None and wanted == RUNNING:
                state = "failed"
            elif wanted in {PAUSED, STOPPED}:
                state = wanted
            else:
                continue
            error = failed[1] if failed is not None and state == "failed" else None
            if state == RUNNING:
                error = self._troubles.get(view.stream)
            rate = self._rate(name, now)
            lag = runner.count_behind(name) if runner is not None else None
            self.control.report(name, Condition(state, os.getpid(), now, rate, error, lag))

    def _rate(self, name: str, now: float) -> float:
        """Return the records read per second, of late."""
        last = self.control.view(name).last()
        seen = self._seen.setdefault(name, deque())
        seen.append((now, last.totals.read if last else 0))
        while len(seen) > 2 and now - seen[1][0] >= RATE_SECONDS:  # noqa: PLR2004 - two ends
            seen.popleft()
        (start, before), (end, after) = seen[0], seen[-1]
        return (after - before) / (end - start) if end > start else 0.0


def run_until_told(
    config: Config,
    spark: SparkSession,
    manager: Manager,
    definitions: Callable[[], DefinitionSet],
    told: threading.Event,
    confirmed: Callable[[], Figures] | None,
    watching: AbstractContextManager[object],
) -> None:
    """Run views, `watching` them, and answer how they are, until told to end.

    `confirmed` tells the newest epoch that the store has confirmed, and its age.
    """
    with _endpoint(config, make_health(spark, manager, definitions, confirmed)), watching:
        _log.info("the pipeline runs")
        try:
            manager.run(told)
        finally:
            _log.info("the pipeline has ended")


def make_health(
    spark: SparkSession,
    manager: Manager,
    definitions: Callable[[], DefinitionSet],
    confirmed: Callable[[], Figures] | None = None,
) -> Health:
    """Make the checks of the pipeline."""
    health = Health()

    def check_spark() -> str | None:
        context = spark.sparkContext._jsc  # noqa: SLF001 - there is no public way to ask
        return "Spark has stopped" if context is None or context.sc().isStopped() else None

    def check_definitions() -> str | None:
        definitions()
        return None

    def check_manager() -> str | None:
        if not manager.runs.is_set():
            return "the views are not run by this process yet"
        return manager.trouble

    health.register("spark", check_spark, liveness=True)
    health.register("definitions", check_definitions, details=confirmed)
    health.register("views", check_manager)
    return health


@contextmanager
def _endpoint(config: Config, health: Health) -> Iterator[None]:
    if not config.monitor.enabled:
        yield
        return
    port = config.pipeline.monitor_port
    with Endpoint(health, host=config.monitor.host, port=port) as endpoint:
        _log.info("answering probes", port=endpoint.port)
        yield
