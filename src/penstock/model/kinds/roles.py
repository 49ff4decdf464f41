"""Roles: what may be read and written at the event log, put together under a name; who has them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from penstock.model.definition import Concern, Definition, Part, PlainName, Reference, register
from penstock.model.kinds.streams import TopicName

PERMISSION_LIMIT: Final = 10_000
ROLE_LIMIT: Final = 1000
TARGETS: Final = ("view", "stream", "topic", "prefix")

Access = Literal["read", "write"]


class Permission(Part):
    """Leave to read or write one thing: a view, a stream, a topic, or all of a prefix."""

    view: Annotated[TopicName, Reference("view")] | None = Field(
        default=None, description="The view whose topic it is about."
    )
    stream: Annotated[TopicName, Reference("stream")] | None = Field(
        default=None, description="The stream whose topic it is about."
    )
    topic: TopicName | None = Field(
        default=None, description="A topic that is neither of a stream nor of a view."
    )
    prefix: TopicName | None = Field(
        default=None, description="All topics whose names begin so, also those to come."
    )
    allow: Access = Field(default="read", description="What is allowed.")

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        if sum(getattr(self, name) is not None for name in TARGETS) != 1:
            raise ValueError("a permission is about one thing → give view, stream, topic or prefix")
        return self

    @property
    def target(self) -> tuple[str, str]:
        """What it is about: one of `view`, `stream`, `topic`, `prefix`, and the name."""
        return next((word, name) for word in TARGETS if (name := getattr(self, word)) is not None)

    def __str__(self) -> str:
        word, name = self.target
        return f"{self.allow} {word} {name}"


@register
class Role(Definition):
    """What those who have the role may read and write, beside the views that name it."""

    kind: ClassVar[str] = "role"
    concerns: ClassVar[Concern] = Concern.KAFKA

    permissions: tuple[Permission, ...] = Field(
        default=(),
        max_length=PERMISSION_LIMIT,
        strict=False,
        description="What it allows: `{view: NAME}`, `{stream: NAME}`, `{topic: NAME}` or "
        "`{prefix: TEXT}`, each with `allow: read` or `allow: write`.",
    )
    includes: tuple[Annotated[PlainName, Reference("role", acyclic=True)], ...] = Field(
        default=(),
        max_length=ROLE_LIMIT,
        strict=False,
        description="Roles whose permissions this role has too.",
    )
    excludes: tuple[Annotated[PlainName, Reference("role")], ...] = Field(
        default=(),
        max_length=ROLE_LIMIT,
        strict=False,
        description="Roles that nobody may have together with this one, in either direction.",
    )


@register
class User(Definition):
    """Someone with roles. Passwords are kept elsewhere, never in definitions."""

    kind: ClassVar[str] = "user"
    concerns: ClassVar[Concern] = Concern.KAFKA

    roles: tuple[Annotated[PlainName, Reference("role")], ...] = Field(
        default=(), max_length=ROLE_LIMIT, strict=False, description="The roles of the user."
    )
