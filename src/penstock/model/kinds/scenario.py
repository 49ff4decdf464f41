"""Scenarios: whom a plan is followed for."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Self

from pydantic import Field, model_validator

from penstock.model.definition import (
    NAME_LIMIT,
    Concern,
    Definition,
    PlainName,
    Reference,
    register,
)
from penstock.model.kinds.event import Word

SUBJECT_LIMIT: Final = 1_000_000

SubjectName = Annotated[str, Field(min_length=1, max_length=NAME_LIMIT)]


@register
class Scenario(Definition):
    """A plan that is followed for each of its subjects, one situation at a time."""

    kind: ClassVar[str] = "scenario"
    concerns: ClassVar[Concern] = Concern.ACCESS | Concern.EVENTS | Concern.SETTINGS

    plan: Annotated[PlainName, Reference("plan")] = Field(description="How it may develop.")
    attribute: Word = Field(
        description="The attribute of the plan's events that tells whom they are about."
    )
    subjects: Annotated[tuple[SubjectName, ...], Field(strict=False)] | None = Field(
        default=None,
        description="Whom it is followed for. Left out: everyone an event is about.",
    )
    group: Annotated[PlainName, Reference("group")] | None = Field(
        default=None, description="Follow it for the users of this group instead of a list."
    )

    @model_validator(mode="after")
    def _check_subjects(self) -> Self:
        if self.group is not None and self.subjects is not None:
            raise ValueError("subjects and group are both given → keep one")
        if self.subjects is not None and len(self.subjects) > SUBJECT_LIMIT:
            raise ValueError(f"more than {SUBJECT_LIMIT} subjects → use a group, or leave them out")
        return self
