"""Users: who may be at the event log, with which roles."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from penstock.model.definition import Concern, Definition, PlainName, Reference, register
from penstock.model.kinds.role import ROLE_LIMIT


@register
class User(Definition):
    """Someone with roles. Passwords are kept elsewhere, never in definitions."""

    kind: ClassVar[str] = "user"
    concerns: ClassVar[Concern] = Concern.KAFKA

    roles: tuple[Annotated[PlainName, Reference("role")], ...] = Field(
        default=(), max_length=ROLE_LIMIT, strict=False, description="The roles of the user."
    )
