"""Roles: what they carry, how they are activated, and what an appointment and a domain are.

    prerequisite roles, appointments, constraints ⊢ role(parameters)        activation-rule
    role(parameters), constraints ⊢ privileges                          authorisation-rule

Rules that hold here:
- All conditions of an activation rule must hold, and variables stand for one value in all of
  them. There are no negative rules: one satisfied rule suffices.
- A condition with `membership: true` is watched: when it fails, the role is revoked with all
  that depends on it. The others are looked at when the role is activated.
- A role puts permissions to read and write at the event log together under a name, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from penstock.errors import quote
from penstock.model.definition import (
    NAME_LIMIT,
    Concern,
    Definition,
    ExpressionText,
    Marker,
    Part,
    PlainName,
    Reference,
    Steps,
    register,
)
from penstock.model.kinds.fields import (
    BrokerFilter,
    CredentialText,
    KnownSubject,
    PurposePath,
    RoleText,
    TopicFilter,
)
from penstock.model.kinds.streams import TOPIC_LIMIT, TopicName, check_topic
from penstock.model.purposes import SET_LIMIT
from penstock.model.role_terms import ARGUMENT_LIMIT, Constant, parse_term

EXPRESSION_LIMIT: Final = 8192
LIST_LIMIT: Final = 10_000
CONDITION_LIMIT: Final = 64


PERMISSION_LIMIT: Final = 10_000
ROLE_LIMIT: Final = 1000
TARGETS: Final = ("view", "stream", "topic", "prefix")

Access = Literal["read", "write"]


_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)


def _check_parameter(name: str) -> str:
    if not _WORD.fullmatch(name):
        raise ValueError("use letters, digits and _, with a letter first, such as patient")
    return name


ParameterName = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_check_parameter)]


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


def _check_definable(text: str) -> str:
    if text != "*":
        check_topic(text.removesuffix("*"))
    return text


@register
class Role(Definition):
    """What those who have the role may claim, read and write, beside the views that name it."""

    kind: ClassVar[str] = "role"
    concerns: ClassVar[Concern] = Concern.KAFKA | Concern.CLAIMS | Concern.ACCESS | Concern.ROLES

    parameters: tuple[ParameterName, ...] = Field(
        default=(),
        max_length=ARGUMENT_LIMIT,
        strict=False,
        description="What tells one instance of the role from another, such as `[doctor, "
        "patient]`. Values are text.",
    )
    domain: Annotated[PlainName, Reference("domain")] | None = Field(
        default=None,
        description="The domain that names the role: rules of this domain and of those below it "
        "may use it. None: all rules.",
    )
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
        description="Roles whose permissions and claims this role has too. Their parameters are "
        "among those of this role.",
    )
    excludes: tuple[Annotated[PlainName, Reference("role")], ...] = Field(
        default=(),
        max_length=ROLE_LIMIT,
        strict=False,
        description="Roles that nobody may have together with this one, in either direction.",
    )

    @model_validator(mode="after")
    def _check_parameters(self) -> Self:
        for name in self.parameters:
            if self.parameters.count(name) > 1:
                raise ValueError(f"two parameters are called {quote(name)} → rename one")
        return self


class RoleCondition(Part):
    """One condition of an activation rule: a role, an appointment, or a constraint."""

    role: RoleText | None = Field(
        default=None, description="A role that must be active, such as `doctor(doctor)`."
    )
    appointment: CredentialText | None = Field(
        default=None, description="An appointment that must be held, such as `treats(doctor, p)`."
    )
    when: Annotated[str, Field(max_length=EXPRESSION_LIMIT)] | None = Field(
        default=None,
        description="An expression over s, e and r, the variables of the rule, such as "
        "`r.doctor == s.uid`. An error or a missing attribute counts as not satisfied.",
    )
    membership: bool = Field(
        default=False,
        description="Whether the role is revoked when this no longer holds. Otherwise it is "
        "looked at when the role is activated, and never again.",
    )

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        if sum(it is not None for it in (self.role, self.appointment, self.when)) != 1:
            raise ValueError("a condition is one thing → give role, appointment or when")
        return self


@register
class ActivationRule(Definition):
    """When a role becomes active: prerequisite roles, appointments and constraints."""

    kind: ClassVar[str] = "activation-rule"
    concerns: ClassVar[Concern] = Concern.ACCESS | Concern.CLAIMS | Concern.ROLES

    role: RoleText = Field(
        description="The role with its parameters: variables, or quoted text, such as "
        "`treating-doctor(doctor, patient)`."
    )
    domain: Annotated[PlainName, Reference("domain")] | None = Field(
        default=None,
        description="The domain for whose members it holds, those of domains below it included. "
        "None: for everybody.",
    )
    bind: Mapping[ParameterName, Annotated[str, Field(max_length=EXPRESSION_LIMIT)]] = Field(
        default_factory=dict,
        max_length=ARGUMENT_LIMIT,
        description="Variables that have the value of an expression over s, such as "
        "`doctor: s.uid`. When the value changes, the role is revoked.",
    )
    requires: tuple[RoleCondition, ...] = Field(
        default=(),
        max_length=CONDITION_LIMIT,
        strict=False,
        description="All that must hold: `{role: …}`, `{appointment: …}` or `{when: …}`, each "
        "with `membership: true` where it is watched.",
    )


class DefinableTypes(Part):
    """Event types that somebody may define."""

    stream: Annotated[str, Field(max_length=TOPIC_LIMIT), AfterValidator(_check_definable)] = Field(
        description="The stream, or the beginning of names with `*` behind it: `ward-*`."
    )
    below: tuple[TopicFilter, ...] = Field(
        min_length=1,
        max_length=LIST_LIMIT,
        strict=False,
        description="Filters below which its messages come (`from`).",
    )


class Privileges(Definition):
    """What rights and authorisation rules give beside reading and writing."""

    claim: tuple[PurposePath, ...] = Field(
        default=(),
        max_length=SET_LIMIT,
        strict=False,
        description="Purposes that they may subscribe for, each with all below it. "
        "Asked for where `claims_need_right` is set.",
    )
    reserve: tuple[TopicFilter, ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Filters below which they may reserve topics.",
    )
    advertise: tuple[TopicFilter, ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Filters below which they may advertise what they publish. Asked for on the "
        "topics that a domain names (`advertised`).",
    )
    define: tuple[DefinableTypes, ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Event types that they may define and extend with the command `!DEFINE`: "
        "`{stream: ward-*, below: [ward/#]}`.",
    )
    presubscribe: tuple[TopicFilter, ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Filters below which they may set other clients' purposes.",
    )
    administer: bool = Field(
        default=False,
        description="Whether they may change settings, clear state, and write to the "
        "broker's own topics, which begin with `$`.",
    )
    monitor: tuple[BrokerFilter, ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Filters of the broker's own topics, such as `$SYS/#`, that they "
        "may subscribe to.",
    )
    detokenize: tuple[Annotated[PlainName, Reference("view")], ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Views whose tokens they may detokenize.",
    )
    break_glass: tuple[Annotated[PlainName, Reference("scenario")], ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Scenarios whose situations they may start and end by hand, "
        "and approve where a second person is needed.",
    )


@register
class AuthorisationRule(Privileges):
    """What a role may do: subscribe, publish, and what a right gives."""

    kind: ClassVar[str] = "authorisation-rule"
    concerns: ClassVar[Concern] = Concern.ACCESS | Concern.RULES | Concern.COMMANDS | Concern.CLAIMS

    role: RoleText = Field(
        description="The role; its arguments are `_` for anything, quoted text, or attributes of "
        "the message, such as `treating-doctor(_, o.patientId)`."
    )
    domain: Annotated[PlainName, Reference("domain")] | None = Field(
        default=None, description="The domain that the rule belongs to."
    )
    subscribe: tuple[TopicFilter, ...] = Field(
        default=(), max_length=LIST_LIMIT, strict=False, description="Topics that it may read."
    )
    publish: tuple[TopicFilter, ...] = Field(
        default=(), max_length=LIST_LIMIT, strict=False, description="Topics that it may write."
    )
    when: Annotated[str, Field(max_length=EXPRESSION_LIMIT), ExpressionText("bool")] = Field(
        default="true",
        description="What must hold to read and write, an expression over s, o, e and t; "
        "an error or a missing attribute counts as not satisfied.",
    )

    @property
    def subject(self) -> str:
        """Whom it is for, as policies write it."""
        return f"role:{self.role}"

    def implied(self) -> Iterator[tuple[Marker, Steps, str]]:
        """Yield the say-so that policies are looked at; without it the rule would be idle."""
        if self.subscribe or self.publish:
            fix = "say whether policies count: add `kind: enforcement`, `name: default`, "
            fix += "`policies: required`"
            yield Reference("enforcement", fix=fix), ("name",), "default"

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        term = parse_term(self.role)
        if term.variables:
            raise ValueError(
                f"{quote(term.variables[0])} is a variable, and nothing binds it here → write _ "
                "for anything, quoted text, or an attribute such as o.patientId"
            )
        other = [name for name in Privileges.model_fields if name not in Definition.model_fields]
        given = [name for name in other if getattr(self, name)]
        if term.paths and given:
            raise ValueError(
                f"{given[0]} is given without a message, so that {quote(term.paths[0])} means "
                "nothing → write another rule for it, with _ or quoted text"
            )
        if self.when != "true" and given:
            raise ValueError(f"{given[0]} has no condition → write another rule for it")
        if not (given or self.subscribe or self.publish):
            raise ValueError("it gives nothing → name a privilege, such as subscribe")
        return self


def _check_moment(text: str) -> str:
    read_moment(text)
    return text


def read_moment(text: str) -> int:
    """Return the milliseconds since 1970 of a timestamp with its offset."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise ValueError(
            f"{quote(text)} is not a timestamp → write one with its offset, such as "
            "2026-12-31T23:59:59Z"
        )
    return round(found.astimezone(UTC).timestamp() * 1000)


