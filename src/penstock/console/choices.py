"""One person's choices, as a page that a front end embeds: no session, no cookie, one sealed link.

    front end ─▶ API: link for a person ─▶ <iframe src="…/choices?link=…"> ─▶ see, choose, ask
                                                     └▶ broker, in the front end's name

Rules that hold here:
- The link says whom it is about, sealed: nobody can make or change one, or read it out of a log.
  It is good for minutes, and only while who made it acts for the front end.
- There is nothing else that a browser sends by itself, so no other page can choose for somebody:
  a form carries the link, and comes from this origin.
- Only origins that the settings name may frame it. Where there are none it can be opened, and
  framed by nobody.
- What is chosen goes through the broker as the front end's own submissions do. One person may
  choose so often; a form that is sent twice counts once.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Sequence
from hashlib import sha256
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import FastAPI, Query, Request
from starlette.responses import RedirectResponse, Response

from penstock.console.desk import Desk
from penstock.console.rendering import Renderer
from penstock.console.rooms import Form, PageData
from penstock.errors import UsageError
from penstock.model import kinds
from penstock.rights.broker import ChoiceLink, PrivacyBroker, Submission
from penstock.server.callers import RateLimit, TooManyError

PATH: Final = "/choices"
_PER_SECOND: Final = 0.1
_AT_ONCE: Final = 30.0
_SHOWN: Final = 10

Link = Annotated[str, Query(max_length=4_000, description="What the front end was given.")]


class ChoiceRow(PageData):
    """What holds of a control, or of one of its categories."""

    control: str
    category: str
    about: str
    allowed: bool


class AskRow(PageData):
    """Something that can be asked for."""

    control: str
    about: str
    operation: str


class MadeRow(PageData):
    """What was chosen or asked for, and how far it is."""

    at: str
    control: str
    action: str
    categories: Sequence[str]
    status: str
    services: int
    done: int


class ChoicesPage(PageData):
    """One person's choices at one front end."""

    publisher: str
    choices: Sequence[ChoiceRow]
    asks: Sequence[AskRow]
    made: Sequence[MadeRow]
    ends: str
    key: str
    """Names what is sent next: the same key again is the same request."""


class Choices:
    """Shows people what they chose, and takes what they choose."""

    def __init__(self, desk: Desk, renderer: Renderer) -> None:
        self._desk = desk
        self._renderer = renderer
        self._lock = threading.Lock()
        self._rate = RateLimit(_PER_SECOND, _AT_ONCE)

    def add_routes(self, app: FastAPI) -> None:
        """Add the page, its twin, and its form."""
        app.get(PATH, include_in_schema=False)(self.show)
        app.get(
            f"{PATH}.json",
            operation_id="choices",
            summary="One person's choices",
            tags=["Choices"],
            response_model=ChoicesPage,
        )(self.answer)
        app.post(PATH, include_in_schema=False)(self.choose)

    def show(self, request: Request, link: Link = "", done: bool = False) -> Response:  # noqa: FBT001, FBT002 - the query's word
        """Show the page."""
        broker = self._desk.privacy()
        data = self._load(broker, broker.open_link(link))
        return self._renderer.plain(
            request, "choices.html", "Your choices", data=data, link=link, done=done
        )

    def answer(self, link: Link = "") -> ChoicesPage:
        """Say what holds for the person of a link, what they can ask for, and what they asked."""
        broker = self._desk.privacy()
        return self._load(broker, broker.open_link(link))

    def choose(self, form: Form) -> Response:
        """Take a choice or a request in."""
        shown = form.get("link", "")
        broker = self._desk.privacy()
        link = broker.open_link(shown)
        category = form.text("category", 256)
        self._spend(link)
        broker.submit(
            link.user,
            [
                Submission(
                    link.publisher,
                    _make_key(link, form.text("key", 32)),
                    form.text("control", 256),
                    form.text("action", 16),
                    link.subject,
                    (category,) if category else (),
                )
            ],
        )
        return RedirectResponse(f"{PATH}?done=1&link={shown}", HTTPStatus.SEE_OTHER)

    def _spend(self, link: ChoiceLink) -> None:
        """Count what one person does: services are told of each choice."""
        mark = sha256(f"{link.publisher}\0{link.subject}".encode()).hexdigest()
        with self._lock:
            wait = self._rate.wait_for(mark)
        if wait:
            raise TooManyError("you have chosen very often just now", wait)

    def _load(self, broker: PrivacyBroker, link: ChoiceLink) -> ChoicesPage:
        inquiries, known = self._desk.inquiries(), broker.definitions
        controls = {
            name: it
            for name in known.of(kinds.ControlPublisher)[link.publisher].controls
            if (it := known.get(kinds.Control, name)) is not None
        }
        states = inquiries.states_for_publisher(link.user, link.publisher, link.subject)
        found = broker.book.newest(limit=_SHOWN, publisher=link.publisher, subject=link.subject)
        return ChoicesPage(
            publisher=link.publisher,
            choices=[
                ChoiceRow(
                    control=it.control,
                    category=it.category,
                    about=controls[it.control].description,
                    allowed=it.state == "opt-in",
                )
                for it in states
                if _has_effect(broker, controls[it.control], it.category)
            ],
            asks=[
                AskRow(control=name, about=it.description, operation=it.operation)
                for name, it in controls.items()
                if not it.stateful and broker.has_effect(it)
            ],
            made=[
                MadeRow(
                    at=row.at.isoformat(),
                    control=row.control,
                    action=row.action,
                    categories=json.loads(row.categories),
                    status=row.status,
                    services=services,
                    done=done,
                )
                for row, services, done in found
            ],
            ends=link.end.isoformat(),
            key=uuid.uuid4().hex,
        )


def _has_effect(broker: PrivacyBroker, control: kinds.Control, category: str) -> bool:
    return broker.has_effect(control, (category,) if category else ())


def _make_key(link: ChoiceLink, given: str) -> str:
    """Return the key of a request: nobody can name that of another person's."""
    if len(given) != len(uuid.UUID(int=0).hex) or not given.isalnum():
        raise UsageError("the form is not whole", fix="load the page anew, and choose again")
    return sha256(f"{link.subject}\0{given}".encode()).hexdigest()[:40]
