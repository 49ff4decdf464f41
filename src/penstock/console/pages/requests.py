"""Privacy requests: what people chose and asked for, and whether every service does its part.

    front end ─▶ request ─▶ services, each with a deadline ─▶ done, or a dead letter ─▶ redrive
    registration of a service owner ─▶ review ─▶ definition

Rules that hold here:
- To look takes the right to see the room; to redrive and to decide on registrations, the right to
  administer, as for `penstock requests`.
- Nobody's name is shown. Who a request is about appears as the pseudonym that the audit log has,
  and only while the request is unfinished: later nobody knows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

from fastapi import Query

from penstock.clock import utc_now
from penstock.console.access import MissingError
from penstock.console.desk import Desk, Visit, Visitor
from penstock.console.figures import Series, line_chart, stacked_bar
from penstock.console.pages.definitions import Draft, show_review
from penstock.console.rooms import Again, Done, Form, PageData, Room
from penstock.definitions import write_yaml
from penstock.errors import UsageError
from penstock.model import kinds
from penstock.store.rights.erasures import ErasureBook
from penstock.store.rights.registrations import Registration, RegistrationStatus
from penstock.store.rights.tables import LOST, OPEN, RequestStatus

ROOM: Final = Room(
    "requests",
    "Privacy requests",
    order=60,
    help="how-to/honour-privacy-requests",
    icon="M9 11l2 2 4-4M5 4h14v17l-3-2-2 2-2-2-2 2-2-2-3 2z",
    about="What people chose and asked for, and who still has to act.",
)
_LISTED: Final = 25
_PARTS: Final = 200
_SOON: Final = 8
_WEEKS: Final = 12
_SECONDS: Final = 5.0
_COURSE_SECONDS: Final = 60.0

AskedStatus = Annotated[
    Literal["", "INIT", "INPROGRESS", "COMPLETED", "SOMEFAILED"], Query(description="How far.")
]
AskedId = Annotated[str, Query(pattern=r"^[0-9a-f]{32}$", description="Which one.")]
Name = Annotated[str, Query(max_length=256)]


class ServiceRow(PageData):
    """How one service honoured one control."""

    control: str
    subscriber: str
    total: int
    in_time: int
    late: int
    open: int
    overdue: int
    failed: int
    share: float | None
    """The part that was honoured in time, of what had to be."""

    def bar(self) -> str:
        """Return its parts as a bar."""
        parts = {
            "in time": self.in_time,
            "open": self.open - self.overdue,
            "late": self.late,
            "overdue": self.overdue,
            "failed": self.failed,
        }
        return stacked_bar(parts, f"{self.subscriber}, {self.control}")


class PartRow(PageData):
    """What one service has to do for one request."""

    request: str
    subscriber: str
    control: str
    action: str
    publisher: str
    status: str
    at: str
    due: str
    overdue: bool
    told_again: int
    trouble: str


class RequestRow(PageData):
    """A request."""

    id: str
    at: str
    publisher: str
    control: str
    action: str
    status: str
    services: int
    done: int

    def bar(self) -> str:
        """Return how many services are done as a bar."""
        failed = self.status == RequestStatus.SOMEFAILED
        left = self.services - self.done
        parts = {"in time": self.done, "failed" if failed else "open": left}
        return stacked_bar(parts, f"{self.done} of {self.services} services are done")


class WeekShare(PageData):
    """How much of a week's requests was honoured in time."""

    begin: str
    share: float | None


class RequestsPage(PageData):
    """How privacy requests stand."""

    open: int
    overdue: int
    dead: int
    share: float | None
    waiting: int
    """Registrations that wait for a decision."""
    services: Sequence[ServiceRow]
    weeks: Sequence[WeekShare]
    soon: Sequence[PartRow]
    status: str
    rows: Sequence[RequestRow]
    older: str | None
    may_change: bool

    def course(self) -> str:
        """Return the shares of the last weeks as a chart."""
        held = [it.share for it in self.weeks if it.share is not None]
        lines = [Series("honoured in time", held)]
        return line_chart(lines, "Share of requests honoured in time, by week", most=1.0, width=400)


