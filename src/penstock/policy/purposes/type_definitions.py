"""Event types that clients define: who may, and what may be done to one that is there.

    PUBLISH !DEFINE/ward-vitals  {from, fields}  ──▶ right to define it? ──▶ new, or an extension?
                                                      └──▶ checked with all definitions ──▶ stored

Rules that hold here:
- A right to define names streams and the topics below which their messages come. Both must cover
  what is defined: the name is that of a topic of the event log, where others may have rights.
- What a type that is there says stays: its fields, who it is about, where its records come from.
  By command it gets further topics and optional fields, and loses nothing: whoever made a field
  sensitive, or named the data subject, is not overruled by who may define. A message is read by
  the first pattern that fits, and a field that some pattern fills is filled by no payload: so
  further patterns come behind, and fill no field that none filled before.
- Topics have one type, as far as clients say: a second one could ask for fields that nobody sends,
  turn attributes that others filter by into something else, or keep records that no erasure finds.
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
from penstock.model.kinds.fields import named_levels, plain_filter
from penstock.model.topics import check_filter, covers, overlaps

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
    if after.patterns[: len(before.patterns)] != before.patterns:
        raise _stays("what stands under `from`, in its order and before what is new,")
    filled = _levels(after.patterns) - _levels(before.patterns)
    taken = sorted(filled & known)
    if taken:
        raise _stays(f"that no topic fills the field {taken[0]!r}")
    free = {"fields", "patterns", "description"}
    for name in Stream.model_fields:
        if name not in free and getattr(before, name) != getattr(after, name):
            raise _stays(f"what it says under `{name}`")


def check_topics(
    name: str, filters: Iterable[str], stored: Mapping[str, Mapping[str, Any]]
) -> None:
    """Refuse new topics that feed another type; `stored` has all streams by their names."""
    held = {plain_filter(it) for it in stored.get(name, {}).get("from", ())}
    new = [it for it in filters if it not in held]
    taken = (
        overlaps(plain_filter(pattern), it)
        for other, body in stored.items()
        if other != name
        for pattern in body.get("from", ())
        for it in new
    )
    if any(taken):
        raise UsageError(
            "messages on these topics are of another type already",
            fix="name other topics, or ask whoever applies definitions",
        )


def _levels(patterns: Iterable[str]) -> set[str]:
    """Return the fields that levels of topics fill."""
    return {name for it in patterns for name in named_levels(it).values()}


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
