"""Detects events in a stream: batches of records become results that count.

    readStream ─ foreachBatch: parse, bind (columns) ─→ part of each person ─ tasks ─→ results ┐
                                   └── what joins persons ─ driver, with the transitions ──┴→ commit

Rules that hold here:
- Results, Spark's number of the batch and the names of all state become true in one commit:
  after a kill at any moment a batch is done again, or not at all.
- A record happens at its time, or at the latest one of any record before it, as in the
  in-line engine; all parts have come to the same time at the end of a batch.
- Where records happen when they arrive, time passes without them: what is due is detected
  `GRACE` later, since a record that is on its way still counts as of its arrival. Where
  records tell their own time, only they let it pass.
- An event that says what it is detected for is not detected of whom opted out of that, as at the
  gateway: who did is asked before each batch, and no batch is taken in where that is not known.
- Who is erased is forgotten before the next batch, also where no records come: see
  `eventlog.erasure`.
- Nothing is opened or published: what scenarios come to is reported. Access follows the
  situations of the gateway's own engine alone.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.cep.spark import bind_types, field_name, list_packets
from penstock.config import Config
from penstock.config.installation import PipelineSettings
from penstock.definitions import DefinitionSet
from penstock.errors import UnavailableError, UsageError, quote
from penstock.eventlog.erasure import find_asked
from penstock.eventlog.registry import SchemaRegistry
from penstock.model.kinds import Event, ObjectShape
from penstock.pipeline.detection.inputs import list_told, make_inputs
from penstock.pipeline.detection.tasks import (
    PART,
    DetectionPlan,
    ErasedNames,
    JointEngine,
    find_timer,
    make_task,
)
from penstock.pipeline.records.avro import FindSchema
from penstock.pipeline.records.columns import OFFSET, PROBLEM, TIME
from penstock.pipeline.records.opt_outs import Consent, OptOuts, flag_refused, nobody_opted_out
from penstock.pipeline.records.parser import parse_records
from penstock.pipeline.sinks.commits import Batch, Commit, Totals, ViewWriter
from penstock.pipeline.sources.event_log import SCHEMA, Position
from penstock.pipeline.sources.source import Source, open_source
from penstock.pipeline.views.checkpoints import Checkpoint, Owner
from penstock.pipeline.views.failures import TRIES, is_slow_start
from penstock.store.consent import ConsentUnknownError
from penstock.telemetry import get_logger

PARTS: Final = 8
"""How many parts persons are followed in; it stays as it is once a detection has begun."""
NO_TIME: Final = "the record does not tell when it happened"
_AT: Final = "at"
_PLACE: Final = "offset"
_KEY: Final = "penstock:key"
_REFUSED: Final = "penstock:refused"

RESULTS: Final = (
    "kind string, name string, subject string, at bigint, source string, target string, "
    "event string, evolution int, topic string, said string, offset bigint, part int, "
    "step bigint, place int"
)
"""`cep.spark.parts.SCHEMA` in Spark's words."""
GRACE: Final = 10_000
"""How long a record may be on its way from its arrival to the log, in milliseconds."""
_log = get_logger("pipeline")


@dataclass(frozen=True, slots=True)
class Mark:
    """What a commit says of the state: its name, the latest time, how persons are parted."""

    token: str = ""
    clock: int = 0
    parts: int = PARTS
    key: str | None = None
    joint: bool = False
    stream: str = ""


