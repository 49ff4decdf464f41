"""Topics and topic filters: what is well formed, what matches, overlaps and covers.

A topic is a `str` that `check_topic` let through, a filter one that `check_filter` let
through. Strict UTF-8 maps byte strings and code points one to one, so comparing texts is
comparing bytes: nothing is normalised, folded or trimmed.

Rules that hold here:
- A topic is 1 to 65,535 bytes of well-formed UTF-8 without NUL and without wildcards.
- In a filter `+` stands alone for one level (an empty one, too), and `#` stands alone and
  last for the level above it and everything below: `a/#` matches `a`.
- A filter that begins with a wildcard never matches a topic that begins with `$`.
- `$share/<group>/<filter>` names a shared subscription; only the inner filter matches.
- `overlaps` and `covers` count the empty topic, which nobody can publish to: `/#` and `+`
  share it. That keeps the rules plain and errs towards "these two may meet".
- `matches`, `overlaps` and `covers` expect checked texts; none of them recurses, so that
  thousands of levels are no danger.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import PenstockError, quote

TOPIC_LIMIT = 65_535
SHARE_PREFIX = "$share/"

_ONE = "+"
_REST = "#"


class TopicError(PenstockError):
    """A topic or a topic filter is not well formed."""


def decode_topic(data: bytes) -> str:
    """Decode the bytes of a topic or filter; the result still needs its own check."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TopicError(
            f"topic {quote(data.decode('utf-8', 'backslashreplace'))} is not UTF-8: "
            f"{error.reason} at byte {error.start}",
            fix="encode topics as UTF-8",
        ) from None


def check_topic(text: str) -> str:
    """Return the text if it is a topic that messages can be published to."""
    _check_text(text, "topic")
    if _ONE in text or _REST in text:
        raise TopicError(
            f"topic {quote(text)} contains a wildcard",
            fix="name one topic: `+` and `#` belong in filters",
        )
    return text


def check_filter(text: str) -> str:
    """Return the text if it is a topic filter (of a shared subscription: the inner one)."""
    _check_text(text, "filter")
    if _ONE not in text and _REST not in text:
        return text
    levels = text.split("/")
    last = len(levels) - 1
    for place, level in enumerate(levels):
        if _REST in level and (level != _REST or place != last):
            raise TopicError(
                f"filter {quote(text)} has '#' inside level {place + 1}, {quote(level)}"
                if level != _REST
                else f"filter {quote(text)} continues after '#'",
                fix="let '#' stand alone as the last level",
            )
        if _ONE in level and level != _ONE:
            raise TopicError(
                f"filter {quote(text)} has '+' inside level {place + 1}, {quote(level)}",
                fix="let '+' stand alone for a whole level",
            )
    return text


@dataclass(frozen=True, slots=True)
class SubscribedFilter:
    """What a SUBSCRIBE names: the filter that matches and, if shared, the group."""

    text: str
    filter: str
    group: str | None = None


def parse_subscribed(text: str) -> SubscribedFilter:
    """Check what a SUBSCRIBE or UNSUBSCRIBE names, `$share/<group>/<filter>` included."""
    if not text.startswith(SHARE_PREFIX):
        return SubscribedFilter(text, check_filter(text))
    _check_text(text, "filter")
    group, slash, inner = text[len(SHARE_PREFIX) :].partition("/")
    if not group or _ONE in group or _REST in group:
        raise TopicError(
            f"shared subscription {quote(text)} has the group name {quote(group)}",
            fix="name a group of at least one character without '+', '#' and '/'",
        )
    if not slash or not inner:
        raise TopicError(
            f"shared subscription {quote(text)} has no filter after the group",
            fix="write $share/<group>/<filter>",
        )
    return SubscribedFilter(text, check_filter(inner), group)


def matches(filter_: str, topic: str) -> bool:
    """Tell whether a message on the topic is meant by the filter."""
    if filter_ == topic:
        return True
    if topic.startswith("$") and filter_.startswith((_ONE, _REST)):
        return False
    wanted = filter_.split("/")
    given = topic.split("/")
    if wanted[-1] == _REST:
        wanted.pop()
        if len(given) < len(wanted):
            return False
    elif len(given) != len(wanted):
        return False
    for level, there in zip(wanted, given, strict=False):  # noqa: SIM110 - twice as fast
        if level not in (there, _ONE):
            return False
    return True


def overlaps(one: str, other: str) -> bool:
    """Tell whether some topic matches both filters."""
    if one == other:
        return True
    if _apart_by_dollar(one, other) or _apart_by_dollar(other, one):
        return False
    left = one.split("/")
    right = other.split("/")
    for mine, theirs in zip(left, right, strict=False):
        if _REST in (mine, theirs):
            return True
        if mine != theirs and _ONE not in (mine, theirs):
            return False
    longer, length = (left, len(right)) if len(left) > len(right) else (right, len(left))
    return len(left) == len(right) or longer[length:] == [_REST]


def covers(wide: str, narrow: str) -> bool:
    """Tell whether every topic that matches `narrow` matches `wide`."""
    if wide == narrow:
        return True
    if _apart_by_dollar(wide, narrow):
        return False
    outer = _levels_for_cover(wide)
    inner = _levels_for_cover(narrow)
    for mine, theirs in zip(outer, inner, strict=False):
        if mine == _REST:
            return True
        if theirs == _REST or mine not in (_ONE, theirs):
            return False
    return len(outer) == len(inner) or outer[len(inner) :] == [_REST]


def _levels_for_cover(filter_: str) -> list[str]:
    """Split into levels; a lone `#` is written `+/#`: every topic has a first level."""
    return [_ONE, _REST] if filter_ == _REST else filter_.split("/")


def _apart_by_dollar(one: str, other: str) -> bool:
    return one.startswith((_ONE, _REST)) and other.startswith("$")


def _check_text(text: str, noun: str) -> None:
    if not text:
        raise TopicError(f"{noun} '' is empty", fix=f"write a {noun} of at least one character")
    if "\0" in text:
        raise TopicError(f"{noun} {quote(text)} contains NUL", fix="leave U+0000 out")
    # The usual topic is ASCII and need not be encoded to be measured.
    if text.isascii():
        size = len(text)
    else:
        try:
            size = len(text.encode("utf-8"))
        except UnicodeEncodeError:
            raise TopicError(
                f"{noun} {quote(text)} contains a lone surrogate", fix="encode topics as UTF-8"
            ) from None
    if size > TOPIC_LIMIT:
        raise TopicError(
            f"{noun} {quote(text)} has {size} bytes", fix=f"use at most {TOPIC_LIMIT} bytes"
        )
