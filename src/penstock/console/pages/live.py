"""Live: what passes on a topic, as the gateway delivers it to the very person who looks.

    /live?filter=…        ──▶ a tail: the gateway decides ──▶ the newest messages
    /live/view?name=…     ──▶ a role of the view? ──▶ a sample of what it published last

Rules that hold here:
- Everybody who is signed in may ask; the gateway decides, message by message.
- That somebody looks is in the audit log, with a pseudonym of the filter: filters name people.
- Who was led here by a page of others follows nothing before they say so: to look is recorded.
- A page shows the newest messages only, once a second, however many pass.
- A view is shown to who has one of its roles, as `penstock views read` does, and to nobody where
  it names none. That somebody looks is in the audit log, and so is who was refused. Who does not
  see the room of views does not learn which there are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Annotated, Any, Final

from fastapi import Query

from penstock.console.access import HiddenError, MissingError
from penstock.console.desk import Visit, Visitor
from penstock.console.rooms import PageData, Room
from penstock.console.tails import PAYLOAD_LIMIT, SeenMessage
from penstock.errors import UsageError, quote
from penstock.model import kinds
from penstock.model.topics import TopicError, check_filter
from penstock.store.audit.entry import Outcome

ROOM: Final = Room(
    "live",
    "Live",
    order=35,
    help="how-to/use-the-console",
    icon="M5 9v6M9 5v14M13 8v8M17 4v16M21 10v4",
    needs=False,
    about="What passes on a topic, as you may see it.",
)
_SHOWN: Final = 50
_READ_SECONDS: Final = 1.0
_RECORD_SECONDS: Final = 300.0
_SHARED: Final = "$share/"
_INDENTED: Final = 4 * PAYLOAD_LIMIT
"""Characters of an indented payload: nested deeply, a short one would become a long one."""


class LiveMessage(PageData):
    """One message."""

    number: int
    at: float
    topic: str
    text: str
    """The payload; JSON is indented. Empty: it is not text."""
    size: int
    cut: bool
    retained: bool


class LivePage(PageData):
    """The newest messages of a filter."""

    filter: str
    purpose: str
    contains: str
    purposes: Sequence[str]
    views: Sequence[str]
    """Views that you may read, while nothing is followed."""
    state: str
    trouble: str
    count: int
    """How many were delivered since one looks."""
    messages: Sequence[LiveMessage]


@ROOM.page("/live", "Live", "live/page.html", live="live/messages.html", every=1.0)
def show(
    visit: Visitor,
    filter: Annotated[str, Query(max_length=1_000)] = "",  # noqa: A002 - the word of the field
    purpose: Annotated[str, Query(max_length=256)] = "",
    contains: Annotated[str, Query(max_length=200)] = "",
) -> LivePage:
    """Show the newest messages that the gateway delivers to you."""
    purposes = sorted(visit.definitions.of(kinds.Purpose))
    made = LivePage(
        filter=filter,
        purpose=purpose,
        contains=contains,
        purposes=purposes,
        views=[] if filter else _list_readable(visit),
        state="idle",
        trouble="",
        count=0,
        messages=[],
    )
    if not filter or visit.led_here:
        return made
    try:
        check_filter(filter)
    except TopicError as error:
        raise UsageError(error.message, fix=error.fix) from None
    if filter.startswith(_SHARED):
        message = "Live takes no part in shared subscriptions: others would miss what is seen here"
        raise UsageError(message, fix="name the filter behind the group")
    if visit.session is None:
        raise HiddenError("an access token reads no messages", fix="use `penstock tail`")
    tail, begun = visit.desk.tails.find(visit.session.digest, visit.user, filter, purpose)
    if begun:
        rule = visit.desk.people.rule(f"live/{filter}")
        details: dict[str, Any] = {"purpose": purpose} if purpose else {}
        visit.desk.record("live", visit.user, rule=rule, **details)
    found = tail.look()
    if contains:
        wanted = contains.casefold()
        found = [it for it in found if wanted in _text_of(it).casefold() or wanted in it.topic]
    return made.model_copy(
        update={
            "state": tail.state,
            "trouble": tail.trouble,
            "count": tail.count,
            "messages": [_tell(it) for it in found[:_SHOWN]],
        }
    )


class PublishedRecord(PageData):
    """One record of a view."""

    text: str
    cut: bool


class LiveViewPage(PageData):
    """A sample of what a view published last."""

    name: str
    stream: str
    contains: str
    elsewhere: bool
    """Whether its records stand in a topic at Kafka, which is not read here."""
    records: Sequence[PublishedRecord]


@ROOM.page(
    "/live/view", "Records of a view", "live/view.html",
    live="live/records.html", every=1.0, hidden=True,
)  # fmt: skip
def show_view(
    visit: Visitor,
    name: Annotated[str, Query(max_length=256)],
    contains: Annotated[str, Query(max_length=200)] = "",
) -> LiveViewPage:
    """Show what a view published last to who has one of its roles."""
    view = visit.definitions.of(kinds.View).get(name)
    if view is None:
        raise _hidden(name)
    if visit.session is None:
        raise HiddenError("an access token reads no records", fix="use `penstock views read`")
    stream = visit.definitions.of(kinds.Stream)[view.stream]
    elsewhere = view.format == "topic" and stream.source is not None
    texts: list[str] = []
    if not visit.led_here:
        _admit(visit, view)
        if not elsewhere:
            key = f"records/{name}"
            texts = visit.desk.remember(key, _READ_SECONDS, lambda: _read(visit, view))
    wanted = contains.casefold()
    return LiveViewPage(
        name=name,
        stream=view.stream,
        contains=contains,
        elsewhere=elsewhere,
        records=[
            PublishedRecord(text=it[:_INDENTED], cut=len(it) > _INDENTED)
            for it in texts
            if wanted in it.casefold()
        ],
    )


def _hidden(name: str) -> MissingError:
    """Return what those are told who learn of no view that is not theirs."""
    return MissingError(f"there is no view {quote(name)} for you", fix="ask who administers")


def _list_readable(visit: Visit) -> list[str]:
    """Return the views that somebody has a role of."""
    from penstock.kafka.acls import WantedAccess  # noqa: PLC0415 - few pages need Kafka

    views = visit.definitions.of(kinds.View)
    roles = WantedAccess(visit.definitions)
    held = roles.roles_named(visit.user)
    return sorted(name for name, it in views.items() if held and held & roles.reading_roles(it))


def _admit(visit: Visit, view: kinds.View) -> None:
    """Refuse who has no role of a view; once in a while it is recorded that somebody looks."""
    from penstock.kafka.acls import WantedAccess  # noqa: PLC0415 - few pages need Kafka

    roles = WantedAccess(visit.definitions)
    allowed = roles.reading_roles(view)
    admitted = bool(allowed & roles.roles_named(visit.user))
    outcome = Outcome.ALLOWED if admitted else Outcome.DENIED

    def record() -> bool:
        visit.desk.record("view", visit.user, outcome, view=view.name)
        return True

    visit.desk.remember(f"view/{visit.user}/{view.name}/{outcome}", _RECORD_SECONDS, record)
    if not admitted and not visit.sees("views"):
        raise _hidden(view.name)
    if not admitted:
        told = ", ".join(sorted(allowed))
        fix = f"its roles are {told}" if told else "no role may read it: name some in the view"
        raise HiddenError(f"you have no role of the view {quote(view.name)}", fix=fix)


def _read(visit: Visit, view: kinds.View) -> list[str]:
    """Return a sample of the newest records, each as text."""
    from penstock.eventlog import EventLog  # noqa: PLC0415 - with all formats of files
    from penstock.pipeline.control import Control  # noqa: PLC0415
    from penstock.pipeline.sinks.published import read_published, read_topic  # noqa: PLC0415

    settings = visit.desk.config.pipeline
    topic = EventLog(settings.event_log).topic(view.topic)
    published = chain(read_topic(topic), read_published(Control(settings.folder).view(view.name)))
    return [
        json.dumps(it, indent=2, ensure_ascii=False, default=str)
        for it in islice(published, _SHOWN)
    ]


def _text_of(message: SeenMessage) -> str:
    try:
        return message.payload.decode()
    except UnicodeDecodeError:
        return ""


def _indent(content: Any) -> str | None:
    """Return JSON as people read it; None where that is too long."""
    parts, size = [], 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(content):
        size += len(part)
        if size > _INDENTED:
            return None
        parts.append(part)
    return "".join(parts)


def _tell(message: SeenMessage) -> LiveMessage:
    text = _text_of(message)
    if text.lstrip().startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            text = _indent(json.loads(text)) or text
    return LiveMessage(
        number=message.number,
        at=message.at,
        topic=message.topic,
        text=text,
        size=message.size,
        cut=message.size > len(message.payload),
        retained=message.retained,
    )