class DetectionRunner:
    """A detection that takes in batches of its stream."""

    def __init__(
        self,
        spark: SparkSession,
        plan: DetectionPlan,
        source: Source,
        folder: Path,
        *,
        rows: int = 100_000,
        parts: int = PARTS,
        find_schema: FindSchema | None = None,
        consent: Consent = nobody_opted_out,
    ) -> None:
        self.plan = plan
        self._trouble: BaseException | None = None
        self._checkpoint = Checkpoint(folder / "checkpoint")
        self._consent = consent
        self._opt_outs = OptOuts()
        self._purposes = {
            name: it.purposes for name, it in plan.definitions.of(Event).items() if it.purposes
        }
        self._spark = spark
        self._source = source
        self._rows = rows
        self._find_schema = find_schema
        self._writer = ViewWriter(folder)
        self._engines = folder / "engines"
        self._totals = Totals()
        separation = plan.separation
        self._mark = Mark(
            parts=parts if separation.key else 1, key=separation.key, stream=plan.stream.name
        )
        self._joint: JointEngine | None = None
        shapes = plan.definitions.of(ObjectShape).values()
        self._types = list_packets(plan.program)
        inputs = make_inputs(plan.stream, plan.definitions.scope, shapes)
        self._bound = bind_types(self._types, inputs, list_told(plan.stream))

    def open(self) -> None:
        """Take the detection, and go on where its newest commit ended."""
        last = self._writer.open()
        try:
            self._go_on(last)
        except BaseException:
            self._writer.close()
            raise

    def _go_on(self, last: Commit | None) -> None:
        if last is not None:
            mark = Mark(**json.loads(last.mark))
            if (mark.key, mark.stream) != (self._mark.key, self._mark.stream):
                raise UsageError(
                    f"persons were told apart by {quote(mark.key)} of {quote(mark.stream)} so "
                    f"far, and not by {quote(self._mark.key)} of {quote(self._mark.stream)}",
                    fix=f"move {self._writer.folder} away, and let all records be seen anew",
                )
            self._mark, self._totals = mark, last.totals
        self._clear()

    def close(self) -> None:
        """Release the detection."""
        self._writer.close()

    @property
    def clock(self) -> int:
        """The latest time known, in milliseconds since 1970."""
        return self._mark.clock

    @property
    def totals(self) -> Totals:
        """What became of records so far; `published` counts results."""
        return self._totals

    # --- batches ---

    def catch_up(self) -> int:
        """Take in all records that there are; return how many."""
        self._forget_asked()
        begin = self._totals.read
        self._open_checkpoint()
        if self._source.count_behind(Position(self._checkpoint.folder, self._batch.place)):
            for left in reversed(range(TRIES)):
                try:
                    self._run()
                    break
                except Exception as error:
                    if not left or not is_slow_start(error):
                        raise
        return self._totals.read - begin

    def _run(self) -> None:
        """Let Spark offer all records that there are."""
        self._trouble = None
        query = (
            self._source.read_stream(self._spark, self._rows)
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self._checkpoint.folder))
            .queryName(f"penstock detection {self.plan.stream.name}")
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - it is raised
            # Spark passes on no more than that something went wrong.
            told: BaseException | None = self._trouble
            raise error if told is None else told from None

    def _open_checkpoint(self) -> None:
        stream = self.plan.stream.name
        if not self._checkpoint.folder.exists():
            if self._batch.number >= 0:
                raise UnavailableError(
                    f"where the detection in {quote(stream)} goes on is not known: its checkpoint "
                    "is gone",
                    fix=f"restore it, or move {self._writer.folder} away",
                )
            self._source.begin()
            self._checkpoint.folder.mkdir(mode=0o700)
            self._checkpoint.claim(Owner(stream, self._source.identify()))
        self._checkpoint.check(Owner(stream, self._source.identify()))
        self._source.check(Position(self._checkpoint.folder, self._batch.place))

    @property
    def _batch(self) -> Batch:
        newest = self._writer.newest
        return newest.batch if newest is not None else Batch()

    def _take(self, frame: DataFrame, number: int) -> None:
        """Take a batch that Spark offers; called by Spark."""
        if number <= self._batch.number:
            return  # killed before Spark noted that it is done
        try:
            batch = Batch(self._checkpoint.name, number, self._checkpoint.offsets(number))
            self._opt_outs = self._consent()
            parsed = parse_records(frame, self.plan.stream, self._find_schema)
            self._process(parsed, batch)
        except BaseException as error:
            self._trouble = error
            raise

    def advance(self, at: int) -> None:
        """Let time pass, where that may change something."""
        timer = find_timer(self._engines, self._mark.token) if self._mark.token else None
        if timer is None or timer > at:
            return
        self._pass(max(at, self.clock))

    def _forget_asked(self) -> None:
        """Forget who is erased: the state of all engines is written anew without them."""
        asked = find_asked(self._writer.folder)
        if asked and self._mark.token:
            people = ErasedNames.gather(asked.values())
            self._pass(self.clock, people)
        for path in asked:
            path.unlink()

    def _pass(self, at: int, erased: ErasedNames | None = None) -> None:
        """Commit a batch without records."""
        raw = self._spark.createDataFrame([], SCHEMA)
        nothing = self._bind(parse_records(raw, self.plan.stream, self._find_schema))
        self._finish(self._writer.stage(), nothing, [], at, self._batch, erased=erased)

    def _process(self, parsed: DataFrame, batch: Batch) -> None:
        staged = self._writer.stage()
        with _kept(self._bind(parsed)) as bound:
            table = bound.select(_PLACE, _AT, f"`{PROBLEM}`").toArrow().sort_by(_PLACE)
            problems = table[PROBLEM]
            letters = table.filter(problems.is_valid()).select([_PLACE, PROBLEM]).to_pylist()
            happened = table.filter(problems.is_null())
            placed, clock = self._place_in_time(bound, happened)
            rows = placed.where(F.col(f"`{PROBLEM}`").isNull())
            self._finish(staged, rows, letters, clock, batch, len(table))

    def _bind(self, parsed: DataFrame) -> DataFrame:
        """Return the events that each record is; records that are none let time pass, too."""
        when = F.col(f"`{TIME}`")
        problem = F.coalesce(F.col(f"`{PROBLEM}`"), F.when(when.isNull(), F.lit(NO_TIME)))
        refusing = {
            name: who
            for name, purposes in self._purposes.items()
            if (who := self._opt_outs.refusing(purposes))
        }
        flags = {who: f"{_REFUSED}-{number}" for number, who in enumerate(set(refusing.values()))}
        for who, flag in flags.items():
            parsed = flag_refused(parsed, self.plan.stream, who, flag)
        events = [
            F.when(
                problem.isNull() & ~_named(flags[refusing[name]])
                if name in refusing
                else problem.isNull(),
                event,
            ).alias(name)
            for name, event in self._bound.items()
        ]
        return parsed.select(
            F.col(f"`{OFFSET}`").alias(_PLACE), when.alias(_AT), problem.alias(PROBLEM), *events
        )

    def _place_in_time(self, bound: DataFrame, happened: pa.Table) -> tuple[DataFrame, int]:
        """Let no record happen before an earlier one; return the latest time, too."""
        if not len(happened):
            return bound, self.clock
        told = happened[_AT].to_numpy()
        times = np.maximum.accumulate(np.maximum(told, self.clock))
        clock = int(times[-1])
        if np.array_equal(told, times):
            return bound, clock
        changed = told != times
        moved = pa.table({_PLACE: happened[_PLACE].to_numpy()[changed], "moved": times[changed]})
        joined = bound.join(F.broadcast(self._spark.createDataFrame(moved)), _PLACE, "left")
        return joined.withColumn(_AT, F.coalesce("moved", _AT)).drop("moved"), clock

    def _finish(
        self,
        staged: Path,
        rows: DataFrame,
        letters: list[dict[str, Any]],
        clock: int,
        batch: Batch,
        read: int = 0,
        erased: ErasedNames | None = None,
    ) -> None:
        """Follow all parts through a batch, and commit what came of it."""
        before, token = self._mark, f"{self._writer.sequence}-{uuid.uuid4().hex[:8]}"
        target = staged / "data"
        parted = self._part(rows, clock)
        task = make_task(self.plan.text, str(self._engines), before.token, token, erased)
        made = parted.groupBy(PART).applyInArrow(task, RESULTS)
        made.write.options(compression="zstd").parquet(str(target))
        joint = self._follow_joint(rows, target, clock, token, erased)
        published = sum(
            pyarrow.parquet.read_metadata(path).num_rows for path in target.glob("part-*")
        )
        mark = Mark(token, clock, before.parts, before.key, joint, before.stream)
        totals = Totals(read, published, len(letters))
        self._totals = self._totals.add(totals)
        commit = Commit(
            self._writer.sequence,
            self.plan.signature,
            batch,
            at=time.time_ns() // 1_000_000,
            totals=self._totals,
            mark=json.dumps(asdict(mark)),
        )
        dead = [{**self._source.locate(it[_PLACE]), "reason": it[PROBLEM]} for it in letters]
        self._writer.commit(commit, dead)
        self._mark = mark
        self._clear()

    def _follow_joint(
        self, rows: DataFrame, target: Path, clock: int, token: str, erased: ErasedNames | None
    ) -> bool:
        program = self.plan.separation.joint
        if program is None:
            return False
        if self._joint is None:
            token_before = self._mark.token if self._mark.joint else ""
            self._joint = JointEngine(self.plan.separation, self._engines, token_before)
        joint, self._joint = self._joint, None  # if it fails, it is made anew
        if erased is not None:
            joint.forget(erased)
        events = [_named(name) for name in list_packets(program)]
        samples = rows.where(_any(events)).select(_PLACE, _AT, *events).toArrow()
        found = joint.follow(samples, target, clock)
        joint.save(token)
        if len(found):
            pyarrow.parquet.write_table(found, target / "part-joint.parquet", compression="zstd")
        self._joint = joint
        return True

    def _part(self, rows: DataFrame, clock: int) -> DataFrame:
        """Return the events of each part, and for each one row that lets time pass."""
        names = list(list_packets(self.plan.separation.keyed))
        wait = [F.lit(None).cast("bigint").alias(_PLACE), F.lit(clock).cast("bigint").alias(_AT)]
        nothing = [F.lit(None).cast(rows.schema[name].dataType).alias(name) for name in names]
        parts = self._spark.range(0, self._mark.parts, 1, 1)
        waits = parts.select(F.col("id").cast("int").alias(PART), *wait, *nothing)
        return self._route(rows, names).unionByName(waits)

    def _route(self, rows: DataFrame, names: list[str]) -> DataFrame:
        """Return events with the part of the person that they are about."""
        mark = self._mark
        if mark.key is None:
            events = [_named(name) for name in names]
            return rows.where(_any(events)).select(F.lit(0).alias(PART), _PLACE, _AT, *events)
        keys = {}
        for name in names:
            said = F.coalesce(_named(name).getField(field_name(mark.key)), F.lit(""))
            keys[name] = F.when(_named(name).isNotNull(), said)
        persons = F.explode(F.array_distinct(F.array_compact(F.array(*keys.values()))))
        events = [
            F.when(key == F.col(f"`{_KEY}`"), _named(name)).alias(name)
            for name, key in keys.items()
        ]
        part = F.pmod(F.xxhash64(f"`{_KEY}`"), F.lit(mark.parts)).cast("int").alias(PART)
        told = rows.select(_PLACE, _AT, *map(_named, names), persons.alias(_KEY))
        return told.select(part, _PLACE, _AT, *events)

    def _clear(self) -> None:
        """Remove the state of batches that do not count, or count no longer."""
        if self._engines.is_dir():
            for path in self._engines.iterdir():
                if path.name != self._mark.token:
                    shutil.rmtree(path)


