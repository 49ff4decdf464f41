"""Tells Prometheus how views are: what they publish, how far behind, and how risky.

Rules that hold here:
- Everything is read off what stands in the folders, by a thread of its own: what is watched
  does not wait for who watches.
- Risk is measured on the published files, each read once, for a small share of the time and
  with a bounded number of groups. `penstock_view_measured` says how far that has come.
- A view's name is its label; nothing of its records is.
- Views of a stream with private figures are counted in thousands; see `control`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from penstock.definitions import DefinitionSet
from penstock.definitions.differential_privacy import coarsen
from penstock.eventlog import EventLog
from penstock.model.kinds import Stream, View
from penstock.pipeline.control import (
    Control,
    RiskMoment,
    describe,
    find_private_streams,
    note_risk,
    own_log,
)
from penstock.pipeline.sinks.commits import COMMITS, Commit, Totals, ViewFolder
from penstock.risk.figures import NO_DISTANCE, Promise, Question
from penstock.risk.measurement import Meter, Risk, read_plan
from penstock.telemetry import get_logger
from penstock.telemetry.metrics import Readings, readings

LOOK_SECONDS: Final = 1.0
MEASURE_SECONDS: Final = 0.1
"""How long files are read for their risk in one round; a file is read to its end."""
TELL_SECONDS: Final = 10.0
"""How often the figures of risk are computed anew."""
GROUPS: Final = 200_000
FAILED: Final = "failed"

_log = get_logger("pipeline")


def _view(name: str, kind: Any, help_text: str) -> Readings:
    return readings(f"penstock_view_{name}", kind, help_text, "view")


READ = _view("read_total", "counter", "Records that the view has read.")
PUBLISHED = _view("published_total", "counter", "Records that the view has published.")
REJECTED = _view("rejected_total", "counter", "Records that could not be published.")
FAILURES = _view("failures_total", "counter", "How often the view failed since the start.")
RUNNING = _view("running", "gauge", "Whether the view runs.")
RATE = _view("rate", "gauge", "Records read per second, of late.")
LAG = _view("lag", "gauge", "Records of the stream that the view has not read.")
HELD = _view("held", "gauge", "Records that the view holds back.")
LOSS = _view("loss", "gauge", "The mean loss by generalization: 0 nothing, 1 all.")
SUPPRESSED = _view(
    "suppressed",
    "gauge",
    "The share of records suppressed: too few were alike.",
)
MEASURED = _view("measured", "gauge", "The share of published records whose risk is measured.")
GROUP_COUNT = _view("groups", "gauge", "Groups of records alike in their quasi-identifiers.")
K = _view("k", "gauge", "Persons in the smallest group; records where persons are not known.")
PERSONS = _view("k_counts_persons", "gauge", "Whether k is of persons.")
L = _view("l", "gauge", "The fewest values of a sensitive field in a group.")
ENTROPY = _view("l_entropy", "gauge", "The least e^entropy of a sensitive field in a group.")
T = _view("t", "gauge", "The greatest distance of a group's sensitive values from all.")
RISK_MOST = _view("prosecutor_risk_most", "gauge", "The greatest risk of a published record.")
RISK_MEAN = _view("prosecutor_risk_mean", "gauge", "The mean risk of published records.")


class ViewWatch:
    """What is known about one view beyond its newest commit."""

    def __init__(self, folder: ViewFolder, log: EventLog) -> None:
        self.folder = folder
        self._log = log
        self.failures = 0
        self.state: str | None = None
        self.risk: Risk | None = None
        self._place = 0
        self._file = 0
        self._meter: Meter | None = None
        self._plan: str | None = None
        self._seen = Totals()
        self._told = 0.0
        self._fresh = False

    def note_state(self, name: str, state: str) -> None:
        """Tell of a change once."""
        if state == self.state:
            return
        if state == FAILED:
            self.failures += 1
            _log.warning("a view failed", view=name, state=state, count=self.failures)
        else:
            _log.info("a view changed", view=name, state=state)
        self.state = state

    def measure(self, until: float, now: float, *, coarse: bool = False) -> None:
        """Read files that were published, until it is time for something else.

        What is kept of a view that counts in thousands is coarse, too.
        """
        for commit in self._new_commits():
            self._take(commit)
            if time.monotonic() >= until:
                break
        if self._meter is not None and self._fresh and now - self._told >= TELL_SECONDS:
            self.risk = self._meter.tell()
            self._told, self._fresh = now, False
            if self.risk.records:
                note_risk(self.folder.folder, _moment_of(self.risk, coarse=coarse))

    def _take(self, commit: Commit) -> None:
        if self._plan != commit.plan:
            self._open(commit)
        if self._meter is not None:
            self._meter.take(commit)
            # Figures over time are kept apart: see `note_risk`.
            self._meter.history.clear()
            self._fresh = True
        self._seen = commit.totals

    def _open(self, commit: Commit) -> None:
        """Measure from here on what these definitions publish."""
        blueprint = read_plan(self.folder, commit.plan)
        self._plan = commit.plan
        if Promise.find(blueprint, commit) is not None:
            # Figures of noisy figures would be taken for something.
            self._meter = self.risk = None
            return
        question = Question.ask(blueprint)
        self._meter = Meter(self.folder, blueprint, question, log=self._log, limit=GROUPS)
        self._meter.pass_over(self._seen)

    def _new_commits(self) -> Iterator[Commit]:
        """Yield commits that were not taken in, once their files are in place."""
        path = self.folder.folder / COMMITS
        if not path.exists():
            return
        with path.open("rb") as file:
            number = os.fstat(file.fileno()).st_ino
            if number != self._file:
                # The first one; or another, since what was published was taken back.
                self._file, self._place, self._plan, self._seen = number, 0, None, Totals()
                self._meter = self.risk = None
            file.seek(self._place)
            while (line := file.readline()).endswith(b"\n"):
                commit = Commit.from_line(line)
                last = not file.peek(1)
                placed = all((self.folder.data / it).exists() for it in commit.files)
                if last and not placed and commit.format != "topic" and self._is_new(commit):
                    return
                self._place = file.tell()
                yield commit

    @staticmethod
    def _is_new(commit: Commit) -> bool:
        return time.time() * 1000 - commit.at < LOOK_SECONDS * 5000


def _moment_of(risk: Risk, *, coarse: bool) -> RiskMoment:
    """Return what is kept of a measurement; of an exact fraction both numbers could be found."""
    shares = (risk.prosecutor.mean, risk.prosecutor.most, risk.loss or 0.0)
    mean, most, loss = (round(it, 2 if coarse else 6) for it in shares)
    return RiskMoment(time.time(), mean, most, risk.k, loss)


class Observer:
    """Watches all views of an installation."""

    def __init__(
        self,
        control: Control,
        log: EventLog,
        definitions: Callable[[], DefinitionSet],
    ) -> None:
        self._control = control
        self._event_log = log
        self._definitions = definitions
        self._watched: dict[str, ViewWatch] = {}

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look again and again meanwhile."""
        ended = threading.Event()
        thread = threading.Thread(target=self.run, args=(ended,), name="observer", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def run(self, ended: threading.Event) -> None:
        """Look until told to end."""
        while not ended.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - figures may be late, but must be retried
                _log.warning("views could not be looked at", error=error)

    def look(self) -> None:
        """Look at all views once."""
        definitions = self._definitions()
        views = definitions.of(View)
        streams = definitions.of(Stream)
        for name in self._watched.keys() - views.keys():
            del self._watched[name]
        rows: dict[str, dict[str, Any]] = {}
        private = find_private_streams(views.values())
        until = time.monotonic() + MEASURE_SECONDS
        for name, view in views.items():
            if name not in self._watched:
                self._watched[name] = ViewWatch(self._control.view(name), self._event_log)
            watch = self._watched[name]
            coarse = view.stream in private
            log = own_log(streams[view.stream], self._event_log)
            rows[name] = describe(name, view.stream, self._control, log, coarse=coarse)
            watch.note_state(name, rows[name]["state"])
            try:
                # Each gets its turn, whatever the others need.
                now = time.monotonic()
                watch.measure(max(until, now), now, coarse=coarse)
            except Exception as error:  # noqa: BLE001 - one that cannot be read hides no others
                _log.warning("a view could not be measured", view=name, error=error)
        self._show(rows)

    def _show(self, rows: dict[str, dict[str, Any]]) -> None:
        for metric, field in (
            (READ, "read"),
            (PUBLISHED, "published"),
            (REJECTED, "rejected"),
            (RATE, "rate"),
            (LAG, "lag"),
            (HELD, "held"),
        ):
            metric.show({name: row[field] for name, row in rows.items()})
        RUNNING.show({name: row["state"] == "running" for name, row in rows.items()})
        FAILURES.show({name: self._watched[name].failures for name in rows})
        coarse = {name for name, row in rows.items() if row["coarse"]}

        def show_share(metric: Readings, shares: dict[str, float]) -> None:
            # Of a fraction that is told exactly, both numbers can be found.
            metric.show(
                {name: round(it, 2) if name in coarse else it for name, it in shares.items()}
            )

        show_share(LOSS, {name: row["loss"] for name, row in rows.items()})
        risks = {name: watch.risk for name, watch in self._watched.items()}
        known = {name: risk for name, risk in risks.items() if risk is not None and risk.records}
        show_share(
            MEASURED,
            {
                name: min(1.0, risk.records / max(1, rows[name]["published"] - risk.earlier))
                for name, risk in known.items()
            },
        )
        show_share(SUPPRESSED, {name: risk.suppressed for name, risk in known.items()})
        GROUP_COUNT.show(
            {
                name: coarsen(risk.groups) if name in coarse else risk.groups
                for name, risk in known.items()
            }
        )
        K.show({name: risk.k for name, risk in known.items()})
        PERSONS.show({name: risk.unit == "persons" for name, risk in known.items()})
        show_share(RISK_MOST, {name: risk.prosecutor.most for name, risk in known.items()})
        show_share(RISK_MEAN, {name: risk.prosecutor.mean for name, risk in known.items()})
        hidden = {
            name: [it for it in risk.sensitive.values() if it.distance != NO_DISTANCE]
            for name, risk in known.items()
        }
        L.show({name: min(it.distinct for it in all_) for name, all_ in hidden.items() if all_})
        show_share(
            ENTROPY, {name: min(it.entropy for it in all_) for name, all_ in hidden.items() if all_}
        )
        show_share(
            T, {name: max(it.closeness for it in all_) for name, all_ in hidden.items() if all_}
        )
