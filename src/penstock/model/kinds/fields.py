"""Texts that several kinds share, each with its check: durations, topic patterns, subjects, zones.

A topic pattern is a topic filter in which `+` may carry a name, such as
`home/+patientId/+/pulse`. No two levels of a pattern have one name; a lone `+` has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field

from penstock.errors import PenstockError, quote
from penstock.model.definition import NAME_LIMIT, Reference
from penstock.model.purposes import check_purpose
from penstock.model.role_terms import ROLE_PREFIX, parse_subject, parse_term
from penstock.model.time_zones import is_zone
from penstock.model.topics import SHARE_PREFIX, check_filter

LONGEST: Final = 366 * 24 * 3600 * 1000
"""Milliseconds of the longest duration: records wait in memory until their window is over."""

_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(rf"([0-9]{{1,12}})\s?({'|'.join(_UNITS)})?", re.ASCII)

AHEAD: Final = _UNITS["d"]
"""How far a clock of somebody else may be ahead where nothing is said: within it lie all the
time zones that a device can be set to by mistake."""


def read_milliseconds(value: Any) -> Any:
    """Return the milliseconds of a duration such as `10s`; a plain number has them already."""
    if not isinstance(value, str):
        return value
    found = _DURATION.fullmatch(value.strip())
    if found is None:
        raise ValueError(
            f"{quote(value)} is not a duration → "
            f"write milliseconds, or a number with a unit ({', '.join(_UNITS)}), such as 10s"
        )
    return int(found[1]) * _UNITS[found[2] or "ms"]


def write_duration(milliseconds: int) -> str:
    """Write a duration with the largest unit that it is a whole number of."""
    unit = next(name for name in reversed(_UNITS) if not milliseconds % _UNITS[name])
    return f"{milliseconds // _UNITS[unit]}{unit}"


Milliseconds = Annotated[int, Field(le=LONGEST), BeforeValidator(read_milliseconds)]


_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def as_value_error(check: Callable[[str], str]) -> Callable[[str], str]:
    """Let pydantic collect the error: it takes ValueErrors, ours carry the fix in the text."""

    def run(text: str) -> str:
        try:
            return check(text)
        except PenstockError as error:
            raise ValueError(str(error)) from None

    return run


def _check_known(text: str) -> str:
    noun, colon, name = text.partition(":")
    if text != "anyone" and (noun not in {"user", "client", "group"} or not colon or not name):
        raise ValueError("write user:NAME, client:ID, group:NAME or anyone")
    return text


def _check_granted(text: str) -> str:
    if text.startswith(ROLE_PREFIX):
        term = parse_term(text.removeprefix(ROLE_PREFIX))
        if term.variables:
            raise ValueError(
                f"{quote(term.variables[0])} is a variable, which only rules of roles have → "
                "write _ for anything, quoted text, or an attribute such as o.patientId"
            )
        return text
    noun, colon, name = text.partition(":")
    if text != "anyone" and (noun not in {"user", "client", "group"} or not colon or not name):
        raise ValueError("write user:NAME, client:ID, group:NAME, role:NAME or anyone")
    return text


def _check_subject(text: str) -> str:
    _check_granted(text)
    term = parse_subject(text)
    if term is not None and term.paths:
        raise ValueError(
            f"{quote(term.paths[0])} is an attribute of a message, and none is looked at here → "
            "write _ for anything, or quoted text"
        )
    return text


def _check_term(text: str) -> str:
    parse_term(text)
    return text


def _check_member(text: str) -> str:
    noun, colon, name = text.partition(":")
    if noun == "group" and name:
        raise ValueError(f"a group has users and clients → name {name!r} under `includes`")
    if noun not in {"user", "client"} or not colon or not name:
        raise ValueError("write user:NAME or client:ID")
    return text


TopicFilter = Annotated[str, Field(max_length=65535), AfterValidator(as_value_error(check_filter))]
"""An MQTT topic filter."""


def _check_broker_filter(text: str) -> str:
    if not text.startswith("$") or text.startswith(SHARE_PREFIX):
        raise ValueError(
            f"{quote(text)} means no topic of the broker's own → write one that begins with $, "
            "such as $SYS/#"
        )
    return text


BrokerFilter = Annotated[TopicFilter, AfterValidator(_check_broker_filter)]
"""A filter of the broker's own topics, which begin with `$`."""

FilterName = Annotated[
    str,
    Field(min_length=1, max_length=NAME_LIMIT),
    AfterValidator(as_value_error(check_filter)),
]
"""A topic filter that serves as a name."""

PurposePath = Annotated[
    str,
    AfterValidator(as_value_error(check_purpose)),
    Reference("purpose", when_declared=True),
]
"""A purpose; free words until the first purpose is declared, from then on declared ones only."""

SUBJECT_LIMIT: Final = 4096

KnownSubject = Annotated[
    str,
    Field(max_length=NAME_LIMIT),
    AfterValidator(_check_known),
    Reference("group", prefix="group:"),
]
"""Who: user:NAME, client:ID, group:NAME or anyone."""

Subject = Annotated[
    str,
    Field(max_length=SUBJECT_LIMIT),
    AfterValidator(_check_subject),
    Reference("group", prefix="group:"),
    Reference("role", prefix=ROLE_PREFIX, until="("),
]
"""Who: user:NAME, client:ID, group:NAME, role:NAME, role:NAME("VALUE", _) or anyone."""

GrantSubject = Annotated[
    str,
    Field(max_length=SUBJECT_LIMIT),
    AfterValidator(_check_granted),
    Reference("group", prefix="group:"),
    Reference("role", prefix=ROLE_PREFIX, until="("),
]
"""Who, also by what a message is about: role:NAME(_, o.patientId)."""

RoleText = Annotated[
    str,
    Field(min_length=1, max_length=SUBJECT_LIMIT),
    AfterValidator(_check_term),
    Reference("role", until="("),
]
"""A role with arguments: NAME(doctor, patient)."""

CredentialText = Annotated[
    str, Field(min_length=1, max_length=SUBJECT_LIMIT), AfterValidator(_check_term)
]
"""What an appointment says: NAME("VALUE", …)."""

Member = Annotated[str, Field(max_length=NAME_LIMIT), AfterValidator(_check_member)]
"""Who belongs to a group: user:NAME or client:ID."""


def plain_filter(pattern: str) -> str:
    """Return the topics of a pattern, as a filter without names."""
    return "/".join("+" if level.startswith("+") else level for level in pattern.split("/"))


def named_levels(pattern: str) -> Mapping[int, str]:
    """Return the names of a pattern's levels, by the place of the level."""
    return {
        place: level[1:]
        for place, level in enumerate(pattern.split("/"))
        if level.startswith("+") and level != "+"
    }


def _check_pattern(pattern: str) -> str:
    names = list(named_levels(pattern).values())
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{quote(name)} cannot name a level → use letters, digits and _")
        if names.count(name) > 1:
            raise ValueError(f"two levels are called {quote(name)} → rename one, or write `+`")
    as_value_error(check_filter)(plain_filter(pattern))
    return pattern


TopicPattern = Annotated[str, Field(max_length=65535), AfterValidator(_check_pattern)]
"""A topic filter whose levels may have names."""


def _check_zone(name: str) -> str:
    if not is_zone(name):
        raise ValueError("there is no such time zone → name one such as Europe/Rome, or UTC")
    return name


TimeZone = Annotated[str, Field(max_length=64), AfterValidator(_check_zone)]
"""A time zone of the IANA database."""
