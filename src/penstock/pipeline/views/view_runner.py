"""Runs one view: batches of its stream become files that count.

Rules that hold here:
- Masks are columns of Spark. A stateful step is a query of its own; what it holds
  back is in Spark's state store, and what leaves it counts with the commit of the batch.
- Records that the view has seen already are passed over by their offsets, whatever Spark
  offers again.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.errors import UnavailableError, UsageError, quote
from penstock.eventlog import Topic
from penstock.eventlog.erasure import find_asked
from penstock.masks import Chain, Vault
from penstock.masks.spark import RowMasks, mask_frame
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.anonymizers.stateful import DeadLetter, StepOutcome
from penstock.pipeline.records.columns import (
    NO_TIME,
    OFFSET,
    PERSON,
    PROBLEM,
    SUBJECT,
    TIME,
    WINDOW,
)
from penstock.pipeline.records.opt_outs import (
    Consent,
    OptedOut,
    mark_refused,
    mark_subjects,
    nobody_opted_out,
)
from penstock.pipeline.sinks.commits import Commit, Totals, ViewWriter
from penstock.pipeline.sinks.files import ParquetSink
from penstock.pipeline.sinks.formats import Sinks
from penstock.pipeline.sinks.published import write_persons
from penstock.pipeline.views.operator.commands import (
    FEED,
    FLUSH,
    REASON,
    Command,
    Report,
    load_outcome,
    save_erased,
    save_opted_out,
    stage_rows,
)
from penstock.pipeline.views.operator.query import StepQuery
from penstock.pipeline.views.single_pass import Branch, Written, write_together


class ViewRunner:
    """A view that takes in batches."""

    def __init__(
        self,
        spark: SparkSession,
        blueprint: Blueprint,
        folder: Path,
        secret: bytes,
        *,
        writer: ViewWriter | None = None,
        sinks: Sinks | None = None,
        vault: Vault | None = None,
        consent: Consent = nobody_opted_out,
        steps: StepQuery | None = None,
        purposes: tuple[str, ...] | None = None,
    ) -> None:
        self.blueprint = blueprint
        self.name = blueprint.view.name
        self.next = 0
        self.held = 0
        """How many records the view holds back."""
        self._due: int | None = None
        self._spark = spark
        self._secret = secret
        self._sinks = sinks or Sinks(Topic(folder / blueprint.view.topic))
        self._sink = self._sinks.find(blueprint.view.format, blueprint.view.encoding)
        self._writer = writer or ViewWriter(folder, self._deliver)
        self._plans = folder / "plans"
        self._steps = steps or StepQuery(spark, folder, self._plans, secret)
        self._vault = vault
        self._consent = consent
        # Definitions that were kept do not tell what the view serves now.
        self._purposes = blueprint.view.purposes if purposes is None else purposes
        self._refusing = OptedOut()
        self._before, self._after = blueprint.chains(secret, vault)
        self._stateful = bool(blueprint.plan.stateful)
        self.waits_for_reading = any(step.windowed for step in blueprint.plan.stateful)
        """Whether the clock lets something leave only once all that arrived before was read."""
        self._built: tuple[SparkSession, RowMasks] | None = None
        self._totals = Totals()

    def open(self) -> None:
        """Take the view, and go on where its newest commit ended."""
        last = self._writer.open()
        try:
            self._go_on(last)
        except BaseException:
            self.close()
            raise

    def _go_on(self, last: Commit | None) -> None:
        self._plans.mkdir(mode=0o700, exist_ok=True)
        plan = self._plans / f"{self.blueprint.signature}.json"
        if not plan.exists():
            partial = plan.with_suffix(".partial")
            partial.write_text(self.blueprint.to_json(), encoding="utf-8")
            partial.replace(plan)
        if self._stateful:
            self._steps.command_folder.prepare()
        given = self._steps.command_folder.find(self._writer.sequence)
        if given is not None:
            # Killed in the middle of it: it is done before anything else.
            own = given.plan == self.blueprint.signature
            (self if own else self._before_change(given)).complete(given)
            last = self._writer.newest
        if last is not None and last.held and not self._steps.command_folder.has_state:
            raise UnavailableError(
                f"the view {quote(self.name)} held {last.held} records back, and they are gone",
                fix=f"bring {self._steps.command_folder.folder} back, or begin the view anew",
            )
        if last is not None and last.plan != self.blueprint.signature:
            self._change_from(last)
        self._resume()

    def _resume(self) -> None:
        last = self._writer.newest
        if last is not None:
            self._totals, self.next = last.totals, last.next
            self.held, self._due = last.held, last.due

    def _change_from(self, last: Commit) -> None:
        """Publish what was held back under earlier definitions, as these say."""
        earlier = self._before_change(last)
        before, now = earlier.blueprint.stream, self.blueprint.stream
        if (before.name, before.source) != (now.name, now.source):
            # Its offsets would mean other records.
            raise UsageError(
                f"the view {quote(self.name)} was one of the stream {quote(before.name)}"
                f"{'' if before.name != now.name else ', which had another source'}",
                fix=f"give it another name, or move {self._writer.folder} away",
            )
        earlier.end()

    def complete(self, command: Command) -> None:
        """Run a command that was given before; the caller has the view open."""
        self._resume()
        self.ask()
        save_opted_out(self._steps.command_folder.rows(command.number), self._refusing)
        self._obey(command)

    def end(self) -> None:
        """Publish what is held back, for good; the caller has the view open."""
        self._resume()
        self.flush()

    def _before_change(self, made: Commit | Command) -> ViewRunner:
        """Return the view under the definitions that a commit or a command went by."""
        text = (self._plans / f"{made.plan}.json").read_text(encoding="utf-8")
        return ViewRunner(
            self._spark,
            Blueprint.from_json(text),
            self._writer.folder,
            self._secret,
            writer=self._writer,
            sinks=self._sinks,
            vault=self._vault,
            consent=self._consent,
            steps=self._steps,
            purposes=self._purposes,
        )

    def close(self) -> None:
        """Release the view."""
        self._steps.close()
        self._writer.close()

    @property
    def joins(self) -> bool:
        """Whether the view can be written in one pass with others of its stream."""
        plain = not self._stateful and isinstance(self._sink, ParquetSink)
        return plain and not self._refusing

    def ask(self) -> None:
        """Ask who wants no part in the view; before each batch."""
        self._refusing = self._consent().refusing(self._purposes)

    def process(self, frame: DataFrame, end: int, written: Written | None = None) -> Commit:
        """Publish what parsed records become, from `next` to before `end`.

        What was `written` in a pass with other views is committed as it is.
        """
        if self.joins:
            found = written or process_together([self], frame)[self.name]
            count = found.published + len(found.dead)
            totals = Totals(count, found.published, len(found.dead), 0.0)
            return self._commit(found.target.parent, end, found.dead, totals)
        carry = [OFFSET, PERSON, TIME, SUBJECT] if self._stateful else [OFFSET]
        if self._stateful:
            # Also where the view serves no purpose: who is erased is found among what is held.
            frame = mark_subjects(frame, self.blueprint.stream, self._refusing.marks)
        frame = mark_refused(frame, self.blueprint.stream, self._refusing)
        masked = self._masks(frame.sparkSession, (*carry, PROBLEM)).apply(frame)
        reason = F.coalesce(_named(PROBLEM), _named(REASON))
        masked = masked.withColumn(REASON, reason).drop(PROBLEM)
        if self._stateful:
            # For windows the clock says nothing yet: what arrived before may still be unread.
            now = NO_TIME if self.waits_for_reading else _now()
            columns = [*self._before.output, *carry, REASON]
            rows = masked.select(*(_named(it) for it in columns))
            return self._command(FEED, end, now=now, rows=rows)
        staged = self._writer.stage()
        dead: list[DeadLetter] = []
        published = self._write(masked, self._before, staged, dead)
        totals = Totals(published + len(dead), published, len(dead), 0.0)
        return self._commit(staged, end, dead, totals)

    def _masks(self, session: SparkSession, carry: tuple[str, ...]) -> RowMasks:
        """Return the masks; built once, as the next batch needs the same."""
        if self._built is None or self._built[0] is not session:
            topic = F.lit(f"{self.blueprint.stream.topic}/")
            identity = F.concat(topic, _named(OFFSET).cast("string"))
            made = RowMasks(session, self._before, identity=identity, carry=carry, rejection=REASON)
            self._built = session, made
        return self._built[1]

    def branch(self) -> Branch:
        """Return what a pass with other views needs: the masks, and a place for files."""
        return Branch(self._before, self._writer.stage() / "data")

    def flush(self) -> Commit | None:
        """End the stream: publish what is held back."""
        return self._command(FLUSH, self.next) if self.held else None

    def is_due(self, now: int) -> bool:
        """Whether something leaves by the clock, if it is `now`; or somebody is to be erased."""
        if self._stateful and find_asked(self._writer.folder):
            return True
        return self._due is not None and self._due <= now

    def tick(self, now: int) -> Commit | None:
        """Let windows and waits end by the clock.

        A view that waits for reading has read all that arrived before `now`.
        """
        return self._command(FEED, self.next, now=now) if self.is_due(now) else None

    def _command(
        self, action: str, end: int, *, now: int = NO_TIME, rows: DataFrame | None = None
    ) -> Commit:
        """Let the stateful step do something, and publish what leaves it."""
        command_folder, number = self._steps.command_folder, self._writer.sequence
        folder = command_folder.begin(number)
        files = () if rows is None else stage_rows(rows, folder)
        if self.held:
            self.ask()
            save_opted_out(folder, self._refusing)
        return self._obey(Command(number, action, self.blueprint.signature, end, now, files))

    def _obey(self, command: Command) -> Commit:
        made: list[Commit] = []
        asked = find_asked(self._writer.folder)
        save_erased(self._steps.command_folder.rows(command.number), map(int, asked.values()))
        self._steps.run(command, lambda report: made.append(self._conclude(command, report)))
        for path in asked:
            path.unlink()  # it is durable that none of this is held any more
        return made[0]

    def _conclude(self, command: Command, report: Report) -> Commit:
        outcome = load_outcome(self._steps.command_folder.rows(command.number), report)
        staged = self._writer.stage()
        dead: list[DeadLetter] = []
        published = self._publish(outcome, staged, dead)
        self.held, self._due = report.held, report.due
        totals = Totals(report.read, published, len(dead), report.loss)
        return self._commit(staged, command.next, dead, totals)

    def _publish(self, outcome: StepOutcome, staged: Path, dead: list[DeadLetter]) -> int:
        """Write what left a stateful step, through the masks behind it."""
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
        masked = mask_frame(frame, self._after, identity=identity, carry=[OFFSET], rejection=REASON)
        return self._write(masked, self._after, staged, dead)

    def _write(self, masked: DataFrame, chain: Chain, staged: Path, dead: list[DeadLetter]) -> int:
        """Write the rows that passed all masks; return their number."""
        seen = Observation()
        rejected = _named(REASON)
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
        commit = Commit(
            self._writer.sequence,
            end,
            self.blueprint.signature,
            held=self.held,
            due=self._due,
            at=_now(),
            totals=self._totals,
            format=self.blueprint.view.format,
            begin=self._sink.begin(),
        )
        made = self._writer.commit(commit)
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
        for offset, reason in zip(table[OFFSET].to_pylist(), table[REASON].to_pylist(), strict=True)
    ]


def _named(name: str) -> Column:
    return F.col(f"`{name}`")


def _now() -> int:
    return time.time_ns() // 1_000_000
