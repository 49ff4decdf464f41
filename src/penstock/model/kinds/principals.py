"""Principals: groups of users and clients, their attributes and rights; roles and who has them.

A role puts permissions to read and write at the event log together under a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, JsonValue, model_validator

from penstock.errors import quote
from penstock.model.definition import (
    NAME_LIMIT,
    Concern,
    Definition,
    Part,
    PlainName,
    Reference,
    register,
)
from penstock.model.kinds.fields import BrokerFilter, Member, PurposePath, Subject, TopicFilter
from penstock.model.kinds.streams import TopicName
from penstock.model.purposes import SET_LIMIT

MEMBER_LIMIT = 100_000
LIST_LIMIT = 10_000
VALUE_LIMIT = 1_000


@register
class Group(Definition):
    """Users and clients that policies and rights name together."""

    kind: ClassVar[str] = "group"
    concerns: ClassVar[Concern] = (
        Concern.ACCESS | Concern.COMMANDS | Concern.CLAIMS | Concern.EVENTS
    )

    members: tuple[Member, ...] = Field(
        default=(), max_length=MEMBER_LIMIT, strict=False, description="user:NAME or client:ID."
    )
    includes: tuple[Annotated[PlainName, Reference("group", acyclic=True)], ...] = Field(
        default=(),
        max_length=MEMBER_LIMIT,
        strict=False,
        description="Groups whose members belong to this group too.",
    )


@register
class Right(Definition):
    """Who may claim and command purposes, monitor, detokenize, or set emergencies by hand."""

    kind: ClassVar[str] = "right"
    concerns: ClassVar[Concern] = Concern.COMMANDS | Concern.CLAIMS

    subjects: tuple[Subject, ...] = Field(
        min_length=1, max_length=LIST_LIMIT, strict=False, description="Who has this right."
    )
    claim: tuple[PurposePath, ...] = Field(
        default=(),
        max_length=SET_LIMIT,
        strict=False,
        description="Purposes that these subjects may subscribe for, each with all below it. "
        "Asked for where `claims_need_right` is set.",
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
        default=False,
        description="Whether these subjects may change settings, clear state, and write to the "
        "broker's own topics, which begin with `$`.",
    )
    monitor: tuple[BrokerFilter, ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Filters of the broker's own topics, such as `$SYS/#`, that these subjects "
        "may subscribe to.",
    )
    detokenize: tuple[Annotated[PlainName, Reference("view")], ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Views whose tokens these users and groups may detokenize.",
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


@register
class Attributes(Definition):
    """What is known of a user, a client, the members of a group, or anyone."""

    kind: ClassVar[str] = "attributes"
    concerns: ClassVar[Concern] = Concern.ACCESS | Concern.EVENTS

    name: Subject = Field(description="Whose: user:NAME, client:ID, group:NAME or anyone.")
    values: Mapping[str, JsonValue] = Field(
        default_factory=dict,
        max_length=VALUE_LIMIT,
        description="Values by attribute, of the types that vocabularies declare for `s`. "
        "Timestamps and durations are written as text.",
    )
    on_behalf_of: Annotated[str, Field(min_length=1, max_length=NAME_LIMIT)] | None = Field(
        default=None,
        description="The user for whom this user or client publishes, such as the wearer of a "
        "sensor. That user's preferences hold for the messages.",
    )

    @model_validator(mode="after")
    def _check_behalf(self) -> Self:
        if self.on_behalf_of is not None and not self.name.startswith(("user:", "client:")):
            raise ValueError(
                f"{self.name} publishes for nobody → give on_behalf_of to a user or a client"
            )
        return self


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
    """What those who have the role may claim, read and write, beside the views that name it."""

    kind: ClassVar[str] = "role"
    concerns: ClassVar[Concern] = Concern.KAFKA | Concern.CLAIMS

    permissions: tuple[Permission, ...] = Field(
        default=(),
        max_length=PERMISSION_LIMIT,
        strict=False,
        description="What it allows: `{view: NAME}`, `{stream: NAME}`, `{topic: NAME}` or "
        "`{prefix: TEXT}`, each with `allow: read` or `allow: write`.",
    )
    claim: tuple[PurposePath, ...] = Field(
        default=(),
        max_length=SET_LIMIT,
        strict=False,
        description="Purposes that users of the role may subscribe for at the gateway, each with "
        "all below it. Asked for where `claims_need_right` is set.",
    )
    includes: tuple[Annotated[PlainName, Reference("role", acyclic=True)], ...] = Field(
        default=(),
        max_length=ROLE_LIMIT,
        strict=False,
        description="Roles whose permissions and claims this role has too.",
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
    concerns: ClassVar[Concern] = Concern.KAFKA | Concern.CLAIMS

    roles: tuple[Annotated[PlainName, Reference("role")], ...] = Field(
        default=(), max_length=ROLE_LIMIT, strict=False, description="The roles of the user."
    )
    blocked: bool = Field(
        default=False,
        description="Whether this user may neither connect to a gateway, whatever they log in "
        "with, nor read or write at Kafka. Connections that are open end.",
    )
