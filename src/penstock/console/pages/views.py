"""Streams and views: what there is, how it runs, and what it leaves; to start and stop a view.

    definitions, condition, figures ─▶ list ─▶ one ─▶ start, pause, resume, stop

Rules that hold here:
- To start, pause and stop takes the right to administer, and is in the audit log.
- The form for a view (`views_form`) is a page of this room, too.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, NamedTuple
from urllib.parse import quote as encode

from fastapi import Query

from penstock.console.access import MissingError
from penstock.console.desk import Visit, Visitor
from penstock.console.figures import MOST_POINTS, Series, line_chart
from penstock.console.rooms import Done, Form, PageData, Room
from penstock.definitions.access_matrix import look_at_view
from penstock.errors import UsageError, quote
from penstock.model import kinds
from penstock.pipeline.control import ACTIONS, Control, read_risks
from penstock.pipeline.sinks.commits import Commit
from penstock.store.audit.entry import Detail, allow_detail

ROOM: Final = Room(
    "views",
    "Views",
    order=20,
    help="how-to/anonymize-a-stream",
    icon="M3 5h18l-7 8v5l-4 2v-7z",
    about="Streams, and their anonymized versions.",
)
allow_detail("view", Detail.NAME)
_MOST_BATCHES: Final = 400


class StreamRow(PageData):
    """A stream."""

    name: str
    format: str
    topics: Sequence[str]
    fields: Sequence[str]
    subject: str
    views: Sequence[str]


class ViewRow(PageData):
    """A view and how it runs."""

    name: str
    stream: str
    state: str
    wanted: str
    rate: float
    lag: float | None
    loss: float | None
    k: float | None
    risk: float | None
    error: str
    actions: Sequence[str]


class ViewList(PageData):
    """All streams and views."""

    streams: Sequence[StreamRow]
    views: Sequence[ViewRow]
    may_change: bool


class FieldRow(PageData):
    """A field of a stream."""

    name: str
    type: str
    category: str


class StreamPage(PageData):
    """One stream: its topics, fields and views."""

    stream: StreamRow
    description: str
    fields: Sequence[FieldRow]
    views: Sequence[ViewRow]
    may_change: bool


class LeftRow(PageData):
    """What a view leaves of a field."""

    field: str
    degree: str
    by: str


class RiskPoint(PageData):
    """How risky what a view had published was, at a time."""

    at: str
    mean: float
    most: float
    k: int
    loss: float


class ViewPage(PageData):
    """One view."""

    view: ViewRow
    roles: Sequence[str]
    purposes: Sequence[str]
    format: str
    anonymizers: Sequence[str]
    left: Sequence[LeftRow]
    risks: Sequence[RiskPoint]
    """What was measured on the published records, as the view's process recorded it."""
    losses: Sequence[float]
    """The mean loss of each batch that published something, as the view recorded it."""
    suppressed: Sequence[float]
    """The share of records that each such batch rejected."""
    since: str
    may_change: bool

    def course(self) -> str:
        """Return loss and rejected records, batch by batch."""
        lines = [Series("mean loss", self.losses), Series("rejected", self.suppressed)]
        return line_chart(lines, f"Loss and rejected records of {self.view.name}", most=1.0)

    def chart(self) -> str:
        """Return loss and risk over time."""
        lines = [
            Series("mean risk", [it.mean for it in self.risks]),
            Series("greatest risk", [it.most for it in self.risks]),
            Series("mean loss", [it.loss for it in self.risks]),
        ]
        return line_chart(lines, f"Risk and loss of {self.view.name} over time", most=1.0)


def _list_actions(state: str) -> list[str]:
    return [name for name, (_, sources) in ACTIONS.items() if state in sources]


def _tell_view(visit: Visit, view: kinds.View) -> ViewRow:
    reading = visit.desk.figures.latest()
    control = Control(visit.desk.config.pipeline.folder)
    wanted, condition = control.wanted(view.name), control.condition(view.name)
    state = condition.state if condition else wanted.state
    if condition is None and wanted.state == "running":
        state = "waiting"

    def measured(name: str) -> float | None:
        return reading.by(f"penstock_view_{name}", "view").get(view.name)

    return ViewRow(
        name=view.name,
        stream=view.stream,
        state=state,
        wanted=wanted.state,
        rate=condition.rate if condition else 0.0,
        lag=measured("lag"),
        loss=measured("loss"),
        k=measured("k"),
        risk=measured("prosecutor_risk_mean"),
        error=(condition.error if condition else None) or "",
        actions=_list_actions(wanted.state) if visit.administers else [],
    )