class DeadPage(PageData):
    """What services failed."""

    rows: Sequence[PartRow]
    more: bool
    may_change: bool


class ProgressRow(PageData):
    """How far one service is with one request."""

    subscriber: str
    status: str
    due: str
    overdue: bool
    deadline: str
    completed: str
    told_again: int
    trouble: str


class NoticeRow(PageData):
    """Somebody who is told."""

    kind: str
    channel: str
    subscriber: str
    status: str
    trouble: str


class EvidenceRow(PageData):
    """Proof of what was erased or exported."""

    subscriber: str
    at: str
    intact: bool
    entry: int
    content: dict[str, Any]


class RequestPage(PageData):
    """One request."""

    id: str
    publisher: str
    control: str
    action: str
    categories: str
    status: str
    at: str
    finished: str
    epoch: int
    subject: str
    """The pseudonym of whom it is about; empty once nobody has to know."""
    progress: Sequence[ProgressRow]
    notices: Sequence[NoticeRow]
    evidence: Sequence[EvidenceRow]
    may_redrive: bool


class ControlRow(PageData):
    """A control: what people can choose or ask for."""

    name: str
    choice: str
    purposes: Sequence[str]
    categories: Sequence[str]
    publishers: Sequence[str]
    subscribers: Sequence[str]
    days: float
    heard: bool
    """Whether anybody would honour it."""


class FrontRow(PageData):
    """A publisher: a front end that takes choices in."""

    name: str
    controls: Sequence[str]
    subjects: Sequence[str]
    notify: Sequence[str]


class SubscriberRow(PageData):
    """A service that acts on a control."""

    name: str
    control: str
    categories: Sequence[str]
    delivery: str
    uri: str
    subjects: Sequence[str]


class RegistrationRow(PageData):
    """Something that a service owner asks to be defined."""

    id: str
    user: str
    kind: str
    name: str
    why: str
    at: str
    status: str
    decided_by: str
    reason: str
    text: str
    """The definition, as YAML."""


class ControlsPage(PageData):
    """What people can choose, who takes it in, and who acts on it."""

    controls: Sequence[ControlRow]
    publishers: Sequence[FrontRow]
    subscribers: Sequence[SubscriberRow]
    waiting: Sequence[RegistrationRow]
    may_change: bool


def iso(moment: datetime | None) -> str:
    """Return a moment as data."""
    return moment.isoformat() if moment is not None else ""


def tell_part(row: Any) -> PartRow:
    """Return what a service has to do as a page shows it."""
    return PartRow(
        request=row.request,
        subscriber=row.subscriber,
        control=row.control,
        action=row.action,
        publisher=row.publisher,
        status=row.status,
        at=iso(row.at),
        due=iso(row.due),
        overdue=row.due is not None and row.due < utc_now() and row.status != "COMPLETED",
        told_again=row.rounds,
        trouble=row.trouble.replace("_", " "),
    )


def tell_registration(it: Registration) -> RegistrationRow:
    """Return a registration as a page shows it."""
    return RegistrationRow(
        id=it.id,
        user=it.user,
        kind=it.document.kind,
        name=it.document.name,
        why=it.why,
        at=iso(it.at),
        status=it.status.value,
        decided_by=it.decided_by,
        reason=it.reason,
        text=write_yaml([it.document]),
    )


def _list_services(desk: Desk) -> list[ServiceRow]:
    return [
        ServiceRow(
            control=it.control,
            subscriber=it.subscriber,
            total=it.total,
            in_time=it.in_time,
            late=it.late,
            open=it.open,
            overdue=it.overdue,
            failed=it.failed,
            share=it.share,
        )
        for it in desk.compliance().figures()
    ]


