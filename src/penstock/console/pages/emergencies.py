"""Emergencies: plans with the situations that hold, how they came about, and situations by hand.

    plans ─▶ state diagrams, with who is where ◀─ situations, as the leader has recorded them
    history ─▶ timeline        start, end, approve, withdraw ─▶ `BreakGlass` ─▶ the leader

Rules that hold here:
- Nothing is set here: a request is recorded with its reason and its author, as by the command
  line, and the gateway that detects carries it out. Who may is asked there.
- Where nobody detects it is said so: what is shown is then what was recorded last.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Final
from urllib.parse import quote as encode

from fastapi import Query
from markupsafe import Markup
from pydantic import Field

from penstock.cep.scenario_instances import LONGEST_HOLD
from penstock.clock import utc_now
from penstock.config.settings import parse_duration
from penstock.console.access import MissingError
from penstock.console.desk import Visit, Visitor
from penstock.console.figures import Span, span_chart
from penstock.console.rooms import Again, Done, Form, FormData, PageData, Room
from penstock.definitions.authorizer import list_grants, list_involved
from penstock.definitions.events.plan_diagram import draw_part
from penstock.errors import UnavailableError, UsageError, quote
from penstock.model import kinds
from penstock.store.detection.break_glass import BreakGlass, UnknownSubjectError, Wish
from penstock.store.detection.journal import find_leader
from penstock.store.detection.situations import Situations, find_trouble
from penstock.store.detection.tables import Request, Standing, State, Transition

ROOM: Final = Room(
    "emergencies",
    "Emergencies",
    order=40,
    help="how-to/emergencies",
    icon="M12 3l10 18H2zM12 10v5M12 18v.01",
    about="Plans, the situations that hold, and how they came about.",
)
_LATELY: Final = 30
_LISTED: Final = 100
_CASES: Final = 14
_SPANS: Final = 400
_WAIT_SECONDS: Final = 4.0
_LOOK_SECONDS: Final = 0.1
_CAUSES: Final = {
    "detected": "detected",
    "manual": "by hand",
    "time": "the time is over that it was held for",
    "duration": "its longest duration is over",
    "limit": "too many others are in a situation",
    "definitions": "its definition has changed",
}

Name = Annotated[str, Query(max_length=256)]


class ActiveCase(PageData):
    """A situation that holds."""

    scenario: str
    subject: str
    situation: str
    level: int | None
    since: str
    held_until: str


class Step(PageData):
    """A step of the history; empty as source or target is inactive."""

    number: int
    at: str
    scenario: str
    subject: str
    source: str
    target: str
    way: str
    """up, down or over."""
    why: str
    reason: str
    by_hand: bool


class WaitingRequest(PageData):
    """Somebody's wish that is not settled."""

    request: str
    at: str
    scenario: str
    subject: str
    situation: str
    actor: str
    reason: str
    state: str
    may_approve: bool
    may_withdraw: bool


class PlanCard(PageData):
    """A scenario, and how many are where."""

    scenario: str
    plan: str
    description: str
    occupied: dict[str, int]
    diagram: str
    """SVG."""

    def svg(self) -> Markup:
        """Return the diagram as markup; all names in it are escaped."""
        return Markup(self.diagram)  # noqa: S704 - draw_part escapes them


class Emergencies(PageData):
    """What holds, for whom, and what came before."""

    trouble: str
    cases: Sequence[ActiveCase]
    requests: Sequence[WaitingRequest]
    plans: Sequence[PlanCard]
    steps: Sequence[Step]
    chart: str

    def timeline(self) -> Markup:
        """Return the course of cases as markup."""
        return Markup(self.chart)  # noqa: S704 - span_chart escapes names


class Opened(PageData):
    """An emergency policy that applies in a situation."""

    policy: str
    description: str
    action: str
    filter: str
    people: Sequence[str]
    undecided: int


class Onward(PageData):
    """Where it may go on from here."""

    cause: str
    to: str