def _named(name: str) -> Column:
    return F.col(f"`{name}`")


def _any(columns: Sequence[Column]) -> Column:
    """Return whether some column has a value."""
    return reduce(or_, (it.isNotNull() for it in columns), F.lit(False))  # noqa: FBT003


@contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    """Keep a frame that is gone through several times."""
    frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield frame
    finally:
        frame.unpersist()


def results_folder(settings: PipelineSettings, stream: str) -> Path:
    """Return where results of a stream's detection are kept."""
    return settings.detections / stream


def open_detection(
    config: Config,
    spark: SparkSession,
    definitions: DefinitionSet,
    stream: str,
    consent: Consent = nobody_opted_out,
) -> DetectionRunner:
    """Return the detection of a stream, ready to take in records."""
    settings = config.pipeline
    plan = DetectionPlan.find(definitions, stream)
    kafka = plan.stream.source.kafka if plan.stream.source else None
    runner = DetectionRunner(
        spark,
        plan,
        open_source(plan.stream, settings, config.kafka),
        results_folder(settings, stream),
        rows=settings.batch,
        find_schema=SchemaRegistry(kafka.registry) if kafka and kafka.registry else None,
        consent=consent,
    )
    runner.open()
    return runner


def run_detection(
    open_runner: Callable[[DefinitionSet], DetectionRunner],
    definitions: Callable[[], DefinitionSet],
    interval: float,
    told: threading.Event,
) -> DetectionRunner:
    """Take in records as they come, by the definitions of then; return the last runner, closed."""
    known = definitions()
    runner = open_runner(known)
    away = False
    _log.info("detecting events", stream=runner.plan.stream.name)
    try:
        while not told.is_set():
            try:
                now, away = definitions(), False
            except UnavailableError as error:
                # By which definitions, cannot be known: records wait.
                if not away:
                    _log.warning("the definitions cannot be read", error=error)
                away = True
            else:
                if now is not known and runner.plan.differs(now):
                    _log.info("the definitions have changed", stream=runner.plan.stream.name)
                    runner.close()
                    runner = open_runner(now)
                known = now
                try:
                    _take_in(runner)
                except ConsentUnknownError as error:
                    _log.warning("what people want is not known: records wait", error=error)
            told.wait(interval)
    finally:
        runner.close()
        _log.info("detection has ended", stream=runner.plan.stream.name)
    return runner


def _take_in(runner: DetectionRunner) -> None:
    runner.catch_up()
    if runner.plan.stream.time is None:
        runner.advance(time.time_ns() // 1_000_000 - GRACE)