Moment = Annotated[str, Field(max_length=64), AfterValidator(_check_moment)]
Holder = Annotated[str, Field(max_length=NAME_LIMIT), Reference("group", prefix="group:")]


@register
class Appointment(Definition):
    """A credential that somebody was given: signed, revocable, with an end."""

    kind: ClassVar[str] = "appointment"
    concerns: ClassVar[Concern] = Concern.ACCESS | Concern.CLAIMS | Concern.ROLES

    credential: CredentialText = Field(description='What it says, such as `treats("ann", "p-17")`.')
    holder: Holder = Field(description="Who holds it: user:NAME or group:NAME.")
    valid_from: Moment | None = Field(
        default=None, description="From when on it counts; None: at once."
    )
    valid_until: Moment | None = Field(
        default=None, description="When it ends; None: when it is deleted."
    )
    signature: Annotated[str, Field(max_length=256)] | None = Field(
        default=None,
        description="Who signed it: key and signature. `penstock apply` signs; one that is not "
        "signed with a key of this installation counts for nothing.",
    )

    @model_validator(mode="after")
    def _check_credential(self) -> Self:
        arguments = parse_term(self.credential).arguments or ()
        if not all(isinstance(it, Constant) for it in arguments):
            raise ValueError("an appointment has values, no variables → put them in quotes")
        noun, colon, name = self.holder.partition(":")
        if noun not in {"user", "group"} or not colon or not name:
            raise ValueError(
                f"{quote(self.holder)} cannot hold an appointment → write user:NAME or group:NAME"
            )
        if (
            self.valid_from is not None
            and self.valid_until is not None
            and read_moment(self.valid_from) >= read_moment(self.valid_until)
        ):
            raise ValueError("it ends before it begins → swap valid_from and valid_until")
        return self

    @property
    def statement(self) -> Mapping[str, str | None]:
        """What its signature is over."""
        return {
            "name": self.name,
            "credential": self.credential,
            "holder": self.holder,
            "valid_from": self.valid_from,
            "valid_until": self.valid_until,
        }


@register
class Domain(Definition):
    """A part of an organisation: its manager, its members; rules of its parent hold in it."""

    kind: ClassVar[str] = "domain"
    concerns: ClassVar[Concern] = Concern.ACCESS | Concern.CLAIMS | Concern.ROLES

    parent: Annotated[PlainName, Reference("domain", acyclic=True)] | None = Field(
        default=None, description="The domain whose roles and rules it inherits."
    )
    manager: KnownSubject = Field(description="Who answers for its roles and rules.")
    members: tuple[KnownSubject, ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Whose roles its rules activate: user:NAME, group:NAME or anyone.",
    )
    advertised: tuple[TopicFilter, ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Topics on which nobody publishes without having advertised it: with the "
        "command `!ADVERTISE`, and the right to `advertise`.",
    )

    @model_validator(mode="after")
    def _check_members(self) -> Self:
        for member in self.members:
            if member.startswith("client:"):
                raise ValueError(f"{quote(member)} has no roles → name users and groups")
        return self
