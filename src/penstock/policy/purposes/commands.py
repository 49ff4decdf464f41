"""Commands in topics: what a client asks of the gateway itself, as typed values.

    PUBLISH    !RESERVE/<filter>{aip,…|pip,…}     !AIP/<topic>{aip,…|pip,…}
               !ADVERTISE/<filter>  seconds       !ADVERTISE/<filter>{}
               !DEFINE/<stream>  its type, as JSON
               !PBAC/PRESUB/<client>/<filter>{ap} !PBAC/SET/<setting>  true|false
               !PBAC/CLEAR  RESET  PERSIST  RELOAD  TREE
               !PBAC/CRES/<topic>  !PBAC/ARES/<filter>
    SUBSCRIBE  !AP/<filter>{ap}  !AP/<filter>{ap|content}  !AP/<filter>{|content}
                                                  UNSUBSCRIBE the same

MQTT 5 clients can use user properties instead: `purpose-ap`, `purpose-aip`, `purpose-pip`,
`content-filter`.

Rules that hold here:
- Reading a command changes nothing; what is malformed raises a `CommandError` that quotes
  it. All that comes out is checked: filters, topics, purposes, settings.
- A content filter is an expression, and is not looked into here. In a topic `%` begins the code
  of a character that cannot stand there: `%2B` is `+`, `%23` `#`, `%7B` `{`, `%7D` `}`, `%25` `%`.
- Ordinary topics cost one look at their beginning (`Notation.is_command`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from penstock.errors import PenstockError, UsageError, quote
from penstock.json_text import read_object
from penstock.model.kinds.fields import plain_filter
from penstock.model.purposes import PurposeSet
from penstock.model.topics import (
    SubscribedFilter,
    check_filter,
    check_topic,
    parse_subscribed,
)
from penstock.policy.purposes.settings import Notation, check_setting

DEFAULT_NOTATION = Notation()
CONTENT_PROPERTY = "content-filter"
ALLOWED: Final = ("from", "fields", "subject", "time", "conform", "description")
"""What a client says of a type."""
SIZE: Final = 65_536
"""Bytes of a definition."""


_SECONDS: Final = re.compile(rb"[1-9][0-9]{0,8}")
_NO_CODE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


class CommandError(PenstockError):
    """A topic or filter that begins like a command is none."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """Reserve a filter; None removes its reservation."""

    filter: str
    purposes: PurposeSet | None


@dataclass(frozen=True, slots=True)
class Advertise:
    """Say that one will publish below a filter; with `ends`: no longer."""

    filter: str
    seconds: int | None = None
    """For how long; None: as long as the connection lasts."""
    ends: bool = False


@dataclass(frozen=True, slots=True)
class DefineType:
    """Define the type of the messages of some topics, or extend it."""

    stream: str
    body: Mapping[str, Any]
    filters: tuple[str, ...]
    """The topics of its messages."""


@dataclass(frozen=True, slots=True)
class Presubscribe:
    """Store the purpose of a client's plain subscriptions; None removes it."""

    client: str
    filter: str
    ap: str | None


@dataclass(frozen=True, slots=True)
class SetSetting:
    """Change a setting."""

    name: str
    value: bool


@dataclass(frozen=True, slots=True)
class Clear:
    """Remove all reservations and presubscriptions, and end all subscriptions for purposes."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Clear, with the settings as they are set in force."""


@dataclass(frozen=True, slots=True)
class Persist:
    """Keep the state as it is now."""


@dataclass(frozen=True, slots=True)
class Reload:
    """Go back to the state that was kept."""


@dataclass(frozen=True, slots=True)
class ShowTree:
    """Answer with a drawing of the reservations."""


@dataclass(frozen=True, slots=True)
class ShowCombined:
    """Answer with the effective purposes of a topic."""

    topic: str


@dataclass(frozen=True, slots=True)
class ShowAffected:
    """Answer with the reservations that apply to topics of a filter."""

    filter: str


@dataclass(frozen=True, slots=True)
class SendFor:
    """Publish the payload to a topic, for these purposes only: a message, not a command."""

    topic: str
    purposes: PurposeSet


Command = (
    Reserve
    | Advertise
    | DefineType
    | Presubscribe
    | SetSetting
    | Clear
    | Reset
    | Persist
    | Reload
    | ShowTree
    | ShowCombined
    | ShowAffected
)


@dataclass(frozen=True, slots=True)
class PurposedFilter:
    """What a SUBSCRIBE or UNSUBSCRIBE names, and the purpose if it gives one."""

    subscribed: SubscribedFilter
    ap: str | None
    content: str | None = None
    """What events it is for, an expression; None: all."""
    answers: bool = False
    """Whether it is about answers to questions, on the topics of the questions."""


def parse_publish(
    topic: str, payload: bytes, notation: Notation = DEFAULT_NOTATION
) -> Command | SendFor:
    """Read the topic of a PUBLISH for which `notation.is_command` holds."""
    try:
        return _read_publish(topic, payload, notation)
    except PenstockError as error:
        raise _blame(topic, error) from None


def parse_subscribe(
    text: str, notation: Notation = DEFAULT_NOTATION, *, answers: bool = False
) -> PurposedFilter:
    """Read a filter of a SUBSCRIBE or UNSUBSCRIBE, with or without purpose.

    With `answers` it may be the topic of questions, wildcards included.
    """
    if not notation.is_command(text):
        return PurposedFilter(parse_subscribed(text), None)
    try:
        if answers and notation.is_question(text):
            return PurposedFilter(parse_subscribed(text), None, answers=True)
        return _read_subscribe(text, notation)
    except PenstockError as error:
        raise _blame(text, error) from None


