"""Groups of users and clients."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from penstock.model.definition import Concern, Definition, PlainName, Reference, register
from penstock.model.kinds.fields import Member

MEMBER_LIMIT = 100_000


@register
class Group(Definition):
    """Users and clients that policies and rights name together."""

    kind: ClassVar[str] = "group"
    concerns: ClassVar[Concern] = Concern.ACCESS | Concern.COMMANDS | Concern.EVENTS

    members: tuple[Member, ...] = Field(
        default=(), max_length=MEMBER_LIMIT, strict=False, description="user:NAME or client:ID."
    )
    includes: tuple[Annotated[PlainName, Reference("group", acyclic=True)], ...] = Field(
        default=(),
        max_length=MEMBER_LIMIT,
        strict=False,
        description="Groups whose members belong to this group too.",
    )
