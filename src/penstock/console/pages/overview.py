"""The overview: how messages flow now, what is denied, what is late, and which emergencies hold.

    publishers ─▶ gateway ─▶ broker ─▶ subscribers
                     └─▶ event log ─▶ views
    requests ─▶ services

Rules that hold here:
- Figures are those that the parts measure; what nobody measures is unknown, not 0.
- People whom situations are about appear as the store has them, and to those alone who see the
  room of emergencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import Field

from penstock.clock import utc_now
from penstock.console.desk import Visit, Visitor
from penstock.console.figures import sparkline
from penstock.console.rooms import PageData, Room
from penstock.model import kinds
from penstock.pipeline.control import Control
from penstock.store.detection.situations import read_live

ROOM: Final = Room(
    "overview",
    "Overview",
    order=0,
    help="explanation/architecture",
    icon="M3 12h4l3-8 4 16 3-8h4",
    about="How messages flow, and what needs a look.",
)
_MOST_LISTED: Final = 8
_REQUEST_SECONDS: Final = 5.0


class Figure(PageData):
    """One number of a stage."""

    label: str
    value: float | None
    unit: str = ""


class Stage(PageData):
    """One stage that messages pass."""

    name: str
    title: str
    state: str = Field(description="running, waiting, down, off or unknown.")
    figures: Sequence[Figure]
    course: Sequence[float] | None = None
    """How its first rate went, look by look; None where there is none."""
    leads: str = ""
    passes: Figure | None = None
    """How much goes on from it."""
    to: str = ""
    """The room that shows more, where whoever looks may see it."""


class Concern(PageData):
    """Something that needs a look."""

    level: str = Field(description="bad, warn or good.")
    text: str
    to: str


class ActiveSituation(PageData):
    """An emergency that holds."""

    scenario: str
    subject: str
    situation: str
    since: str


class ViewFlow(PageData):
    """A view on its way."""

    name: str
    stream: str
    state: str
    lag: int | None


class DeniedCount(PageData):
    """How often something is denied."""

    reason: str
    count: float


class Overview(PageData):
    """What runs, how much passes, and what needs a look."""

    epoch: int
    measured: bool
    stages: Sequence[Stage]
    concerns: Sequence[Concern]
    situations: Sequence[ActiveSituation]
    detection: str
    """Why no situation is known, where none is."""
    denied: Sequence[DeniedCount]
    views: Sequence[ViewFlow]

    def chart(self, stage: Stage) -> str:
        """Return the course of a stage as a small line."""
        return sparkline(stage.course or (), f"{stage.title}: messages per second, of late")


@ROOM.page("/overview", "Overview", "overview/page.html", live="overview/flow.html", every=2.0)
def show(visit: Visitor) -> Overview:
    """Show what runs, how much passes, and what needs a look."""
    desk = visit.desk
    figures = desk.figures
    reading = figures.latest()
    parts = reading.by("penstock_part_up", "part")
    views = list_view_flows(visit)
    situations, trouble = list_situations(visit)
    overdue, dead, open_requests = count_requests(visit)
    name = "penstock_gateway_messages_total"

    def state(part: str) -> str:
        if part not in parts:
            return "unknown" if not figures.reached else "off"
        return "running" if parts[part] else "off" if part not in desk.config.parts else "down"

    denied_rate = figures.rate("penstock_gateway_denied_total")
    stages = [
        Stage(
            name="gateway",
            title="Gateway",
            state=state("gateway"),
            figures=[
                Figure(label="in", value=figures.rate(name, direction="in"), unit="msg/s"),
                Figure(label="clients", value=reading.total("penstock_gateway_connections")),
                Figure(label="denied", value=denied_rate, unit="/s"),
            ],
            course=figures.course(name, direction="in"),
            leads="accepted",
            passes=Figure(label="accepted", value=figures.rate(name, direction="in"), unit="/s"),
            to="/purposes/subscriptions" if visit.sees("purposes") else "",
        ),
        Stage(
            name="broker",
            title="Broker",
            state="running" if desk.config.broker.mode == "external" else state("broker"),
            figures=[
                Figure(label="lanes", value=reading.total("penstock_gateway_lanes")),
                Figure(label="lost", value=reading.total("penstock_gateway_broker_lost_total")),
            ],
            leads="decided again, for each reader",
            passes=Figure(label="delivered", value=figures.rate(name, direction="out"), unit="/s"),
        ),
        Stage(
            name="subscribers",
            title="Deliveries",
            state=state("gateway"),
            figures=[
                Figure(label="out", value=figures.rate(name, direction="out"), unit="msg/s"),
                Figure(
                    label="withheld",
                    value=figures.rate("penstock_gateway_denied_total", what="delivery"),
                    unit="/s",
                ),
            ],
            course=figures.course(name, direction="out"),
            to="/live",
        ),
        Stage(
            name="log",
            title="Event log",
            state=state("gateway"),
            figures=[
                Figure(
                    label="written",
                    value=figures.rate("penstock_recording_written_total"),
                    unit="rec/s",
                ),
                Figure(
                    label="lag", value=reading.total("penstock_recording_lag_seconds"), unit="s"
                ),
            ],
            course=figures.course("penstock_recording_written_total"),
            leads="anonymized",
            passes=Figure(
                label="read", value=figures.rate("penstock_view_records_read_total"), unit="/s"
            ),
            to="/views" if visit.sees("views") else "",
        ),
        Stage(
            name="views",
            title="Views",
            state=state("pipeline"),
            figures=[
                Figure(label="running", value=sum(it.state == "running" for it in views)),
                Figure(label="defined", value=len(views)),
                Figure(label="lag", value=reading.total("penstock_view_lag"), unit="rec"),
            ],
            to="/views" if visit.sees("views") else "",
        ),
        Stage(
            name="services",
            title="Privacy services",
            state=state("rights"),
            figures=[
                Figure(label="open", value=open_requests),
                Figure(label="overdue", value=overdue),
                Figure(label="dead letters", value=dead),
            ],
            to="/requests" if visit.sees("requests") else "",
        ),
    ]
    by_reason = reading.by("penstock_gateway_denied_total", "reason")
    most = sorted(((it, count) for it, count in by_reason.items() if count), key=lambda it: -it[1])
    return Overview(
        epoch=visit.epoch,
        measured=figures.reached,
        stages=stages,
        concerns=list_concerns(visit, stages, situations, trouble, overdue, dead),
        situations=situations[:_MOST_LISTED] if visit.sees("emergencies") else [],
        detection=trouble,
        denied=[DeniedCount(reason=it, count=count) for it, count in most[:_MOST_LISTED]],
        views=views[:_MOST_LISTED],
    )


def list_view_flows(visit: Visit) -> list[ViewFlow]:
    """Return each view with its state, as whoever runs it says."""
    control = Control(visit.desk.config.pipeline.folder)
    lag = visit.desk.figures.latest().by("penstock_view_lag", "view")
    found = []
    for name, view in sorted(visit.definitions.of(kinds.View).items()):
        wanted, condition = control.wanted(name), control.condition(name)
        state = condition.state if condition else wanted.state
        if condition is None and wanted.state == "running":
            state = "waiting"
        behind = lag.get(name)
        found.append(
            ViewFlow(
                name=name,
                stream=view.stream,
                state=state,
                lag=None if behind is None else int(behind),
            )
        )
    return found


def list_situations(visit: Visit) -> tuple[list[ActiveSituation], str]:
    """Return the situations that hold; or why none is known."""
    if not visit.definitions.of(kinds.Scenario):
        return [], ""
    live = read_live(visit.desk.database, utc_now())
    found = [
        ActiveSituation(
            scenario=it.scenario,
            subject=it.subject,
            situation=it.situation,
            since=it.since.isoformat(),
        )
        for it in live.standing
    ]
    return ([] if live.trouble else found), live.trouble


def count_requests(visit: Visit) -> tuple[int, int, int]:
    """Return how many parts of privacy requests are overdue, failed and open."""

    def ask() -> tuple[int, int, int]:
        rows = visit.desk.compliance().figures()
        return (
            sum(it.overdue for it in rows),
            sum(it.failed for it in rows),
            sum(it.open for it in rows),
        )

    return visit.desk.remember("compliance", _REQUEST_SECONDS, ask)


def list_concerns(
    visit: Visit,
    stages: Sequence[Stage],
    situations: Sequence[ActiveSituation],
    trouble: str,
    overdue: int,
    dead: int,
) -> list[Concern]:
    """Return what needs a look, the worst first."""
    found = [
        Concern(
            level="bad",
            text=f"Down: {it.title.lower()}",
            to="/help?page=how-to/run-with-the-supervisor",
        )
        for it in stages
        if it.state == "down"
    ]
    if overdue:
        found.append(Concern(level="bad", text=f"Overdue at services: {overdue}", to="/requests"))
    if dead:
        found.append(Concern(level="bad", text=f"Dead letters: {dead}", to="/requests/dead"))
    if trouble:
        found.append(
            Concern(level="warn", text=f"No situation is known: {trouble}", to="/emergencies")
        )
    if situations:
        count = len(situations)
        text = "1 emergency holds" if count == 1 else f"{count} emergencies hold"
        found.append(Concern(level="warn", text=text, to="/emergencies"))
    if not visit.desk.figures.reached:
        found.append(
            Concern(
                level="warn",
                text="No part answers at the monitor address",
                to="/help?page=reference/metrics-and-logs",
            )
        )
    if not found:
        found.append(Concern(level="good", text="All is well", to="/audit"))
    return found
