"""What the data officer wants of each view, and how it is.

    absent ──initialize──▶ initialized ──start──▶ running ◀──resume── paused
       └────────start────────────────────────────▶│  └─────pause──────▶│
                          stopped ◀──stop──────────┴────────stop───────┘
                             └──start──▶ running

Rules that hold here:
- What is wanted stands in a file beside the view's data, so that it survives restarts of
  every process; whoever runs views brings them there.
- Paused keeps what it holds back; stopped publishes it first. Both go on later where they
  left off.
- How risky a view was stands there too, once a minute at most, for charts over time; of a
  long history the newest half stays.
- Where a view of a stream is differentially private, no view of this stream tells how many
  records there are, but in thousands.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from penstock.definitions.differential_privacy import DifferentialPrivacy, coarsen
from penstock.errors import UsageError, quote
from penstock.eventlog import EventLog, Topic
from penstock.masks import split_anonymizer
from penstock.model.kinds import Stream, View
from penstock.pipeline.sinks.commits import Commit, ViewFolder

ABSENT: Final = "absent"
INITIALIZED: Final = "initialized"
RUNNING: Final = "running"
PAUSED: Final = "paused"
STOPPED: Final = "stopped"

# Action → where it leads, and from where.
ACTIONS: Final[Mapping[str, tuple[str, frozenset[str]]]] = {
    "initialize": (INITIALIZED, frozenset({ABSENT})),
    "start": (RUNNING, frozenset({ABSENT, INITIALIZED, STOPPED})),
    "pause": (PAUSED, frozenset({RUNNING})),
    "resume": (RUNNING, frozenset({PAUSED})),
    "stop": (STOPPED, frozenset({INITIALIZED, RUNNING, PAUSED})),
}
COARSE_RATE: Final = 100.0
COUNTS: Final = ("lag", "read", "published", "rejected", "held")
"""What is told of a view that counts records."""
# A runner tells how views are at least so often; after that it is taken for gone.
FRESH_SECONDS: Final = 15.0


RISKS: Final = "risks.jsonl"
RISK_SECONDS: Final = 60.0
_RISKS_LIMIT: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class RiskMoment:
    """How risky what a view had published was, at a time."""

    at: float
    mean: float
    most: float
    k: int
    loss: float


def note_risk(folder: Path, moment: RiskMoment) -> None:
    """Add a moment to the history of a view; one that comes too soon after another is left out."""
    path = folder / RISKS
    held = read_risks(folder)
    if held and 0 <= moment.at - held[-1].at < RISK_SECONDS:
        return
    line = json.dumps(asdict(moment)) + "\n"
    if len(held) * len(line) > _RISKS_LIMIT:
        kept = [json.dumps(asdict(it)) + "\n" for it in held[len(held) // 2 :]]
        part = path.with_suffix(".part")
        part.write_text("".join(kept))
        part.replace(path)
    with path.open("a") as file:
        # On a line of its own, whatever a crash has left of the one before.
        file.write(f"\n{line}" if file.tell() else line)


def read_risks(folder: Path) -> list[RiskMoment]:
    """Return the history of a view's risk, oldest first; a line that is not whole is left out."""
    try:
        lines = (folder / RISKS).read_text().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        with suppress(ValueError, TypeError):
            found.append(RiskMoment(**json.loads(line)))
    return found


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a view should do, and since when."""

    state: str = ABSENT
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Condition:
    """How a view is, as its runner says."""

    state: str
    pid: int
    at: float
    rate: float = 0.0
    error: str | None = None
    lag: int | None = None
    """How many records Spark has seen in the source and not read, where it tells."""


class Control:
    """The wishes and conditions of all views below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def view(self, name: str) -> ViewFolder:
        """Return what a view has published."""
        return ViewFolder(self.folder / name)

    def wanted(self, name: str) -> Wanted:
        """Return what a view should do."""
        data = _read(self.folder / name / "wanted.json")
        return Wanted(**data) if data else Wanted()

    def change(self, name: str, action: str) -> str:
        """Carry an action out on what is wanted; return the state that is wanted now."""
        target, sources = ACTIONS[action]
        state = self.wanted(name).state
        if state == target:
            return target
        if state not in sources:
            possible = [verb for verb, (_, known) in ACTIONS.items() if state in known]
            raise UsageError(
                f"cannot {action} the view {quote(name)}, which is {state}",
                fix=f"{' or '.join(possible)} it",
            )
        self.put(name, target)
        return target

    def put(self, name: str, state: str) -> None:
        """Note the state that a view is wanted in, wherever it comes from."""
        (self.folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(self.folder / name / "wanted.json", asdict(Wanted(state, time.time())))

    def report(self, name: str, condition: Condition) -> None:
        """Write down how a view is."""
        (self.folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(self.folder / name / "condition.json", asdict(condition))

    def condition(self, name: str) -> Condition | None:
        """Return how a view is; None where nobody runs it."""
        found = self.last_condition(name)
        if found is None or time.time() - found.at > FRESH_SECONDS or not _lives(found.pid):
            return None
        return found

    def last_condition(self, name: str) -> Condition | None:
        """Return how a view was when somebody ran it last."""
        data = _read(self.folder / name / "condition.json")
        return Condition(**data) if data else None


def find_private_streams(views: Iterable[View]) -> frozenset[str]:
    """Return the streams that have a view with differential privacy."""
    private = DifferentialPrivacy.name
    return frozenset(
        view.stream
        for view in views
        if any(private in (split_anonymizer(it, "", []) or ())[:1] for it in view.anonymizers)
    )


def describe(
    name: str, stream: str, control: Control, log: Topic | None, *, coarse: bool
) -> dict[str, Any]:
    """Return all there is to know about a view; `log` has its records, where that is ours.

    Coarse are the counts of a stream that has private figures.
    """
    found = _describe_exactly(name, stream, control, log)
    if coarse:
        found |= {it: coarsen(found[it]) for it in COUNTS}
        found["rate"] = found["rate"] // COARSE_RATE * COARSE_RATE
    return {**found, "coarse": coarse}


def _describe_exactly(
    name: str, stream: str, control: Control, log: Topic | None
) -> dict[str, Any]:
    wanted, condition = control.wanted(name), control.condition(name)
    last = control.view(name).last()
    totals = last.totals if last else None
    published = totals.published if totals else 0
    state = condition.state if condition else wanted.state
    if condition is None and wanted.state == RUNNING:
        state = "waiting"  # for `penstock views run`
    return {
        "view": name,
        "stream": stream,
        "wanted": wanted.state,
        "state": state,
        "rate": round(condition.rate, 1) if condition else 0.0,
        "lag": _find_lag(name, control, log, last),
        "read": totals.read if totals else 0,
        "published": published,
        "rejected": totals.rejected if totals else 0,
        "held": last.held if last else 0,
        "loss": round(totals.loss / published, 4) if totals and published else 0.0,
        "error": condition.error if condition else None,
    }


def _find_lag(name: str, control: Control, log: Topic | None, last: Commit | None) -> int:
    """Return how many records wait: of our own log exactly, of others as Spark said last."""
    if log is not None:
        place = last.batch.place if last else ""
        return log.count_from(json.loads(place)["offset"] if place else 0)
    told = control.last_condition(name)
    return (told.lag or 0) if told else 0


def own_log(stream: Stream, log: EventLog) -> Topic | None:
    """Return the topic of the embedded log that has a stream's records, where it has them."""
    return log.topic(stream.topic) if stream.source is None else None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    return data if isinstance(data, dict) else {}


def _write(path: Path, data: dict[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(data), encoding="utf-8")
    partial.replace(path)
