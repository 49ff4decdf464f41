"""Event types that clients define: who may, and what may be done to one that is there.

    PUBLISH !DEFINE/ward-vitals  {from, fields}  ──▶ right to define it? ──▶ new, or an extension?
                                                      └──▶ checked with all definitions ──▶ stored

Rules that hold here:
- A right to define names streams and the topics below which their messages come. Both must cover
  what is defined: the name is that of a topic of the event log, where others may have rights.
- What a type that is there says stays: its fields, who it is about, where its records come from.
  By command it gets further topics and optional fields, and loses nothing: whoever made a field
  sensitive, or named the data subject, is not overruled by who may define.
- How records are kept (`source`, `format`, `adds`, `erasure`, `tolerance`) is not for clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from penstock.errors import InvalidError, PenstockError, UsageError, quote
from penstock.json_text import read_object
from penstock.model.document import Document
from penstock.model.kinds import Stream
from penstock.model.kinds.fields import plain_filter
from penstock.model.topics import check_filter, covers

ALLOWED: Final = ("from", "fields", "subject", "time", "conform", "description")
"""What a client says of a type."""
SIZE: Final = 65_536
"""Bytes of a definition."""
TYPE_LIMIT: Final = 1_000
"""How many streams there may be whose names one grant covers, for another to be defined by it."""
_REST: Final = "*"
_SHOWN: Final = 3


class TypeGrant(NamedTuple):
    """Streams that somebody may define, and the filters below which their messages come."""

    stream: str
    """A name, or the beginning of names with `*` behind it."""
    below: tuple[str, ...]

    def names(self, stream: str) -> bool:
        """Tell whether it is about a stream."""
        if self.stream.endswith(_REST):
            return stream.startswith(self.stream.removesuffix(_REST))
        return stream == self.stream

    def admits(self, stream: str, filters: Iterable[str]) -> bool:
        """Tell whether a stream whose messages come from these topics may be defined."""
        return self.names(stream) and all(
            any(covers(there, it) for there in self.below) for it in filters
        )

    def __str__(self) -> str:
        return f"{self.stream} below {', '.join(self.below)}"


def read_type(name: str, payload: bytes) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Read what a client says of a type; return it with the filters of its topics."""
    if len(payload) > SIZE:
        raise UsageError(f"a type has at most {SIZE} bytes", fix="define several")
    body = read_object(payload)
    if body is None:
        raise UsageError(
            "the payload is no JSON object",
            fix='send the type: {"from": ["ward/+bed/vitals"], "fields": [{"name": "pulse", '
            '"type": "int"}]}',
        )
    strange = [it for it in body if it not in ALLOWED]
    if strange:
        raise UsageError(
            f"{quote(strange[0])} is not for clients to say", fix=f"say {', '.join(ALLOWED)}"
        )
    patterns = body.get("from")
    if not isinstance(patterns, list) or not patterns:
        raise UsageError(
            f"nothing says which messages are of the type {quote(name)}",
            fix='name their topics: "from": ["ward/+bed/vitals"]',
        )
    return body, tuple(check_filter(plain_filter(str(it))) for it in patterns)


def check_extension(held: Document | None, body: Mapping[str, Any]) -> None:
    """Refuse what a type that is there would lose, or would say otherwise."""
    if held is None:
        return
    before = Stream.model_validate({"name": held.name, **held.body})
    try:
        after = Stream.model_validate({"name": held.name, **body})
    except ValidationError:
        return  # the check of all definitions says what is wrong
    now = {it.name: it for it in after.fields}
    for field in before.fields:
        if now.get(field.name) != field:
            raise _stays(f"the field {field.name!r}")
    known = {it.name for it in before.fields}
    for field in after.fields:
        if field.name not in known and not field.optional:
            raise UsageError(
                f"the field {field.name!r} is new, and messages that are sent have it not",
                fix="make it optional",
            )
    if not set(before.patterns) <= set(after.patterns):
        raise _stays("each topic under `from`")
    free = {"fields", "patterns", "description"}
    for name in Stream.model_fields:
        if name not in free and getattr(before, name) != getattr(after, name):
            raise _stays(f"what it says under `{name}`")


def _stays(what: str) -> UsageError:
    return UsageError(
        f"the type is defined, and {what} stays as it is",
        fix="add topics and optional fields; for all else ask whoever applies definitions",
    )


def check_room(grants: Iterable[TypeGrant], name: str, streams: Iterable[str]) -> None:
    """Refuse one type too many."""
    there = list(streams)
    if name in there:
        return
    for grant in grants:
        if grant.names(name) and sum(map(grant.names, there)) < TYPE_LIMIT:
            return
    raise UsageError(
        f"there are {TYPE_LIMIT} streams whose names this right covers",
        fix="extend one of them, or ask whoever applies definitions",
    )


def explain_faults(name: str, error: InvalidError) -> PenstockError:
    """Say what is wrong with a type in one line; nothing of definitions of others."""
    place = f"stream/{name}"
    own = [it for it in error.problems if f"{it.place}.".startswith(f"{place}.")]
    told = [str(it) for it in own[:_SHOWN]] or ["it does not go with other definitions"]
    return UsageError("; ".join(told), fix="correct it, and define it again")