class ScenarioPage(PageData):
    """One scenario, or the case of one subject in it."""

    scenario: str
    plan: PlanCard
    subject: str
    trouble: str
    case: ActiveCase | None
    onward: Sequence[Onward]
    opened: Sequence[Opened]
    involved: Sequence[str] | None
    cases: Sequence[ActiveCase]
    situations: Sequence[str]
    steps: Sequence[Step]
    chart: str
    may_set: bool
    two_persons: bool
    typed: dict[str, str] = Field(default_factory=dict)
    problem: str = ""
    fix: str = ""
    ask_sure: bool = False

    def timeline(self) -> Markup:
        """Return the course of cases as markup."""
        return Markup(self.chart)  # noqa: S704 - span_chart escapes names


class HistoryPage(PageData):
    """Steps, the newest first."""

    scenario: str
    subject: str
    scenarios: Sequence[str]
    steps: Sequence[Step]
    older: int | None


def _situations(visit: Visit) -> Situations:
    desk = visit.desk
    return Situations(desk.database, desk.log, desk.people)


def _glass(visit: Visit) -> BreakGlass:
    desk = visit.desk
    return BreakGlass(
        _situations(visit),
        visit.definitions,
        desk.config.gateway,
        desk.log,
        desk.people,
        visit.epoch,
    )


def _trouble(visit: Visit) -> str:
    if not visit.definitions.of(kinds.Scenario):
        return ""
    return find_trouble(find_leader(visit.desk.database), utc_now())


def _levels(visit: Visit, scenario: str) -> dict[str, int]:
    held = visit.definitions.get(kinds.Scenario, scenario)
    plan = visit.definitions.get(kinds.Plan, held.plan) if held is not None else None
    return {it.id: it.level for it in plan.situations} if plan is not None else {}


@ROOM.page("/emergencies", "Emergencies", "emergencies/page.html", live="emergencies/now.html")
def show_emergencies(visit: Visitor) -> Emergencies:
    """Show the situations that hold, the plans, requests that wait, and what happened lately."""
    situations, glass = _situations(visit), _glass(visit)
    standing, steps = situations.current(), situations.history(limit=_SPANS)
    return Emergencies(
        trouble=_trouble(visit),
        cases=[_tell_case(visit, it) for it in standing[:_LISTED]],
        requests=[_tell_request(visit, glass, it) for it in situations.requests()],
        plans=[
            _tell_plan(visit, name, standing)
            for name in sorted(visit.definitions.of(kinds.Scenario))
        ],
        steps=[_tell_step(visit, it) for it in steps[:_LATELY]],
        chart=_draw_spans(visit, standing, steps),
    )


@ROOM.page(
    "/emergencies/scenario",
    "Scenario",
    "emergencies/scenario.html",
    live="emergencies/case.html",
    hidden=True,
)
def show_scenario(visit: Visitor, name: Name, subject: Name = "") -> ScenarioPage:
    """Show one scenario: its plan, who is where, and what the case of one subject opens."""
    held = visit.definitions.get(kinds.Scenario, name)
    if held is None:
        raise MissingError(f"there is no scenario {quote(name)}", fix="choose one of the list")
    situations = _situations(visit)
    standing = situations.current(name)
    case = next((it for it in standing if it.subject == subject), None)
    plan = visit.definitions.of(kinds.Plan)[held.plan]
    steps = situations.history(name, subject or None, limit=_SPANS)
    shown = [case] if case is not None else [] if subject else standing
    grants = list_grants(visit.definitions, name, subject, case.situation) if case else []
    return ScenarioPage(
        scenario=name,
        plan=_tell_plan(visit, name, shown),
        subject=subject,
        trouble=_trouble(visit),
        case=_tell_case(visit, case) if case is not None else None,
        onward=[
            Onward(cause=it.cause, to=it.target or "")
            for it in plan.evolutions
            if it.source == (case.situation if case is not None else None)
        ],
        opened=[
            Opened(
                policy=it.policy,
                description=it.description,
                action=it.action,
                filter=it.filter,
                people=it.people,
                undecided=len(it.undecided),
            )
            for it in grants
        ],
        involved=list_involved(visit.definitions, name, subject) if case is not None else None,
        cases=[_tell_case(visit, it) for it in standing[:_LISTED]],
        situations=[it.id for it in sorted(plan.situations, key=lambda it: it.level)],
        steps=[_tell_step(visit, it) for it in steps[:_LATELY]],
        chart=_draw_spans(visit, shown, steps),
        may_set=_glass(visit).has_right(visit.user, name),
        two_persons=visit.desk.config.gateway.emergencies.two_persons,
    )


