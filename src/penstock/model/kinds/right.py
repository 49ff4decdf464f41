"""Rights: who may give purpose commands."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from penstock.model.definition import Definition, register
from penstock.model.kinds.fields import Subject, TopicFilter

LIST_LIMIT = 10_000


@register
class Right(Definition):
    """Who may reserve topics, presubscribe others, and administer purposes."""

    kind: ClassVar[str] = "right"

    subjects: tuple[Subject, ...] = Field(
        min_length=1, max_length=LIST_LIMIT, strict=False, description="Who has this right."
    )
    reserve: tuple[TopicFilter, ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Filters below which these subjects may reserve topics.",
    )
    presubscribe: tuple[TopicFilter, ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Filters below which these subjects may set other clients' purposes.",
    )
    administer: bool = Field(
        default=False, description="Whether these subjects may change settings and clear state."
    )