def _read_publish(topic: str, payload: bytes, notation: Notation) -> Command | SendFor:
    keyword, slash, rest = topic[len(notation.prefix) :].partition("/")
    if slash and keyword == notation.reserve:
        path, inside = notation.split_marked(rest)
        return Reserve(check_filter(notation.read_filter(path)), notation.read_set(inside))
    if slash and keyword == notation.advertise:
        return _read_advertisement(rest, payload, notation)
    if slash and keyword == notation.define:
        return DefineType(rest, *read_type(rest, payload))
    if slash and keyword == notation.intended:
        return _read_send(rest, notation)
    if slash and keyword == notation.administer:
        return _read_administration(rest, payload, notation)
    raise CommandError(
        f"there is no command {quote(notation.prefix + keyword)}",
        fix=f"topics that begin with {quote(notation.prefix)} are commands; choose another topic",
    )


def _read_advertisement(rest: str, payload: bytes, notation: Notation) -> Advertise:
    withdrawn = notation.opening + notation.closing
    if rest.endswith(withdrawn):
        path = rest.removesuffix(withdrawn)
        return Advertise(check_filter(notation.read_filter(path)), ends=True)
    filter_ = check_filter(notation.read_filter(rest))
    if not payload:
        return Advertise(filter_)
    if not _SECONDS.fullmatch(payload):
        raise CommandError(
            "the payload is not a number of seconds",
            fix="send a number from 1 on, or nothing: until the connection ends",
        )
    return Advertise(filter_, int(payload))


def _read_send(rest: str, notation: Notation) -> SendFor:
    topic, inside = notation.split_marked(rest)
    purposes = notation.read_set(inside)
    if purposes is None:
        raise CommandError("no purposes are given", fix="name them, or publish to the topic itself")
    if notation.is_command(topic):
        raise CommandError(
            f"{quote(topic)} is a command itself", fix="give purposes to messages only"
        )
    return SendFor(check_topic(topic), purposes)


def _read_administration(rest: str, payload: bytes, notation: Notation) -> Command:
    verb, slash, subject = rest.partition("/")
    if not slash:
        simple: dict[str, Command] = {
            notation.clear: Clear(),
            notation.reset: Reset(),
            notation.persist: Persist(),
            notation.reload: Reload(),
            notation.tree: ShowTree(),
        }
        if verb in simple:
            return simple[verb]
    elif verb == notation.presubscribe:
        return _read_presubscribe(subject, notation)
    elif verb == notation.setting:
        return SetSetting(check_setting(subject), _read_flag(payload))
    elif verb == notation.combined:
        return ShowCombined(check_topic(subject))
    elif verb == notation.affected:
        return ShowAffected(check_filter(notation.read_filter(subject)))
    raise CommandError(
        f"there is no command {quote(rest)} under {notation.prefix}{notation.administer}",
        fix="see the reference of purpose commands",
    )


def _read_presubscribe(subject: str, notation: Notation) -> Presubscribe:
    path, inside = notation.split_marked(subject)
    client, slash, filter_ = path.partition("/")
    if not client or not slash:
        raise CommandError(
            "a client id and a filter are needed",
            fix=f"write {notation.presubscribe}/<client>/<filter>{notation.opening}purpose"
            f"{notation.closing}",
        )
    subscribed = parse_subscribed(notation.read_filter(filter_))
    return Presubscribe(client, subscribed.text, notation.read_purpose(inside) if inside else None)


def _read_flag(payload: bytes) -> bool:
    if payload not in (b"true", b"false"):
        raise CommandError("the payload is neither true nor false", fix="send true or false")
    return payload == b"true"


def _read_subscribe(text: str, notation: Notation) -> PurposedFilter:
    keyword, slash, rest = text[len(notation.prefix) :].partition("/")
    if not slash or keyword != notation.access:
        raise CommandError(
            f"nobody can subscribe to {quote(notation.prefix + keyword)}",
            fix=f"write {notation.prefix}{notation.access}/<filter>{notation.opening}purpose"
            f"{notation.closing}, or a filter that does not begin with {quote(notation.prefix)}",
        )
    path, inside = notation.split_marked(rest)
    filter_ = notation.read_filter(path)
    if notation.is_command(filter_):
        raise CommandError(f"{quote(filter_)} is a command", fix="subscribe to messages only")
    purpose, divider, content = inside.partition(notation.divider)
    return PurposedFilter(
        parse_subscribed(filter_),
        notation.read_purpose(purpose) if purpose or not divider else None,
        _read_content(content) if divider else None,
    )


def _read_content(written: str) -> str:
    """Read a content filter out of a topic, where some characters cannot stand."""
    wrong = _NO_CODE.search(written)
    if wrong is not None:
        raise CommandError(
            f"{quote(written[wrong.start() : wrong.start() + 3])} is not a code of a character",
            fix="write % as %25",
        )
    try:
        text = unquote(written, errors="strict")
    except UnicodeDecodeError:
        raise CommandError(
            "the codes in it are not UTF-8", fix="encode the text in UTF-8"
        ) from None
    if not text.strip():
        raise CommandError("the content filter is empty", fix="write an expression, or leave | out")
    return text


def _blame(text: str, error: PenstockError) -> CommandError:
    return CommandError(f"command {quote(text)}: {error.message}", fix=error.fix)


def read_type(name: str, payload: bytes) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Read what a client says of a type; return it with the filters of its topics."""
    if len(payload) > SIZE:
        raise UsageError(f"a type has at most {SIZE} bytes", fix="define several")
    body = read_object(payload)
    if body is None:
        raise UsageError(
            "the payload is not a JSON object",
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
