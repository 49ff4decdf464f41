"""Measures how much a view tells about persons, on what it has published.

Rules that hold here:
- Measured are the published files of the definitions that the newest commit was made under;
  what earlier definitions published is told as a number only.
- Groups are records with equal values in all quasi-identifiers that the view has.
- Persons are counted where that can be known (see `Knowledge`); a figure of records never
  passes for one of persons.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from penstock.definitions.k_anonymity import KAnonymization
from penstock.errors import UsageError, quote
from penstock.eventlog import EventLog
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.anonymizers.k_anonymity import PERSONS, SUPPRESSED
from penstock.pipeline.anonymizers.window_anonymizers import TOO_FEW
from penstock.pipeline.records.columns import Integers
from penstock.pipeline.sinks.commits import Commit, Totals, ViewFolder
from penstock.pipeline.sinks.published import read_persons
from penstock.risk.figures import (
    Attack,
    Bar,
    Knowledge,
    Promise,
    Question,
    Sensitivity,
    count_sizes,
    measure_attack,
    measure_sensitive,
)
from penstock.risk.promises import GroupPromise, judge_k, judge_sensitive, promised_k
from penstock.risk.tally import (
    COMBINATIONS,
    COUNT,
    NULL,
    Codes,
    Tally,
    read_columns,
    read_delivered,
)

THRESHOLD: Final = 0.2
"""The risk above which records are counted: groups of fewer than five."""
IN_PART: Final = "not all groups are measured"
WITHHELD: Final = (SUPPRESSED, TOO_FEW.split("{}")[1])


@dataclass(frozen=True, slots=True)
class Moment:
    """What one batch published, for figures over time."""

    at: int
    published: int
    loss: float


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups that were published."""

    keys: list[tuple[int, ...]]
    """The codes of each group's quasi-identifiers, where it was made by generalization."""
    records: Integers
    sizes: Integers
    knowledge: Knowledge


