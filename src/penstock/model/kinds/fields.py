"""Texts that several kinds share, each with its check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, Field

from penstock.errors import PenstockError
from penstock.model.definition import NAME_LIMIT, Reference
from penstock.model.purposes import check_purpose
from penstock.model.topics import check_filter


def as_value_error(check: Callable[[str], str]) -> Callable[[str], str]:
    """Let pydantic collect the error: it takes ValueErrors, ours carry the fix in the text."""

    def run(text: str) -> str:
        try:
            return check(text)
        except PenstockError as error:
            raise ValueError(str(error)) from None

    return run


def _check_subject(text: str) -> str:
    noun, colon, name = text.partition(":")
    if text != "anyone" and (noun not in {"user", "client", "group"} or not colon or not name):
        raise ValueError("write user:NAME, client:ID, group:NAME or anyone")
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

Subject = Annotated[
    str,
    Field(max_length=NAME_LIMIT),
    AfterValidator(_check_subject),
    Reference("group", prefix="group:"),
]
"""Who: user:NAME, client:ID, group:NAME or anyone."""

Member = Annotated[str, Field(max_length=NAME_LIMIT), AfterValidator(_check_member)]
"""Who belongs to a group: user:NAME or client:ID."""
