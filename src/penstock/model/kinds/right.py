"""Rights: who may give purpose commands, turn tokens back, and set situations by hand."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from penstock.errors import quote
from penstock.model.definition import Concern, Definition, PlainName, Reference, register
from penstock.model.kinds.fields import Subject, TopicFilter

LIST_LIMIT = 10_000


@register
class Right(Definition):
    """Who may command purposes, turn tokens back, or start and end emergencies by hand."""

    kind: ClassVar[str] = "right"
    concerns: ClassVar[Concern] = Concern.COMMANDS

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
    break_glass: tuple[Annotated[PlainName, Reference("scenario")], ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Scenarios whose situations these users and groups may start and end by hand, "
        "and approve where a second person is needed.",
    )

    @model_validator(mode="after")
    def _check_people(self) -> Self:
        for name in ("detokenize", "break_glass"):
            for subject in self.subjects if getattr(self, name) else ():
                if not subject.startswith(("user:", "group:")):
                    raise ValueError(
                        f"{name} is for people who prove who they are, not for "
                        f"{quote(subject)} → name user:NAME or group:NAME"
                    )
        return self