def _list_weeks(desk: Desk) -> list[WeekShare]:
    """Return the shares of the last weeks; those without requests have none."""
    now, book, found = utc_now(), desk.compliance(), []
    for number in range(_WEEKS, 0, -1):
        begin, end = (now - timedelta(weeks=it) for it in (number, number - 1))
        rows = book.figures(begin, end)
        had_to = sum(it.in_time + it.late + it.overdue + it.failed for it in rows)
        share = sum(it.in_time for it in rows) / had_to if had_to else None
        found.append(WeekShare(begin=iso(begin), share=share))
    return found


@ROOM.page("/requests", "Privacy requests", "requests/list.html", live="requests/now.html")
def list_requests(
    visit: Visitor,
    status: AskedStatus = "",
    after: Annotated[str, Query(pattern=r"^([0-9a-f]{32})?$")] = "",
) -> RequestsPage:
    """Show how requests stand, what is due next, and the newest of them."""
    desk = visit.desk
    book = desk.privacy().book
    services = desk.remember("services", _SECONDS, lambda: _list_services(desk))
    had_to = sum(it.in_time + it.late + it.overdue + it.failed for it in services)
    found = book.newest(
        status=RequestStatus(status) if status else None, limit=_LISTED, after=after or None
    )
    rows = [
        RequestRow(
            id=row.id,
            at=iso(row.at),
            publisher=row.publisher,
            control=row.control,
            action=row.action,
            status=row.status,
            services=count,
            done=done,
        )
        for row, count, done in found
    ]
    return RequestsPage(
        open=sum(it.open for it in services),
        overdue=sum(it.overdue for it in services),
        dead=sum(it.failed for it in services),
        share=sum(it.in_time for it in services) / had_to if had_to else None,
        waiting=len(desk.registrations.waiting()),
        services=services,
        weeks=desk.remember("weeks", _COURSE_SECONDS, lambda: _list_weeks(desk)),
        soon=[tell_part(it) for it in book.parts(OPEN, _SOON)],
        status=status,
        rows=rows,
        older=rows[-1].id if len(rows) == _LISTED else None,
        may_change=visit.administers,
    )


@ROOM.page("/requests/dead", "Dead letters", "requests/dead.html")
def list_dead(visit: Visitor) -> DeadPage:
    """Show what services failed, the longest due first."""
    found = visit.desk.privacy().book.parts(LOST, _PARTS + 1)
    return DeadPage(
        rows=[tell_part(it) for it in found[:_PARTS]],
        more=len(found) > _PARTS,
        may_change=visit.administers,
    )


@ROOM.page(
    "/requests/one", "Request", "requests/one.html", live="requests/progress.html", hidden=True
)
def show_request(visit: Visitor, id: AskedId) -> RequestPage:  # noqa: A002 - the word of the field
    """Show how far each service is with a request, who was told, and what was proved."""
    desk = visit.desk
    book = desk.privacy().book
    found = book.show(id)
    if found is None:
        raise MissingError("there is no such request", fix="look for it in the list")
    row, progress = found
    subject = book.subject_of(id)
    lost = {it.value for it in LOST}
    told = [
        NoticeRow(
            kind=it.kind,
            channel=it.channel,
            subscriber=it.subscriber or "",
            status="sent" if it.sent else "waiting" if it.next_at else "dead",
            trouble=it.trouble,
        )
        for it in book.outbox.of(id)
    ]
    return RequestPage(
        id=id,
        publisher=row.publisher,
        control=row.control,
        action=row.action,
        categories=", ".join(sorted(_read_names(row.categories))),
        status=row.status,
        at=iso(row.at),
        finished=iso(row.finished),
        epoch=row.epoch,
        subject="" if subject is None else desk.people.person(subject),
        progress=[
            ProgressRow(
                subscriber=it.subscriber,
                status=it.status,
                due=iso(it.due),
                overdue=it.due is not None and it.due < utc_now() and it.status != "COMPLETED",
                deadline=iso(it.deadline),
                completed=iso(it.completed),
                told_again=it.rounds,
                trouble=it.trouble.replace("_", " "),
            )
            for it in progress
        ],
        notices=told,
        evidence=[
            EvidenceRow(
                subscriber=it.subscriber,
                at=iso(it.at),
                intact=it.is_intact,
                entry=it.entry,
                content=dict(it.content),
            )
            for it in ErasureBook(desk.database).evidence(id)
        ],
        may_redrive=visit.administers
        and (any(it.status in lost for it in progress) or any(it.status == "dead" for it in told)),
    )


