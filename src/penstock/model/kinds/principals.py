"""Principals: groups of users and clients, their attributes and rights; users."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from penstock.errors import quote
from penstock.model.definition import (
    NAME_LIMIT,
    Concern,
    Definition,
    PlainName,
    Reference,
    register,
)
from penstock.model.kinds.fields import KnownSubject, Member, Subject
from penstock.model.kinds.roles import ROLE_LIMIT, Privileges

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
class Right(Privileges):
    """Who may claim and command purposes, monitor, detokenize, or set emergencies by hand."""

    kind: ClassVar[str] = "right"
    concerns: ClassVar[Concern] = Concern.COMMANDS | Concern.CLAIMS

    subjects: tuple[Subject, ...] = Field(
        min_length=1, max_length=LIST_LIMIT, strict=False, description="Who has this right."
    )

    @model_validator(mode="after")
    def _check_people(self) -> Self:
        for name in ("detokenize", "break_glass"):
            for subject in self.subjects if getattr(self, name) else ():
                if not subject.startswith(("user:", "group:", "role:")):
                    raise ValueError(
                        f"{name} is for people who prove who they are, not for "
                        f"{quote(subject)} → name user:NAME, group:NAME or role:NAME"
                    )
        return self


@register
class Attributes(Definition):
    """What is known of a user, a client, the members of a group, or anyone."""

    kind: ClassVar[str] = "attributes"
    concerns: ClassVar[Concern] = Concern.ACCESS | Concern.EVENTS

    name: KnownSubject = Field(description="Whose: user:NAME, client:ID, group:NAME or anyone.")
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


def _check_distinguished_name(text: str) -> str:
    parts = re.split(r"(?<!\\)[,+]", text)
    if not text.isprintable() or any(
        not re.fullmatch(r"[A-Za-z0-9.]+=\S(.*\S)?", part) for part in parts
    ):
        raise ValueError(
            f"{quote(text)} is not a distinguished name → write it as `openssl x509 -noout "
            "-subject -nameopt RFC2253 -in FILE` prints it, such as CN=anna,O=Hospital"
        )
    return text


DistinguishedName = Annotated[
    str, Field(min_length=3, max_length=NAME_LIMIT), AfterValidator(_check_distinguished_name)
]


@register
class User(Definition):
    """Someone with roles. Passwords are kept elsewhere, never in definitions."""

    kind: ClassVar[str] = "user"
    concerns: ClassVar[Concern] = Concern.KAFKA | Concern.CLAIMS | Concern.ACCESS | Concern.ROLES

    roles: tuple[Annotated[PlainName, Reference("role")], ...] = Field(
        default=(),
        max_length=ROLE_LIMIT,
        strict=False,
        description="Roles that the user has without conditions; they have no parameters.",
    )
    certificate: DistinguishedName | None = Field(
        default=None,
        description="The distinguished name of the user's certificate, where users log in at Kafka "
        "with one: whoever shows it has the user's ACLs. No other user has the same.",
    )
    blocked: bool = Field(
        default=False,
        description="Whether this user may neither connect to a gateway, whatever they log in "
        "with, nor read or write at Kafka. Connections that are open end.",
    )
