"""Runs one view: batches of its stream become files that count.

Rules that hold here:
- Masks are columns of Spark. A stateful anonymizer is an operator in the view's own query
  (`stateful_query`); what it holds back is in Spark's state store.
- A batch that the view has already is passed over, by the number that Spark gives it.
- Of a batch one action makes all: rows in files, records that were rejected, reports of shards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.errors import UsageError, quote
from penstock.eventlog import Topic
from penstock.eventlog.erasure import find_asked
from penstock.hadoop import is_remote, remove
from penstock.masks import Vault
from penstock.model.kinds.views import REAL_TIME
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.anonymizers.k_anonymity import PERSONS, RECORDS
from penstock.pipeline.anonymizers.stateful import DeadLetter, read_table
from penstock.pipeline.dataframes.shards import REASON
from penstock.pipeline.dataframes.view import RowView
from penstock.pipeline.records.columns import OFFSET
from penstock.pipeline.records.opt_outs import Consent, OptedOut, mark_refused, nobody_opted_out
from penstock.pipeline.sinks.commits import Batch, Commit, ShardCount, Totals, ViewWriter
from penstock.pipeline.sinks.files import ParquetSink
from penstock.pipeline.sinks.formats import OWN_WRITERS, Sinks
from penstock.pipeline.sinks.published import write_persons
from penstock.pipeline.views.single_pass import (
    Branch,
    Made,
    Written,
    write_by_spark,
    write_made,
    write_together,
)
from penstock.store.opt_outs import SubjectMarks


class ViewRunner:
    """A view that takes in batches."""

    def __init__(
        self,
        spark: SparkSession,
        blueprint: Blueprint,
        folder: Path,
        secret: bytes,
        *,
        store: Path | None = None,
        writer: ViewWriter | None = None,
        sinks: Sinks | None = None,
        vault: Vault | None = None,
        consent: Consent = nobody_opted_out,
        purposes: tuple[str, ...] | None = None,
        locate: Callable[[int], dict[str, Any]] = lambda offset: {"offset": offset},
    ) -> None:
        self.blueprint = blueprint
        self.name = blueprint.view.name
        self.folder = folder
        self.secret = secret
        self.vault = vault
        self.stateful = bool(blueprint.plan.stateful)
        self.alone = self.stateful or blueprint.view.trigger == REAL_TIME
        """Whether the view has a query of its own."""
        self.refusing = OptedOut()
        """Who wants no part in the view, as of when it was asked last."""
        self._spark = spark
        self._sinks = sinks or Sinks(Topic(folder / blueprint.view.topic))
        self._sink = self._sinks.find(blueprint.view.format, blueprint.view.encoding)
        self._writer = writer or ViewWriter(folder, self._deliver, store)
        self._plans = folder / "plans"
        self._consent = consent
        # Definitions that were kept do not tell what the view serves now.
        self._purposes = blueprint.view.purposes if purposes is None else purposes
        self._locate = locate
        self._before, _ = blueprint.chains(secret, vault)
        self._built: tuple[SparkSession, RowView] | None = None

    def open(self) -> None:
        """Take the view, and go on where its newest commit ended."""
        last = self._writer.open()
        try:
            self._check_format()
            self._keep_plan()
            if last is not None and last.plan != self.blueprint.signature:
                self._check_change(self._read_plan(last.plan))
        except BaseException:
            self.close()
            raise

    def _check_format(self) -> None:
        form = self.blueprint.view.format
        if self._by_spark and form in OWN_WRITERS:
            raise UsageError(
                f"the view {quote(self.name)} has the format {form}, which is not written at "
                f"{quote(self._writer.files)}",
                fix="choose parquet, json or csv, or run it where pipeline.store is a folder",
            )

    def _keep_plan(self) -> None:
        self._plans.mkdir(mode=0o700, exist_ok=True)
        plan = self._plans / f"{self.blueprint.signature}.json"
        if not plan.exists():
            partial = plan.with_suffix(".partial")
            partial.write_text(self.blueprint.to_json(), encoding="utf-8")
            partial.replace(plan)

    def _read_plan(self, name: str) -> Blueprint:
        return Blueprint.from_json((self._plans / f"{name}.json").read_text(encoding="utf-8"))

    def _check_change(self, earlier: Blueprint) -> None:
        before, now = earlier.stream, self.blueprint.stream
        if (before.name, before.source) != (now.name, now.source):
            # Its batches would be of other records.
            raise UsageError(
                f"the view {quote(self.name)} was one of the stream {quote(before.name)}"
                f"{'' if before.name != now.name else ', which had another source'}",
                fix=f"give it another name, or move {self.folder} away",
            )

    def before_change(self) -> ViewRunner | None:
        """Return the view as it was when it took in what it still holds back, if it was another.

        What is held leaves under the definitions that it came in under.
        """
        last = self._writer.newest
        if last is None or not last.held or last.plan == self.blueprint.signature:
            return None
        return ViewRunner(
            self._spark,
            self._read_plan(last.plan),
            self.folder,
            self.secret,
            writer=self._writer,
            sinks=self._sinks,
            vault=self.vault,
            consent=self._consent,
            purposes=self._purposes,
            locate=self._locate,
        )

    def close(self) -> None:
        """Release the view."""
        self._writer.close()

    # --- how far it is ---

    @property
    def batch(self) -> Batch:
        """The newest batch of Spark's that the view has."""
        newest = self._writer.newest
        return newest.batch if newest is not None else Batch()

    def has(self, batch: Batch) -> bool:
        """Whether the view has a batch already: Spark was killed before it noted that."""
        own = self.batch
        return own.checkpoint == batch.checkpoint and own.number >= batch.number

    @property
    def _totals(self) -> Totals:
        newest = self._writer.newest
        return newest.totals if newest is not None else Totals()

    @property
    def read(self) -> int:
        """How many records the view has read."""
        return self._totals.read

    @property
    def held(self) -> int:
        """How many records the view holds back."""
        newest = self._writer.newest
        return newest.held if newest is not None else 0

    def is_due(self, now: int) -> bool:
        """Whether something leaves by the clock, if it is `now`; or somebody is to be erased."""
        if self.stateful and find_asked(self.folder):
            return True
        newest = self._writer.newest
        return newest is not None and newest.due is not None and newest.due <= now

    # --- batches ---

    def ask(self) -> None:
        """Ask who wants no part in the view; before each batch."""
        self.refusing = self._consent().refusing(self._purposes)

    @property
    def marks(self) -> SubjectMarks | None:
        """What marks people, to find those who opt out or are erased among what is held."""
        return self.refusing.marks

    @property
    def _by_spark(self) -> bool:
        """Whether Spark writes the files, since no task reaches them by a path."""
        return is_remote(self._writer.files)

    @property
    def joins(self) -> bool:
        """Whether the view can be written in one pass with others of its stream."""
        return isinstance(self._sink, ParquetSink) and not (self.refusing or self._by_spark)

    def branch(self) -> Branch:
        """Return what a pass with other views needs: the masks, and a place for files."""
        return Branch(self._before, self._writer.stage() / "data")

    def process(self, frame: DataFrame, batch: Batch, written: Written | None = None) -> Commit:
        """Publish what the parsed records of a batch become, row by row.

        What was `written` in a pass with other views is committed as it is.
        """
        if self.joins:
            found = written or process_together([self], frame)[self.name]
            count = found.published + len(found.dead)
            totals = Totals(count, found.published, len(found.dead), 0.0)
            return self._commit(batch, found.dead, totals)
        staged = self._writer.stage()
        published, dead = self._write(self.make(frame), staged)
        totals = Totals(published + len(dead), published, len(dead), 0.0)
        return self._commit(batch, dead, totals)

    def note(self, batch: Batch, read: int, dead: Sequence[DeadLetter]) -> Commit:
        """Commit a batch whose records Spark itself has brought to the view's topic."""
        totals = Totals(read, read - len(dead), len(dead), 0.0)
        self._writer.stage()
        return self._commit(batch, dead, totals)

    def topic_options(self) -> dict[str, str]:
        """Return what Spark's own sink needs to write to the view's topic."""
        return self._sinks.stream_options()

    def publish(self, made: DataFrame, batch: Batch) -> Commit:
        """Publish what left the stateful operator in a batch; see `dataframes.view.make_view`."""
        staged = self._writer.stage()
        output, data = self.blueprint.plan.output, staged / "data"
        if isinstance(self._sink, ParquetSink) and not self._by_spark:
            found = write_made(made, output, data)
        else:
            found = write_by_spark(made, output, lambda rows: self._sink.write(rows, data))
            if not found.published:
                remove(data)
        before = self._writer.newest
        shards = {**(before.shards if before is not None else {}), **found.shards}
        write_persons(self.folder, self._writer.sequence, _join_groups(found))
        totals = Totals(found.read, found.published, len(found.dead), found.loss)
        return self._commit(batch, found.dead, totals, shards)

    def make(self, frame: DataFrame, refusing: OptedOut | None = None) -> DataFrame:
        """Return the view without state, but of those who refuse."""
        session = frame.sparkSession
        if self._built is None or self._built[0] is not session:
            # Built once, as the next batch needs the same.
            self._built = session, RowView(session, self.blueprint, self._before)
        stream, who = self.blueprint.stream, self.refusing if refusing is None else refusing
        return self._built[1].make(mark_refused(frame, stream, who))

    def _write(self, made: DataFrame, staged: Path) -> tuple[int, list[DeadLetter]]:
        """Write the rows that passed all masks; return their number, and the others."""
        seen = Observation()
        rejected = _named(REASON)
        watched = made.observe(
            seen,
            F.count(F.when(rejected.isNull(), 1)).alias("fine"),
            F.count(rejected).alias("rejected"),
        )
        self._sink.write(
            watched.where(rejected.isNull()).select(*(f"`{name}`" for name in self._before.output)),
            staged / "data",
        )
        counts = seen.get
        dead = []
        if counts["rejected"]:
            table = made.where(rejected.isNotNull()).select(f"`{OFFSET}`", rejected).toArrow()
            dead = list(map(DeadLetter, table[OFFSET].to_pylist(), table[REASON].to_pylist()))
        if not counts["fine"]:
            remove(staged / "data")
        return int(counts["fine"]), dead

    def _deliver(self, commit: Commit, files: Sequence[Path], *, again: bool) -> None:
        # The format of the commit: the view may have been changed since.
        self._sinks.find(commit.format).deliver(commit, files, again=again)

    def _commit(
        self,
        batch: Batch,
        dead: Sequence[DeadLetter],
        totals: Totals,
        shards: Mapping[str, ShardCount] | None = None,
    ) -> Commit:
        letters = [
            {**self._locate(it.offset), "reason": it.reason}
            for it in sorted(dead, key=lambda letter: letter.offset)
        ]
        commit = Commit(
            self._writer.sequence,
            self.blueprint.signature,
            batch,
            held=sum(held for held, _ in (shards or {}).values()),
            due=min((due for _, due in (shards or {}).values() if due is not None), default=None),
            shards=shards or {},
            at=time.time_ns() // 1_000_000,
            totals=self._totals.add(totals),
            format=self.blueprint.view.format,
            begin=self._sink.begin(),
        )
        return self._writer.commit(commit, letters)


def process_together(views: Sequence[ViewRunner], frame: DataFrame) -> dict[str, Written]:
    """Write, but do not commit, views that join; returns what became of the rows, by view."""
    branches = [view.branch() for view in views]
    found = write_together(frame, branches, views[0].blueprint.stream.topic)
    return {view.name: one for view, one in zip(views, found, strict=True)}


def _join_groups(made: Made) -> pa.Table | None:
    """Return how many persons are behind each group: shards have different ones."""
    # What a shard tells twice in a batch may be about the same persons.
    tables = [_sum_up(read_table(it), "max") for it in made.groups]
    return _sum_up(pa.concat_tables(tables), "sum") if tables else None


def _sum_up(table: pa.Table, persons: str) -> pa.Table:
    names = [name for name in table.column_names if name not in {RECORDS, PERSONS}]
    summed = table.group_by(names).aggregate([(RECORDS, "sum"), (PERSONS, persons)])
    return summed.rename_columns([*names, RECORDS, PERSONS]).select(table.column_names)


def _named(name: str) -> Column:
    return F.col(f"`{name}`")
