"""Views: anonymized versions of a stream, each for its audience."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from penstock.errors import quote
from penstock.model.definition import Concern, Definition, Part, PlainName, Reference, register
from penstock.model.kinds.fields import PurposePath
from penstock.model.kinds.stream import TopicName
from penstock.model.purposes import SET_LIMIT

ANONYMIZER_LIMIT: Final = 64
ROLE_LIMIT: Final = 1000
LONGEST: Final = 366 * 24 * 3600 * 1000
"""Milliseconds of the longest window: records wait in memory until theirs is over."""

OVERLAP: Final = 1000
"""The most windows that a record lies in, and so the most copies that are published of it."""

_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(rf"([0-9]{{1,12}})\s?({'|'.join(_UNITS)})?", re.ASCII)


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


Milliseconds = Annotated[int, Field(le=LONGEST), BeforeValidator(read_milliseconds)]


class Window(Part):
    """How records are put together by time."""

    size: Annotated[Milliseconds, Field(gt=0)] = Field(
        description="How long a window lasts, in milliseconds or such as `10s`."
    )
    advance: Annotated[Milliseconds, Field(gt=0)] | None = Field(
        default=None,
        description="How far apart windows begin; left out: as far as they last.",
    )
    grace: Annotated[Milliseconds, Field(ge=0)] = Field(
        default=0, description="How long a window waits for late records."
    )

    @model_validator(mode="after")
    def _check_advance(self) -> Self:
        if self.advance is not None and self.advance > self.size:
            raise ValueError(
                "advance is longer than size, so that records would fall between windows → "
                "make it at most as long"
            )
        if self.size > OVERLAP * (self.advance or self.size):
            raise ValueError(
                f"a record would lie in more than {OVERLAP} windows → make advance longer"
            )
        return self


@register
class View(Definition):
    """An anonymized version of a stream, for those with one of its roles."""

    kind: ClassVar[str] = "view"
    concerns: ClassVar[Concern] = Concern.KAFKA | Concern.VIEWS

    name: TopicName = Field(description="What the view is called; part of its topic's name.")
    stream: Annotated[PlainName, Reference("stream")] = Field(
        description="The stream that it is made of."
    )
    anonymizers: tuple[Mapping[str, JsonValue], ...] = Field(
        default=(),
        max_length=ANONYMIZER_LIMIT,
        strict=False,
        description="What is done to each record, in this order: "
        "`{anonymizer: NAME, keys: [FIELD], …}`. Empty: records pass as they are.",
    )
    window: Window | None = Field(
        default=None, description="How records are put together for anonymizers that need it."
    )
    format: Literal["parquet", "json", "csv", "avro", "delta", "console", "topic"] = Field(
        default="parquet",
        description="Where the view's records go. parquet, json, csv, avro: files in the view's "
        "folder. delta: a Delta table there. console: Parquet files, and each batch shown where "
        "views run. topic: the topic STREAM-VIEW of the event log, as JSON.",
    )
    roles: tuple[PlainName, ...] = Field(
        default=(), max_length=ROLE_LIMIT, strict=False, description="Who may read the view."
    )
    purposes: tuple[PurposePath, ...] = Field(
        default=(), max_length=SET_LIMIT, strict=False, description="What it may be used for."
    )

    @property
    def topic(self) -> str:
        """The topic that carries the view's records."""
        return f"{self.stream}-{self.name}"
