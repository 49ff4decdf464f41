"""Rights: who may give purpose commands, and who may turn tokens back."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from penstock.errors import quote
from penstock.model.definition import Definition, PlainName, Reference, register
from penstock.model.kinds.fields import Subject, TopicFilter

LIST_LIMIT = 10_000


@register
class Right(Definition):
    """Who may reserve topics, presubscribe others, administer purposes, or turn tokens back."""

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
    detokenize: tuple[Annotated[PlainName, Reference("view")], ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Views whose tokens these users and groups may turn back into originals.",
    )

    @model_validator(mode="after")
    def _check_people(self) -> Self:
        if self.detokenize:
            for subject in self.subjects:
                if not subject.startswith(("user:", "group:")):
                    raise ValueError(
                        f"detokenize is for people who prove who they are, not for "
                        f"{quote(subject)} → name user:NAME or group:NAME"
                    )
        return self
