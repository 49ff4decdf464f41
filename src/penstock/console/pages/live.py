"""Live: what passes on a topic, as the gateway delivers it to the very person who looks.

Rules that hold here:
- Everybody who is signed in may ask; the gateway decides, message by message.
- That somebody looks is in the audit log, with a digest of the filter: filters name people.
- A page shows the newest messages only, once a second, however many pass.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Annotated, Any, Final

from fastapi import Query

from penstock.console.access import HiddenError
from penstock.console.desk import Visitor
from penstock.console.rooms import PageData, Room
from penstock.console.tails import SeenMessage
from penstock.errors import UsageError
from penstock.model import kinds
from penstock.model.topics import TopicError, check_filter

ROOM: Final = Room(
    "live",
    "Live",
    order=30,
    help="how-to/use-the-console",
    icon="M5 9v6M9 5v14M13 8v8M17 4v16M21 10v4",
    needs=False,
    about="What passes on a topic, as you may see it.",
)
_SHOWN: Final = 50


class LiveMessage(PageData):
    """One message."""

    number: int
    at: float
    topic: str
    text: str
    """The payload; JSON is indented. Empty: it is no text."""
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
    if not filter:
        return made
    try:
        check_filter(filter)
    except TopicError as error:
        raise UsageError(error.message, fix=error.fix) from None
    if visit.session is None:
        raise HiddenError("an access token reads no messages", fix="use `penstock tail`")
    tail, begun = visit.desk.tails.find(visit.session.digest, visit.user, filter, purpose)
    if begun:
        digest = sha256(filter.encode()).hexdigest()
        details: dict[str, Any] = {"purpose": purpose} if purpose else {}
        visit.desk.record("live", visit.user, digest=digest, **details)
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


def _tell(message: SeenMessage) -> LiveMessage:
    text = _text_of(message)
    if text.lstrip().startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return LiveMessage(
        number=message.number,
        at=message.at,
        topic=message.topic,
        text=text,
        size=message.size,
        cut=message.size > len(message.payload),
        retained=message.retained,
    )
