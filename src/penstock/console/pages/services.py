"""Your services: what an ordinary account acts for, and how it registers more.

    form ─▶ checked as `apply` checks ─▶ waits for who administers ─▶ review ─▶ definition
    subscriber ─▶ what it has to do ─▶ acknowledge, complete

Rules that hold here:
- Everybody who is signed in may ask for a service or a front end; only who administers makes it
  one. Whoever administers is led to the review at once.
- A name that others act for cannot be asked for.
- One sees and answers the requests of one's own services alone: the broker decides, as it does
  for their programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote as encode

from fastapi import Query

from penstock.console.desk import Visit, Visitor
from penstock.console.pages.definitions import Draft, show_review
from penstock.console.pages.requests import (
    Name,
    PartRow,
    RegistrationRow,
    tell_part,
    tell_registration,
)
from penstock.console.rooms import Again, Done, Form, FormData, PageData, Room
from penstock.definitions import write_yaml
from penstock.errors import DeniedError, InvalidError, PenstockError, UsageError, quote
from penstock.model import kinds
from penstock.model.document import Document
from penstock.model.kinds.controls import BUILT_IN
from penstock.rights.dispatch.message import derive_key
from penstock.store.rights.registrations import RegistrationStatus
from penstock.store.rights.tables import LOST, OPEN

ROOM: Final = Room(
    "services",
    "Your services",
    order=65,
    help="how-to/honour-privacy-requests",
    icon="M4 7l8-4 8 4v10l-8 4-8-4zM4 7l8 4 8-4M12 11v10",
    needs=False,
    about="What you act for, and how you register a service.",
)
_LISTED: Final = 100
_DELIVERIES: Final = ("http", "http-sync", "sqs", "sns", "kafka", "mqtt")
_TEXTS: Final = ("uri", "time_to_honor", "contact_email", "contact_mobile")
_NUMBERS: Final = ("send_retries", "deadline_retries")
SUBSCRIBER: Final = kinds.ControlSubscriber.kind
PUBLISHER: Final = kinds.ControlPublisher.kind

Kind = Annotated[
    Literal["control-subscriber", "control-publisher"], Query(description="What is registered.")
]


class OwnService(PageData):
    """A service that one acts for."""

    name: str
    control: str
    delivery: str
    open: int
    overdue: int
    failed: int


class OwnFront(PageData):
    """A front end that one acts for."""

    name: str
    controls: Sequence[str]


class ServicesPage(PageData):
    """What one acts for, and what one asked for."""

    services: Sequence[OwnService]
    fronts: Sequence[OwnFront]
    registrations: Sequence[RegistrationRow]
    administers: bool


class OfferedControl(PageData):
    """A control that a service can act on."""

    name: str
    about: str


class RegistrationForm(PageData):
    """A service or a front end as it is typed."""

    kind: str
    name: str
    values: Mapping[str, str]
    chosen: Sequence[str]
    """Controls of a front end, or ways to tell people."""
    controls: Sequence[OfferedControl]
    deliveries: Sequence[str] = _DELIVERIES
    why: str = ""
    problems: Sequence[Mapping[str, str]] = ()
    administers: bool = False


class OwnServicePage(PageData):
    """What a service of one's own has to do."""

    name: str
    control: str
    delivery: str
    uri: str
    rows: Sequence[PartRow]
    more: bool
    key: str = ""
    """What calls to it are signed with; shown when one asks."""


class FrontRequestRow(PageData):
    """A request of a front end."""

    id: str
    at: str
    control: str
    action: str
    status: str
    services: int
    done: int


class OwnFrontPage(PageData):
    """What was handed in by a front end of one's own."""

    name: str
    controls: Sequence[str]
    rows: Sequence[FrontRequestRow]
    address: str
    """Where the page with one person's choices is."""
    framed_by: Sequence[str]


def _is_own(visit: Visit, subjects: Sequence[str]) -> bool:
    return not visit.rights.subjects.isdisjoint(subjects)