@ROOM.page("/emergencies/history", "History", "emergencies/history.html")
def show_history(
    visit: Visitor,
    scenario: Name = "",
    subject: Name = "",
    before: Annotated[int | None, Query(ge=0, lt=1 << 63)] = None,
) -> HistoryPage:
    """List how situations came about, the newest first."""
    found = _situations(visit).history(
        scenario or None, subject or None, before=before, limit=_LISTED
    )
    return HistoryPage(
        scenario=scenario,
        subject=subject,
        scenarios=sorted(visit.definitions.of(kinds.Scenario)),
        steps=[_tell_step(visit, it) for it in found],
        older=found[-1].number if len(found) == _LISTED else None,
    )


def _tell_case(visit: Visit, it: Standing) -> ActiveCase:
    return ActiveCase(
        scenario=it.scenario,
        subject=it.subject,
        situation=it.situation,
        level=_levels(visit, it.scenario).get(it.situation),
        since=it.since.isoformat(),
        held_until=it.held_until.isoformat() if it.held_until else "",
    )


def _tell_step(visit: Visit, it: Transition) -> Step:
    levels = _levels(visit, it.scenario)
    rises = levels.get(it.target or "", 0) >= levels.get(it.source or "", 0)
    why = f"event {it.event}" if it.event else _CAUSES[it.cause.value]
    if it.request is not None:
        why = f"by hand of {it.actor}"
        if it.approver:
            why += f", approved by {it.approver}"
        if it.held_until:
            why += f", held for {timedelta(milliseconds=it.hold or 0)}"
    return Step(
        number=it.number,
        at=it.at.isoformat(),
        scenario=it.scenario,
        subject=it.subject,
        source=it.source or "",
        target=it.target or "",
        way="over" if it.target is None else "up" if rises else "down",
        why=why,
        reason=it.reason or "",
        by_hand=it.request is not None,
    )


def _tell_request(visit: Visit, glass: BreakGlass, it: Request) -> WaitingRequest:
    may = glass.has_right(visit.user, it.scenario)
    return WaitingRequest(
        request=it.request,
        at=it.at.isoformat(),
        scenario=it.scenario,
        subject=it.subject,
        situation=it.situation or "",
        actor=it.actor,
        reason=it.reason,
        state=it.state.value,
        may_approve=may and it.state is State.OPEN and it.actor != visit.user,
        may_withdraw=may or it.actor == visit.user,
    )


def _tell_plan(visit: Visit, scenario: str, standing: Sequence[Standing]) -> PlanCard:
    plan = visit.definitions.of(kinds.Plan)[visit.definitions.of(kinds.Scenario)[scenario].plan]
    occupied: dict[str, int] = {}
    for it in standing:
        if it.scenario == scenario:
            occupied[it.situation] = occupied.get(it.situation, 0) + 1
    return PlanCard(
        scenario=scenario,
        plan=plan.name,
        description=plan.description,
        occupied=occupied,
        diagram=draw_part(plan, occupied),
    )