def _read_names(text: str) -> list[str]:
    return [str(it) for it in json.loads(text)]


@ROOM.action("/requests/redrive")
def redrive(visit: Visitor, form: Form) -> Done:
    """Let services that failed be told anew: of one request, or of all."""
    visit.require_administration()
    request = form.text("request", 32)
    broker = visit.desk.privacy()
    if request and broker.book.show(request) is None:
        raise MissingError("there is no such request", fix="look for it in the list")
    again = broker.redrive(visit.user, request or None)
    said = f"{again} {'service is' if again == 1 else 'services are'} told again."
    if form.get("back") == "dead":
        return Done("/requests/dead", said)
    return Done(f"/requests/one?id={request}" if request else "/requests", said)


@ROOM.page("/requests/controls", "Controls and services", "requests/controls.html")
def list_controls(visit: Visitor) -> ControlsPage:
    """Show what people can choose, who takes it in, who acts on it, and who asks to."""
    known = visit.definitions
    publishers = sorted(known.of(kinds.ControlPublisher).items())
    subscribers = sorted(known.of(kinds.ControlSubscriber).items())
    broker = visit.desk.privacy()
    return ControlsPage(
        controls=[
            ControlRow(
                name=name,
                choice=f"choice, {it.default} at first" if it.stateful else f"asks: {it.operation}",
                purposes=it.purposes,
                categories=it.categories,
                publishers=[key for key, front in publishers if name in front.controls],
                subscribers=[key for key, service in subscribers if service.control == name],
                days=it.time_to_honor / 86_400_000,
                heard=broker.has_effect(it),
            )
            for name, it in sorted(known.of(kinds.Control).items())
        ],
        publishers=[
            FrontRow(name=name, controls=it.controls, subjects=it.subjects, notify=it.notify)
            for name, it in publishers
        ],
        subscribers=[
            SubscriberRow(
                name=name,
                control=it.control,
                categories=it.categories,
                delivery=it.delivery,
                uri=it.uri,
                subjects=it.subjects,
            )
            for name, it in subscribers
        ],
        waiting=[tell_registration(it) for it in visit.desk.registrations.waiting()],
        may_change=visit.administers,
    )


def _find_waiting(visit: Visit, form: Form) -> Registration:
    found = visit.desk.registrations.find(form.text("id", 32))
    if found is None or found.status is not RegistrationStatus.WAITING:
        raise UsageError("it is decided already, or withdrawn", fix="look at the list again")
    return found


@ROOM.action("/requests/approve")
def approve(visit: Visitor, form: Form) -> Again:
    """Show what approving a registration would do; it is applied from there."""
    visit.require_administration()
    found = _find_waiting(visit, form)
    reason = f"registered by {found.user}"
    return show_review(
        visit, Draft(write_yaml([found.document]), (), reason, "/requests/controls", found.id)
    )


@ROOM.action("/requests/refuse")
def refuse(visit: Visitor, form: Form) -> Done:
    """Refuse a registration, and say why."""
    visit.require_administration()
    found, reason = _find_waiting(visit, form), form.text("reason", 500)
    if not reason:
        raise UsageError("it is not said why", fix="go back, and tell the owner what to change")
    visit.desk.registrations.decide(found.id, RegistrationStatus.REFUSED, visit.user, reason)
    visit.desk.record("refused", visit.user, request=found.id)
    return Done("/requests/controls", f"{found.document.name} is refused.")