@ROOM.page("/services", "Your services", "services/list.html")
def list_services(visit: Visitor) -> ServicesPage:
    """Show the services and front ends that one acts for, and what one asked to register."""
    known = visit.definitions
    own = [
        it
        for _, it in sorted(known.of(kinds.ControlSubscriber).items())
        if _is_own(visit, it.subjects)
    ]
    figures = visit.desk.compliance().figures() if own else []
    return ServicesPage(
        services=[
            OwnService(
                name=it.name,
                control=it.control,
                delivery=it.delivery,
                open=sum(row.open for row in figures if row.subscriber == it.name),
                overdue=sum(row.overdue for row in figures if row.subscriber == it.name),
                failed=sum(row.failed for row in figures if row.subscriber == it.name),
            )
            for it in own
        ],
        fronts=[
            OwnFront(name=it.name, controls=it.controls)
            for _, it in sorted(known.of(kinds.ControlPublisher).items())
            if _is_own(visit, it.subjects)
        ],
        registrations=[tell_registration(it) for it in visit.desk.registrations.of(visit.user)],
        administers=visit.administers,
    )


# --- registering ---


@ROOM.page("/services/register", "Register", "services/register.html", hidden=True)
def show_form(
    visit: Visitor, kind: Kind = "control-subscriber", name: Name = ""
) -> RegistrationForm:
    """Show the form of a service or a front end: a new one, or one of one's own."""
    found = visit.desk.current()[0].documents.get(Document(kind, name, {}).key)
    body: Mapping[str, Any] = {"subjects": [f"user:{visit.user}"], "delivery": "http"}
    if found is not None and _is_own(visit, found.body.get("subjects", ())):
        body = found.body
    chosen = [*body.get("controls", ()), *body.get("notify", ())]
    values = {
        it: ", ".join(map(str, held)) if isinstance(held, list) else str(held)
        for it, held in body.items()
    }
    return _make_form(visit, kind, name, values, chosen)


def _make_form(
    visit: Visit, kind: str, name: str, values: Mapping[str, str], chosen: Sequence[str]
) -> RegistrationForm:
    return RegistrationForm(
        kind=kind,
        name=name,
        values=values,
        chosen=chosen,
        controls=[
            OfferedControl(name=key, about=_tell_control(it))
            for key, it in sorted(visit.definitions.of(kinds.Control).items())
        ],
        administers=visit.administers,
    )


def _tell_control(it: kinds.Control) -> str:
    what = f"a choice about {', '.join(it.purposes) or 'its services'}" if it.stateful else ""
    return what or f"a request to {it.operation if it.operation != 'other' else 'act'}"


def _words(text: str) -> list[str]:
    return [it.strip() for it in text.split(",") if it.strip()]


def _read(form: FormData) -> Document:
    kind, name = form.text("kind", 32), form.text("name", 256)
    if kind not in {SUBSCRIBER, PUBLISHER}:
        raise UsageError(f"{quote(kind)} cannot be registered here", fix="go back to the list")
    body: dict[str, Any] = {"subjects": _words(form.text("subjects", 4_000))}
    if kind == PUBLISHER:
        body["controls"] = form.all("controls")
        notify, endpoint = form.all("notify"), form.text("endpoint", 2_000)
        body |= {"notify": notify} if notify else {}
        return Document(kind, name, body | ({"endpoint": endpoint} if endpoint else {}))
    delivery = form.text("delivery", 16)
    body |= {"control": form.text("control", 256), "delivery": delivery}
    for field in _TEXTS:
        if given := form.text(field, 2_000):
            body[field] = given
    if categories := _words(form.text("categories", 4_000)):
        body["categories"] = categories
    for field in _NUMBERS:
        if given := form.text(field, 6):
            body[field] = int(given) if given.isascii() and given.isdigit() else given
    if delivery == BUILT_IN:
        raise UsageError("what is built in is not registered", fix="choose another delivery")
    return Document(kind, name, body)


@ROOM.action("/services/register")
def register(visit: Visitor, form: Form) -> Again | Done:
    """Ask for a service or a front end; who administers reviews and applies it."""
    try:
        wanted = _read(form)
        if not wanted.name:
            raise UsageError("it has no name", fix="give it one, such as crm")
        _check_free(visit, wanted)
        visit.definitions.change([wanted], ())
    except PenstockError as error:
        return _show_again(visit, form, error)
    why = form.text("why", 500)
    if visit.administers:
        return show_review(visit, Draft(write_yaml([wanted]), (), why))
    identity = visit.desk.registrations.propose(visit.user, wanted, why)
    visit.desk.record("registered", visit.user, request=identity)
    return Done("/services", f"{wanted.name} waits for the data officer.")