@ROOM.page("/views", "Streams and views", "views/list.html")
def list_views(visit: Visitor) -> ViewList:
    """List streams, and views with how they run."""
    views = visit.definitions.of(kinds.View)
    streams = visit.definitions.of(kinds.Stream)
    return ViewList(
        streams=[
            StreamRow(
                name=name,
                format=it.format,
                topics=it.patterns,
                fields=[field.name for field in it.fields],
                subject=it.subject or "",
                views=sorted(view for view, found in views.items() if found.stream == name),
            )
            for name, it in sorted(streams.items())
        ],
        views=[_tell_view(visit, it) for _, it in sorted(views.items())],
        may_change=visit.administers,
    )


@ROOM.page("/views/stream", "Stream", "views/stream.html", hidden=True)
def show_stream(visit: Visitor, name: Annotated[str, Query(max_length=256)]) -> StreamPage:
    """Show one stream: which topics feed it, which fields it has, and its views."""
    stream = visit.definitions.of(kinds.Stream).get(name)
    if stream is None:
        raise MissingError(f"there is no stream {quote(name)}", fix="look for it in the list")
    views = visit.definitions.of(kinds.View)
    own = [it for _, it in sorted(views.items()) if it.stream == name]
    return StreamPage(
        stream=StreamRow(
            name=name,
            format=stream.format,
            topics=stream.patterns,
            fields=[it.name for it in stream.fields],
            subject=stream.subject or "",
            views=[it.name for it in own],
        ),
        description=stream.description,
        fields=[FieldRow(name=it.name, type=it.type, category=it.category) for it in stream.fields],
        views=[_tell_view(visit, it) for it in own],
        may_change=visit.administers,
    )


def _find_view(visit: Visit, name: str) -> kinds.View:
    view = visit.definitions.of(kinds.View).get(name)
    if view is None:
        raise MissingError(f"there is no view {quote(name)}", fix="look for it in the list")
    return view


@ROOM.page("/views/one", "View", "views/one.html", hidden=True)
def show_view(visit: Visitor, name: Annotated[str, Query(max_length=256)]) -> ViewPage:
    """Show one view: what it leaves of each field, how it runs, and its risk."""
    view = _find_view(visit, name)
    published = Control(visit.desk.config.pipeline.folder).view(name)
    batches = _list_batches(published.tail())
    return ViewPage(
        view=_tell_view(visit, view),
        roles=view.roles,
        purposes=view.purposes,
        format=view.format,
        anonymizers=[json.dumps(dict(it), ensure_ascii=False) for it in view.anonymizers],
        left=[
            LeftRow(field=field, degree=degree, by=by)
            for field, degree, by in look_at_view(visit.definitions, view)
        ],
        risks=_list_risks(published.folder),
        losses=[it.loss for it in batches],
        suppressed=[it.rejected for it in batches],
        since=batches[0].at if batches else "",
        may_change=visit.administers,
    )


def _list_risks(folder: Path) -> list[RiskPoint]:
    """Return the history of a view's risk, in as many points as a chart shows."""
    found = read_risks(folder)
    step = -(-len(found) // MOST_POINTS) or 1
    # Counted from the end: the newest is always there.
    return [
        RiskPoint(
            at=datetime.fromtimestamp(it.at, UTC).isoformat(),
            mean=it.mean, most=it.most, k=it.k, loss=it.loss,
        )
        for it in found[::-1][::step][::-1]
    ]  # fmt: skip


class _Batch(NamedTuple):
    """What one batch lost and left out, and when it was published."""

    at: str
    loss: float
    rejected: float


def _list_batches(commits: Sequence[Commit]) -> list[_Batch]:
    found = []
    for before, after in itertools.pairwise(commits):
        was, now = before.totals, after.totals
        read, published = now.read - was.read, now.published - was.published
        if published > 0 and read > 0 and now.rejected >= was.rejected:
            moment = datetime.fromtimestamp(after.at / 1000, UTC)
            loss = min(1.0, max(0.0, (now.loss - was.loss) / published))
            rejected = min(1.0, (now.rejected - was.rejected) / read)
            found.append(_Batch(moment.isoformat(), loss, rejected))
    return found[-_MOST_BATCHES:]


@ROOM.action("/views/control")
def control(visit: Visitor, form: Form) -> Done:
    """Start, pause, resume or stop a view."""
    visit.require_administration()
    view, action = _find_view(visit, form.text("view", 256)), form.text("action", 16)
    if action not in ACTIONS:
        raise UsageError(f"{quote(action)} is nothing that a view does", fix="press a button")
    state = Control(visit.desk.config.pipeline.folder).change(view.name, action)
    visit.desk.record("view-control", visit.user, view=view.name, operation=action)
    to = f"/views/one?name={encode(view.name, safe='')}" if form.get("back") else "/views"
    return Done(to, f"{view.name} is to be {state}.")