def _draw_spans(visit: Visit, standing: Sequence[Standing], steps: Sequence[Transition]) -> str:
    """Return how long cases were in which situation, as a chart; nothing where there was none."""
    # A page that follows is sent again when it differs: not for every second that passes.
    now = utc_now() + timedelta(seconds=10)
    now = now.replace(second=now.second // 10 * 10, microsecond=0)
    ends: dict[tuple[str, str], datetime] = {}
    spans: dict[tuple[str, str], list[Span]] = {}
    named = {*(it.scenario for it in standing), *(it.scenario for it in steps)}
    levels = {it: _levels(visit, it) for it in named}
    for it in steps:
        key = (it.scenario, it.subject)
        if key not in spans and len(spans) == _CASES:
            continue
        found = spans.setdefault(key, [])
        if it.target is not None:
            end = ends.get(key)
            ranks = sorted(set(levels[it.scenario].values()))
            level = levels[it.scenario].get(it.target, 0)
            rank = ranks.index(level) if level in ranks else 0
            shade = 1 + round(4 * rank / max(1, len(ranks) - 1))
            found.append(Span(it.at, end or now, it.target, shade, open=end is None))
        ends[key] = it.at
    rows = [(f"{subject} ({scenario})", found) for (scenario, subject), found in spans.items()]
    return str(span_chart(rows, now, "How long each case was in which situation"))


# --- by hand ---


@ROOM.action("/emergencies/start")
def start(visit: Visitor, form: Form) -> Again | Done:
    """Put somebody into a situation by hand: break the glass."""
    scenario, subject = form.text("scenario", 256), form.text("subject", 256)
    wish = Wish(
        scenario,
        subject,
        form.text("situation", 256),
        form.text("reason", 2_000),
        _read_hold(form.text("hold", 32)),
        sure=form.get("sure") == "yes",
    )
    return _request(visit, form, wish)


@ROOM.action("/emergencies/end")
def end(visit: Visitor, form: Form) -> Again | Done:
    """End somebody's situation by hand."""
    scenario, subject = form.text("scenario", 256), form.text("subject", 256)
    return _request(visit, form, Wish(scenario, subject, None, form.text("reason", 2_000)))


@ROOM.action("/emergencies/approve")
def approve(visit: Visitor, form: Form) -> Done:
    """Approve what somebody else asked for."""
    asked = _glass(visit).approve(form.text("request", 64), visit.user)
    return Done("/emergencies", _follow(visit, asked))


@ROOM.action("/emergencies/withdraw")
def withdraw(visit: Visitor, form: Form) -> Done:
    """Take back what was not carried out yet."""
    _glass(visit).withdraw(form.text("request", 64), visit.user)
    return Done("/emergencies", "The request is withdrawn.")


def _request(visit: Visit, form: FormData, wish: Wish) -> Again | Done:
    try:
        asked = _glass(visit).request(wish, visit.user)
    except UsageError as error:
        if visit.definitions.get(kinds.Scenario, wish.scenario) is None:
            raise
        page = show_scenario(visit, wish.scenario, "" if wish.situation else wish.subject)
        shown = page.model_copy(
            update={
                "typed": {it: form.text(it, 2_000) for it in form if it != "csrf"},
                "problem": error.message,
                "fix": error.fix or "",
                "ask_sure": isinstance(error, UnknownSubjectError),
            }
        )
        return Again("emergencies/scenario.html", wish.scenario, shown)
    name, subject = encode(wish.scenario, safe=""), encode(wish.subject, safe="")
    to = f"/emergencies/scenario?name={name}&subject={subject}"
    return Done(to, _follow(visit, asked))


def _read_hold(text: str) -> int:
    """Return a duration such as 30m in milliseconds; nothing is none."""
    if not text:
        return 0
    try:
        hold = round(parse_duration(text) * 1000)
    except ValueError:
        raise UsageError(
            f"{quote(text)} is not a duration", fix="write a number with a unit, such as 30m"
        ) from None
    if not 0 < hold <= LONGEST_HOLD:
        raise UsageError(f"nobody can be held for {quote(text)}", fix="hold them for 7d at most")
    return hold


def _follow(visit: Visit, asked: Request) -> str:
    """Wait a moment until a request is carried out; say what became of it."""
    if asked.state is State.OPEN:
        return "Recorded. A second person must approve it within 15 minutes."
    situations, until = _situations(visit), time.monotonic() + _WAIT_SECONDS
    while asked.state is State.READY and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
        asked = situations.find(asked.request)
    if asked.state is State.DONE:
        if asked.situation is None:
            return f"The emergency of {asked.subject} is over."
        return f"{asked.subject} is in {asked.situation} of {asked.scenario}."
    if asked.state is State.READY:
        return (
            "Recorded. No gateway has carried it out yet: "
            f"{_trouble(visit) or 'it has not answered in time'}. It expires after 15 minutes."
        )
    raise UnavailableError(
        f"the request is {asked.state.value}: {asked.trouble or 'it was not carried out'}",
        fix="see the history, and ask again",
    )