def _check_free(visit: Visit, wanted: Document) -> None:
    """Refuse a name that others act for."""
    found = visit.desk.current()[0].documents.get(wanted.key)
    if found is None or visit.administers or _is_own(visit, found.body.get("subjects", ())):
        return
    raise UsageError(f"the name {quote(wanted.name)} is taken", fix="choose another")


def _show_again(visit: Visit, form: FormData, error: PenstockError) -> Again:
    found = (
        [{"place": it.place, "message": it.message, "fix": it.fix or ""} for it in error.problems]
        if isinstance(error, InvalidError)
        else [{"place": "", "message": error.message, "fix": error.fix or ""}]
    )
    kind = PUBLISHER if form.get("kind") == PUBLISHER else SUBSCRIBER
    chosen = [*form.all("controls"), *form.all("notify")]
    made = _make_form(visit, kind, form.get("name", ""), dict(form), chosen)
    made = made.model_copy(update={"problems": found[:20], "why": form.get("why", "")})
    return Again("services/register.html", "Register", made)


@ROOM.action("/services/withdraw")
def withdraw(visit: Visitor, form: Form) -> Done:
    """Take back what one asked for."""
    book, identity = visit.desk.registrations, form.text("id", 32)
    found = book.find(identity)
    if found is None or found.user != visit.user:
        raise DeniedError("there is no such registration of yours", fix="look at the list again")
    done = book.decide(identity, RegistrationStatus.WITHDRAWN, visit.user)
    return Done("/services", "It is withdrawn." if done else "It was decided already.")


# --- one's own ---


@ROOM.page("/services/one", "Service", "services/one.html", hidden=True)
def show_service(visit: Visitor, name: Name) -> OwnServicePage:
    """Show what a service of one's own has to do: what is due first."""
    return _show_own(visit, name)


def _show_own(visit: Visit, name: str, *, key: bool = False) -> OwnServicePage:
    broker = visit.desk.privacy()
    service = broker.require_subscriber(visit.user, name)
    found = broker.book.parts([*OPEN, *LOST], _LISTED + 1, subscriber=name)
    secret = visit.desk.config.consent.key.read() if key else b""
    return OwnServicePage(
        name=name,
        control=service.control,
        delivery=service.delivery,
        uri=service.uri,
        rows=[tell_part(it) for it in found[:_LISTED]],
        more=len(found) > _LISTED,
        key=derive_key(secret, name).hex() if key else "",
    )


@ROOM.action("/services/key")
def show_key(visit: Visitor, form: Form) -> Again:
    """Show the key that calls to a service of one's own are signed with."""
    made = _show_own(visit, form.text("name", 256), key=True)
    visit.desk.record("key", visit.user)
    return Again("services/one.html", made.name, made, status=200)


@ROOM.action("/services/answer")
def answer(visit: Visitor, form: Form) -> Done:
    """Say for a service that it knows of a request, or has done its part."""
    request, name, what = form.text("request", 32), form.text("name", 256), form.text("what", 16)
    broker = visit.desk.privacy()
    if what == "complete":
        broker.complete(visit.user, request, name)
    elif what == "acknowledge":
        broker.acknowledge(visit.user, request, name)
    else:
        raise UsageError(f"{quote(what)} is nothing that a service says", fix="press a button")
    return Done(f"/services/one?name={encode(name, safe='')}", "It is noted.")


@ROOM.page("/services/front", "Front end", "services/front.html", hidden=True)
def show_front(visit: Visitor, name: Name) -> OwnFrontPage:
    """Show what was handed in by a front end of one's own."""
    inquiries = visit.desk.inquiries()
    found = inquiries.list_own(visit.user, name, limit=_LISTED)
    publisher = visit.definitions.get(kinds.ControlPublisher, name)
    return OwnFrontPage(
        name=name,
        controls=publisher.controls if publisher is not None else (),
        rows=[
            FrontRequestRow(
                id=it.id,
                at=it.at.isoformat(),
                control=it.control,
                action=it.action,
                status=it.status.value,
                services=it.services,
                done=it.done,
            )
            for it in found
        ],
        address=f"{visit.desk.config.console.address}/choices",
        framed_by=visit.desk.config.console.framed_by,
    )