@dataclass(frozen=True, slots=True)
class Risk:
    """What was measured."""

    records: int
    published: int
    """More than `records` where published records do not stand in files."""
    groups: int
    share: float
    """The share of groups that was measured; below 1 where there were too many."""
    unit: str
    """What sizes are of: `persons` or `records`."""
    persons: str
    """How persons are known."""
    k: int
    k_records: int
    prosecutor: Attack
    journalist: Attack
    population: str
    sensitive: dict[str, Sensitivity]
    promises: list[GroupPromise]
    """What the view promises of its groups, and whether that is kept."""
    suppressed: float
    rejected: int
    loss: float | None
    mean_size: float
    sizes: list[Bar]
    quasi_identifiers: tuple[str, ...]
    exposed: tuple[str, ...]
    earlier: int
    """Records that earlier definitions published; they are not measured."""
    threshold: float
    history: list[Moment] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON data."""
        return asdict(self)


class Meter:
    """Takes commits in one by one, and tells the risk so far."""

    def __init__(
        self,
        folder: ViewFolder,
        blueprint: Blueprint,
        question: Question,
        *,
        log: EventLog | None = None,
        limit: int = COMBINATIONS,
    ) -> None:
        self.folder = folder
        self.blueprint = blueprint
        self.question = question
        self.records = 0
        self.sequences: list[int] = []
        """The commits that were taken in and have counts of persons."""
        self.history: list[Moment] = []
        group = list(question.quasi_identifiers)
        self._group = group
        by_subject = question.knowledge is Knowledge.PUBLISHED and question.subject is not None
        self._subject = [question.subject] if by_subject and question.subject else []
        self._codes = {name: Codes() for name in (*group, *question.sensitive, *self._subject)}
        self._groups = Tally(group, limit=limit)
        self._hidden = {name: Tally(group, [name], limit=limit) for name in question.sensitive}
        self._crowd = Tally(group, self._subject, limit=limit) if self._subject else None
        self._counted: dict[tuple[int, ...], int] = {}
        self._limit = limit
        self._topic = log.topic(blueprint.view.topic) if log else None
        self._withheld = 0
        self._own = Totals()
        self.last = Totals()
        """The totals of the newest commit that was seen."""
        self.earlier = 0

    def pass_over(self, totals: Totals) -> None:
        """Leave out what was published up to these totals, under other definitions."""
        self.earlier += totals.published - self.last.published
        self.last = totals

    def take(self, commit: Commit) -> None:
        """Measure what a commit published."""
        for name in commit.files:
            path = self.folder.data / name
            # What went to a topic has no file any more.
            if path.exists():
                for table in read_columns(path, list(self._codes), self.blueprint.plan.output):
                    self._add(table)
        new = _since(self.last, commit.totals)
        if commit.format == "topic" and self._topic is not None:
            for table in read_delivered(
                self._topic, commit, new.published, list(self._codes), self.blueprint.plan.output
            ):
                self._add(table)
        for name in commit.dead:
            self._withheld += _count_withheld(self.folder.dead / name)
        if self.question.counted:
            for found in read_persons(self.folder.folder, [commit.sequence]):
                self.sequences.append(commit.sequence)
                self._remember(found)
        if new.published:
            self.history.append(Moment(commit.at, new.published, new.loss / new.published))
        self._own = self._own.add(new)
        self.last = commit.totals

    def _add(self, table: pa.Table) -> None:
        codes = {name: found.encode(table[name]) for name, found in self._codes.items()}
        rows = table.num_rows
        self.records += rows
        for tally in (
            self._groups,
            *self._hidden.values(),
            *([self._crowd] if self._crowd else []),
        ):
            tally.add(codes, rows)

    def _remember(self, found: pa.Table) -> None:
        if len(self._counted) > self._limit:
            return  # what is missing is taken for unknown
        for key, persons in zip(self.keys_of(found), found[PERSONS].to_pylist(), strict=True):
            self._counted[key] = max(self._counted.get(key, 0), persons)

    def keys_of(self, found: pa.Table) -> list[tuple[int, ...]]:
        """Return the codes of groups whose published values stand in a table."""
        encoded = [self._codes[name].encode(found[name]) for name in self._group]
        return _lines(encoded, found.num_rows)

    def tell(self, threshold: float = THRESHOLD) -> Risk:
        """Return the figures of all commits so far."""
        groups = self.groups()
        records, sizes, persons = groups.records, groups.sizes, groups.knowledge
        attack = measure_attack(sizes, records, threshold)
        published, lost = self._own.published, self._own.loss
        read = published + self._withheld
        generalizes = any(isinstance(it, KAnonymization) for it in self.blueprint.plan.stateful)
        return Risk(
            records=self.records,
            published=published,
            groups=round(records.size / self._groups.share),
            share=self._groups.share,
            unit="records" if persons is Knowledge.NONE else "persons",
            persons=persons.value,
            k=int(sizes.min()) if sizes.size else 0,
            k_records=int(records.min()) if records.size else 0,
            prosecutor=attack,
            journalist=attack,
            population="the records that were published",
            sensitive={
                name: measure_sensitive(tally.table(), self._group, name, self._codes[name])
                for name, tally in self._hidden.items()
            },
            promises=self._judge(groups),
            suppressed=self._withheld / read if read else 0.0,
            rejected=self._own.rejected,
            loss=(lost / published if published else 0.0) if generalizes else None,
            mean_size=float(records.mean()) if records.size else 0.0,
            sizes=count_sizes(sizes, records, promised_k(self.blueprint)),
            quasi_identifiers=self.question.quasi_identifiers,
            exposed=self.question.exposed,
            earlier=self.earlier,
            threshold=threshold,
            history=self.history,
        )

    def _judge(self, groups: Groups) -> list[GroupPromise]:
        known = groups.knowledge is not Knowledge.NONE
        found = judge_k(self.blueprint, groups.sizes, groups.records, persons=known)
        for name, tally in self._hidden.items():
            codes = self._codes[name]
            found += judge_sensitive(self.blueprint, name, self._group, tally.table(), codes)
        if self._groups.share == 1 and self.records >= self._own.published:
            return found
        return [replace(it, kept=None, reason=IN_PART) if it.kept else it for it in found]

    def groups(self) -> Groups:
        """Return how large each group is, in persons where they are known."""
        table = self._groups.table()
        records: Integers = np.asarray(table[COUNT])
        knowledge = self.question.knowledge
        if self._crowd is not None:
            if self._crowd.share == self._groups.share:
                return Groups([], records, self._count_subjects(table), knowledge)
            # More persons than can be counted.
            return Groups([], records, records, Knowledge.NONE)
        if not self.question.counted:
            return Groups([], records, records, knowledge)
        keys = _lines([np.asarray(table[name]) for name in self._group], records.size)
        if knowledge is not Knowledge.COUNTED:
            return Groups(keys, records, records, knowledge)
        found = [self._counted.get(key, 0) for key in keys]
        if not all(found):
            # Of some group nobody counted: better no persons than wrong ones.
            return Groups(keys, records, records, Knowledge.NONE)
        return Groups(keys, records, np.array(found, dtype=np.int64), knowledge)

    def _count_subjects(self, table: pa.Table) -> Integers:
        """Return the number of different subjects of each group, at least one."""
        if self._crowd is None:
            raise TypeError("the view does not publish its subject")
        crowd = self._crowd.table()
        known = np.asarray(crowd[self._subject[0]]) != NULL
        keys = [*self._group]
        seen = crowd.select(keys).append_column(COUNT, pa.array(known.astype(np.int64)))
        if not keys:
            return np.array([max(1, int(known.sum()))], dtype=np.int64)[: table.num_rows]
        wide = seen.group_by(keys).aggregate([(COUNT, "sum")])
        joined = table.select(keys).append_column("place", pa.array(np.arange(table.num_rows)))
        joined = joined.join(wide, keys=keys, join_type="left outer").sort_by("place")
        subjects: Integers = np.asarray(joined[f"{COUNT}_sum"].fill_null(0))
        return np.maximum(1, subjects)


def open_meter(
    folder: ViewFolder,
    quasi: Sequence[str] = (),
    sensitive: Sequence[str] = (),
    log: EventLog | None = None,
) -> Meter:
    """Return a meter for what the newest definitions of a view published."""
    blueprint, last = read_newest(folder)
    if Promise.find(blueprint, last) is not None:
        raise UsageError(
            f"the view {quote(blueprint.view.name)} publishes noisy figures, no records",
            fix="ask for what it promises with `penstock views risk`, without other options",
        )
    return Meter(folder, blueprint, Question.ask(blueprint, quasi, sensitive), log=log)


def read_newest(folder: ViewFolder) -> tuple[Blueprint, Commit]:
    """Return the newest commit of a view, and the definitions that it was made under."""
    last = folder.last()
    if last is None:
        raise UsageError(
            f"the view {quote(folder.folder.name)} has published nothing yet",
            fix="run it with `penstock views start` and `penstock views run`",
        )
    return read_plan(folder, last.plan), last


def read_plan(folder: ViewFolder, plan: str) -> Blueprint:
    """Return the definitions that commits were made under."""
    text = (folder.folder / "plans" / f"{plan}.json").read_text(encoding="utf-8")
    return Blueprint.from_json(text)


def measure_view(
    folder: ViewFolder,
    quasi: Sequence[str] = (),
    sensitive: Sequence[str] = (),
    threshold: float = THRESHOLD,
    log: EventLog | None = None,
) -> tuple[Meter, Risk]:
    """Measure all that the newest definitions of a view published; to topics of a log, too."""
    meter = open_meter(folder, quasi, sensitive, log)
    for commit in folder.commits():
        if commit.plan == meter.blueprint.signature:
            meter.take(commit)
        else:
            meter.pass_over(commit.totals)
    return meter, meter.tell(threshold)


def _since(before: Totals, after: Totals) -> Totals:
    """Return what came to the totals."""
    return Totals(
        after.read - before.read,
        after.published - before.published,
        after.rejected - before.rejected,
        after.loss - before.loss,
    )


def _lines(columns: list[Integers], rows: int) -> list[tuple[int, ...]]:
    """Return the lines of a table that is given by its columns."""
    return (
        list(zip(*(column.tolist() for column in columns), strict=True)) if columns else [()] * rows
    )


def _count_withheld(path: Any) -> int:
    with path.open("rb") as file:
        reasons = (json.loads(line)["reason"] for line in file)
        return sum(any(mark in reason for mark in WITHHELD) for reason in reasons)
