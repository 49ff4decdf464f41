"""Live: what passes on a topic, as the gateway delivers it to the very person who looks.

Rules that hold here:
- Everybody who is signed in may ask; the gateway decides, message by message.
- That somebody looks is in the audit log, with a pseudonym of the filter: filters name people.
- Who was led here by a page of others follows nothing before they say so: to look is recorded.
- A page shows the newest messages only, once a second, however many pass.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

from fastapi import Query

from penstock.console.access import HiddenError
from penstock.console.desk import Visitor
from penstock.console.rooms import PageData, Room
from penstock.console.tails import PAYLOAD_LIMIT, SeenMessage
from penstock.errors import UsageError
from penstock.model import kinds
from penstock.model.topics import TopicError, check_filter

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
