"""Runs one view: batches of its stream become files that count.

Rules that hold here:
- Masks are columns of Spark. A collective step works on the driver, on the rows of one
  batch; what it holds back is saved with the commit of the batch.
- Records that the view has seen already are passed over by their offsets, whatever Spark
  offers again.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.errors import UsageError, quote
from penstock.eventlog import Topic
from penstock.masks import Chain, Vault
from penstock.masks.spark import mask_frame
from penstock.pipeline.blueprint import Blueprint
from penstock.pipeline.commits import Commit, Totals, ViewWriter
from penstock.pipeline.consent import Consent, mark_refused, nobody_opted_out
from penstock.pipeline.joint import Branch, Written, write_together
from penstock.pipeline.log_source import OFFSET, PROBLEM
from penstock.pipeline.parsing import PERSON, TIME
from penstock.pipeline.risk_persons import write_persons
from penstock.pipeline.sinks.files import ParquetSink
from penstock.pipeline.sinks.opening import Sinks
from penstock.pipeline.steps import NO_TIME, WINDOW, DeadLetter, Outcome, Step, arrow_schema

REJECTED: Final = "penstock:rejected"


class ViewRunner:
    """A view that takes in batches."""

    def __init__(
        self,
        spark: SparkSession,
        blueprint: Blueprint,
        folder: Path,
        secret: bytes,
        writer: ViewWriter | None = None,
        sinks: Sinks | None = None,
        vault: Vault | None = None,
        consent: Consent = nobody_opted_out,
    ) -> None:
        self.blueprint = blueprint
        self.name = blueprint.view.name
        self.next = 0
        self._spark = spark
        self._secret = secret
        self._sinks = sinks or Sinks(Topic(folder / blueprint.view.topic))
        self._sink = self._sinks.find(blueprint.view.format)
        self._writer = writer or ViewWriter(folder, self._deliver)
        self._plans = folder / "plans"
        self._vault = vault
        self._consent = consent
        self._refusing: frozenset[str] = frozenset()
        self._before, self._after = blueprint.chains(secret, vault)
        self._totals = Totals()
        self._step: Step | None = None
        # What the view did before its definition changed; budgets are taken over from it.
        self._earlier: Step | None = None

    def open(self) -> None:
        """Take the view, and go on where its newest commit ended."""
        last = self._writer.open()
        try:
            self._go_on(last)
        except BaseException:
            self._writer.close()
            raise

    def _go_on(self, last: Commit | None) -> None:
        self._plans.mkdir(mode=0o700, exist_ok=True)
        plan = self._plans / f"{self.blueprint.signature}.json"
        if not plan.exists():
            partial = plan.with_suffix(".partial")
            partial.write_text(self.blueprint.to_json(), encoding="utf-8")
            partial.replace(plan)
        if last is not None and last.plan != self.blueprint.signature:
            self._change_from(last)
        self._resume()

    def _resume(self) -> None:
        last = self._writer.newest
        if last is not None:
            self._totals, self.next = last.totals, last.next
        own = last is not None and last.plan == self.blueprint.signature
        saved = self._writer.load_state() if own else None
        self._step = self.blueprint.make_step(self._secret, saved, self._earlier)

    def _change_from(self, last: Commit) -> None:
        """Publish what was held back under earlier definitions, as these say."""
        text = (self._plans / f"{last.plan}.json").read_text(encoding="utf-8")
        before = Blueprint.from_json(text)
        now = self.blueprint.stream
        if (before.stream.name, before.stream.source) != (now.name, now.source):
            # Its offsets would mean other records.
            raise UsageError(
                f"the view {quote(self.name)} was one of the stream {quote(before.stream.name)}"
                f"{'' if before.stream.name != now.name else ', which had another source'}",
                fix=f"give it another name, or move {self._writer.folder} away",
            )
        if last.state:
            folder = self._writer.folder
            earlier = ViewRunner(
                self._spark, before, folder, self._secret, self._writer, self._sinks, self._vault
            )
            earlier._resume()
            earlier.flush()
            self._earlier = earlier._step

    def close(self) -> None:
        """Give the view free."""
        self._writer.close()

    @property
    def held(self) -> int:
        """How many records the view holds back."""
        return self._step.held if self._step else 0

    @property
    def joins(self) -> bool:
        """Whether the view can be written in one pass with others of its stream."""
        plain = self._step is None and isinstance(self._sink, ParquetSink)
        return plain and not self._refusing

    def ask(self) -> None:
        """Ask who wants no part in the view; before each batch."""
        self._refusing = self._consent().refusing(self.blueprint.view.purposes)

    def process(self, frame: DataFrame, end: int, written: Written | None = None) -> Commit:
        """Publish what parsed records become, from `next` to before `end`.

        What was `written` in a pass with other views is committed as it is.
        """
        if self.joins:
            found = written or process_together([self], frame)[self.name]
            count = found.published + len(found.dead)
            totals = Totals(count, found.published, len(found.dead), 0.0)
            return self._commit(found.target.parent, end, found.dead, totals)
        staged = self._writer.stage()
        carry = [OFFSET, PERSON, TIME] if self._step else [OFFSET]
        frame = mark_refused(frame, self.blueprint.stream, self._refusing)
        identity = F.concat(F.lit(f"{self.blueprint.stream.topic}/"), _named(OFFSET).cast("string"))
        masked = mask_frame(
            frame, self._before, identity=identity, carry=[*carry, PROBLEM], rejection=REJECTED
        )
        reason = F.coalesce(_named(PROBLEM), _named(REJECTED))
        masked = masked.withColumn(REJECTED, reason).drop(PROBLEM)
        dead: list[DeadLetter] = []
        loss = 0.0
        if self._step is None:
            published = self._write(masked, self._before, staged, dead)
            count = published + len(dead)
        else:
            rows, refused = self._collect(masked, [*self._before.output, *carry])
            dead += refused
            count = int(rows.num_rows) + len(refused)
            # The clock says nothing yet: records that arrived before now may still be unread.
            outcome = self._step.feed(rows, NO_TIME)
            published = self._publish(outcome, staged, dead)
            loss = outcome.loss
        return self._commit(staged, end, dead, Totals(count, published, len(dead), loss))

    def branch(self) -> Branch:
        """Return what a pass with other views needs: the masks, and a place for files."""
        return Branch(self._before, self._writer.stage() / "data")

    def flush(self) -> Commit | None:
        """End the stream: publish what is held back."""
        if self._step is None or not self._step.held:
            return None
        staged = self._writer.stage()
        dead: list[DeadLetter] = []
        outcome = self._step.flush()
        published = self._publish(outcome, staged, dead)
        totals = Totals(0, published, len(dead), outcome.loss)
        return self._commit(staged, self.next, dead, totals)

    def is_due(self, now: int) -> bool:
        """Whether the clock ends a window, if it is `now`."""
        return self._step is not None and self._step.is_due(now)

    def tick(self, now: int) -> Commit | None:
        """Let windows end by the clock; the view has read all that arrived before `now`."""
        if self._step is None or not self._step.is_due(now):
            return None
        empty = arrow_schema(self._before.output, OFFSET, PERSON, TIME).empty_table()
        outcome = self._step.feed(empty, now)
        staged = self._writer.stage()
        dead: list[DeadLetter] = []
        published = self._publish(outcome, staged, dead)
        totals = Totals(0, published, len(dead), outcome.loss)
        return self._commit(staged, self.next, dead, totals)

    def _collect(self, masked: DataFrame, columns: list[str]) -> tuple[pa.Table, list[DeadLetter]]:
        """Bring rows to the driver, in the order of their offsets."""
        table = masked.toArrow().sort_by(OFFSET)
        reasons = table[REJECTED]
        refused = table.filter(reasons.is_valid())
        dead = _letters(refused)
        return table.filter(reasons.is_null()).select(columns), dead

    def _publish(self, outcome: Outcome, staged: Path, dead: list[DeadLetter]) -> int:
        """Write what left a collective step, through the masks behind it."""
        dead += outcome.dead
        write_persons(self._writer.folder, self._writer.sequence, outcome.groups)
        rows = outcome.rows
        if not rows.num_rows:
            return 0
        if self._after is None:
            fields = rows.select(list(self.blueprint.plan.output))
            self._sink.write_table(self._spark, fields, staged / "data")
            return int(rows.num_rows)
        frame = self._spark.createDataFrame(rows)
        parts = [F.lit(self.blueprint.stream.topic), _named(OFFSET), _named(WINDOW)]
        identity = F.concat_ws("/", *(part.cast("string") for part in parts))
        masked = mask_frame(
            frame, self._after, identity=identity, carry=[OFFSET], rejection=REJECTED
        )
        return self._write(masked, self._after, staged, dead)

    def _write(self, masked: DataFrame, chain: Chain, staged: Path, dead: list[DeadLetter]) -> int:
        """Write the rows that passed all masks; return their number."""
        seen = Observation()
        rejected = _named(REJECTED)
        watched = masked.observe(
            seen,
            F.count(F.when(rejected.isNull(), 1)).alias("fine"),
            F.count(rejected).alias("rejected"),
        )
        self._sink.write(
            watched.where(rejected.isNull()).select(*(f"`{name}`" for name in chain.output)),
            staged / "data",
        )
        counts = seen.get
        if counts["rejected"]:
            table = masked.where(rejected.isNotNull()).select(f"`{OFFSET}`", rejected).toArrow()
            dead += _letters(table)
        if not counts["fine"]:
            shutil.rmtree(staged / "data")
        return int(counts["fine"])

    def _deliver(self, commit: Commit, files: Sequence[Path], *, again: bool) -> None:
        # The format of the commit: the view may have been changed since.
        self._sinks.find(commit.format).deliver(commit, files, again=again)

    def _commit(self, staged: Path, end: int, dead: list[DeadLetter], totals: Totals) -> Commit:
        if dead:
            ordered = sorted(dead, key=lambda letter: letter.offset)
            with (staged / "dead" / "letters.jsonl").open("w", encoding="utf-8") as file:
                for letter in ordered:
                    entry = {"offset": letter.offset, "reason": letter.reason}
                    file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        self._totals = self._totals.add(totals)
        held = self.held
        plan = self.blueprint.signature
        commit = Commit(
            self._writer.sequence,
            end,
            plan,
            held=held,
            at=_now(),
            totals=self._totals,
            format=self.blueprint.view.format,
            begin=self._sink.begin(),
        )
        # A step that holds nothing still knows what it learnt; it is saved all the same.
        made = self._writer.commit(commit, self._step.save() if self._step else None)
        self.next = end
        return made


def process_together(views: Sequence[ViewRunner], frame: DataFrame) -> dict[str, Written]:
    """Write, but do not commit, views that join; returns what became of the rows, by view."""
    branches = [view.branch() for view in views]
    found = write_together(frame, branches, views[0].blueprint.stream.topic)
    return {view.name: one for view, one in zip(views, found, strict=True)}


def _letters(table: pa.Table) -> list[DeadLetter]:
    return [
        DeadLetter(offset, reason)
        for offset, reason in zip(
            table[OFFSET].to_pylist(), table[REJECTED].to_pylist(), strict=True
        )
    ]


def _named(name: str) -> Column:
    return F.col(f"`{name}`")


def _now() -> int:
    return time.time_ns() // 1_000_000
