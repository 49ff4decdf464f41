"""Policies: who may read or write topics, always or in emergencies; attributes that they name.

Rules that hold here:
- A policy grants; nothing else does. A preference takes away.
- What is enforced at all is said explicitly, so that deleting a rule can never open a door.
- A vocabulary says which attributes expressions may use, and where those of objects are found:
  each in one place of a definition, in a level of the topic or at a path. In a pattern `+` may
  carry a name: `home/+patientId/+/pulse`; a path leads into the payload: `patient.id`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

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
    GrantSubject,
    Subject,
    TopicFilter,
    TopicPattern,
    named_levels,
    plain_filter,
)

ATTRIBUTE_LIMIT: Final = 100
PATH_LIMIT: Final = 16


@register
class Vocabulary(Definition):
    """The attributes of subjects, objects and the environment, with their types."""

    kind: ClassVar[str] = "vocabulary"
    concerns: ClassVar[Concern] = Concern.ACCESS | Concern.EVENTS

    subject: Mapping[str, JsonValue] = Field(
        default_factory=dict,
        description="Attributes of `s`, the subject: name and type, such as `pSet: list(string)`. "
        "`uid: string`, `cid: string` and `groups: list(string)` follow from who asks.",
    )
    object: Mapping[str, JsonValue] = Field(
        default_factory=dict,
        description="Attributes of `o`, what the message is about, such as `patientId: string`; "
        "definitions of kind `object` say where they stand.",
    )
    environment: Mapping[str, JsonValue] = Field(
        default_factory=dict,
        description="Attributes of `e`, the environment: `time: timestamp`, `purpose: string` "
        "where somebody reads, and `place: string` where the gateway's settings name one.",
    )
    payload: Mapping[str, JsonValue] = Field(
        default_factory=dict, description="Fields of JSON payloads, as `t.payload`."
    )


def _check_path(path: str) -> str:
    steps = path.split(".")
    if not all(steps) or len(steps) > PATH_LIMIT:
        raise ValueError("a path is names with dots between them, such as patient.id")
    return path


@register
class ObjectShape(Definition):
    """Where the attributes of `o` stand in messages: in levels of the topic, in the payload."""

    kind: ClassVar[str] = "object"
    concerns: ClassVar[Concern] = Concern.ACCESS

    topics: TopicPattern = Field(
        default="#",
        description="The topics that this is about, with names for the levels that are "
        "attributes: `home/+patientId/+room/#`.",
    )
    payload: Mapping[str, Annotated[str, AfterValidator(_check_path)]] = Field(
        default_factory=dict,
        max_length=ATTRIBUTE_LIMIT,
        description="Attributes that stand in a JSON payload, each with its path: "
        "`patientId: patient.id`.",
    )

    @property
    def filter(self) -> str:
        """The topics, as a plain filter."""
        return plain_filter(self.topics)

    @property
    def levels(self) -> Mapping[int, str]:
        """The attributes that levels of the topic are, by the place of the level."""
        return named_levels(self.topics)

    @model_validator(mode="after")
    def _check_attributes(self) -> Self:
        levels = set(self.levels.values())
        twice = sorted(levels & set(self.payload))
        if twice:
            raise ValueError(
                f"{quote(twice[0])} is a level and in the payload → leave one of them out"
            )
        if not levels and not self.payload:
            raise ValueError("names no attribute → name a level, `+patientId`, or a payload path")
        return self


EXPRESSION_LIMIT = 8192
LIST_LIMIT = 1_000
PLAN_LIMIT = 1_000

Condition = Annotated[str, Field(max_length=EXPRESSION_LIMIT), ExpressionText("bool")]
"""An expression that is true or false."""


def _check_whose(about: str | None, *, any_object: bool) -> None:
    if (about is None) is not any_object:
        raise ValueError(
            "must say whose situation counts → write `about: o.ATTRIBUTE`, or "
            "`any_object: true`, not both"
        )


class Grant(Definition):
    """What ordinary and emergency policies share: who may do what with which topics, when."""

    subject: GrantSubject = Field(
        default="anyone",
        description="user:NAME, client:ID, group:NAME, role:NAME or anyone. Arguments of a role "
        "are `_` for anything, quoted text, or attributes: `role:treating-doctor(_, o.patient)`.",
    )
    filter: TopicFilter = Field(description="The topics that this policy grants.")
    allow: Literal["read", "write"] = Field(description="What it grants.")
    when: Condition = Field(
        default="true",
        description="An expression over s, o, e and t; "
        "an error or a missing attribute counts as not satisfied.",
    )

    def implied(self) -> Iterator[tuple[Marker, Steps, str]]:
        """Yield the say-so that policies are looked at; without it a policy would be idle."""
        fix = "say whether policies count: add `kind: enforcement`, `name: default`, "
        fix += "`policies: required`"
        yield Reference("enforcement", fix=fix), ("name",), "default"


@register
class Policy(Grant):
    """A grant: this subject may read or write these topics where the condition holds."""

    kind: ClassVar[str] = "policy"
    concerns: ClassVar[Concern] = Concern.ACCESS | Concern.RULES


SubjectText = Annotated[str, Field(max_length=EXPRESSION_LIMIT), ExpressionText("string")]
"""An expression that names the subject of a scenario, such as `o.patientId`."""


CaseText = Annotated[str, Field(max_length=EXPRESSION_LIMIT), ExpressionText("bool", "scenario")]
SituationText = Annotated[
    str, Field(max_length=EXPRESSION_LIMIT), ExpressionText("bool", "situation")
]


@register
class EmergencyPolicy(Grant):
    """A grant that holds while the message's subject is in certain situations of a plan."""

    kind: ClassVar[str] = "emergency-policy"
    concerns: ClassVar[Concern] = Concern.ACCESS | Concern.RULES

    plan: Annotated[PlainName, Reference("plan")] = Field(
        description="The plan whose situations count."
    )
    scenarios: tuple[Annotated[PlainName, Reference("scenario")], ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Scenarios of this plan. Empty: all of them.",
    )
    situations: tuple[PlainName, ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Situations of the plan. Empty: all of them.",
    )
    minimum_level: int | None = Field(
        default=None,
        description="Instead of `situations`: those of this level and above.",
    )
    scenario_filter: CaseText | None = Field(
        default=None,
        description="Instead of `scenarios`: which cases of the plan count, an expression over s "
        "and c (subject, scenario, plan), such as `c.scenario == 'ward-3'`.",
    )
    situation_filter: SituationText | None = Field(
        default=None,
        description="Instead of `situations`: which situations count, an expression over s and c "
        "(subject, scenario, plan, situation, level), such as `c.level >= s.clearance`. For both "
        "filters an error or a missing attribute counts as not satisfied.",
    )
    about: SubjectText | None = Field(
        default=None,
        description="Whose situation counts: an expression that names the scenario's subject, "
        "such as `o.patientId`. The policy grants messages about that subject only.",
    )
    any_object: bool = Field(
        default=False,
        description="Instead of `about`: it suffices that some subject of a scenario is in such "
        "a situation; the policy then grants messages about anybody.",
    )
    exclusive: bool = Field(
        default=False,
        description="Whether ordinary policies grant nothing to those involved while this policy "
        "applies, even where its condition does not hold. Otherwise it adds to them.",
    )

    @model_validator(mode="after")
    def _check_choices(self) -> Self:
        given = {
            "situations": bool(self.situations),
            "minimum_level": self.minimum_level is not None,
            "situation_filter": self.situation_filter is not None,
        }
        several = [f"`{name}`" for name, there in given.items() if there]
        if len(several) > 1:
            raise ValueError(f"has both {several[0]} and {several[1]} → leave one of them out")
        if self.scenarios and self.scenario_filter is not None:
            raise ValueError("has both `scenarios` and `scenario_filter` → leave one of them out")
        _check_whose(self.about, any_object=self.any_object)
        return self


@register
class Preference(Definition):
    """A user's condition on readers: of those for a message, at least one must hold."""

    kind: ClassVar[str] = "preference"
    concerns: ClassVar[Concern] = Concern.ACCESS | Concern.RULES

    user: Annotated[str, Field(min_length=1, max_length=NAME_LIMIT)] = Field(
        description="On whose behalf the messages are published."
    )
    filter: TopicFilter = Field(description="The topics of the messages that are limited.")
    when: Condition = Field(
        default="true",
        description="What must hold for a reader, over s, o, e and t; "
        "an error or a missing attribute counts as not satisfied.",
    )
    readers: tuple[Subject, ...] = Field(
        default=(),
        max_length=LIST_LIMIT,
        strict=False,
        description="Who may read where `when` holds, such as `role:treating-doctor`. Empty: "
        "anyone.",
    )

    @model_validator(mode="after")
    def _check_limit(self) -> Self:
        if "when" not in self.model_fields_set and not self.readers:
            raise ValueError("it limits nobody → give when or readers")
        return self


class ExclusivePlan(Part):
    """A plan whose emergencies set ordinary policies aside."""

    plan: Annotated[PlainName, Reference("plan")] = Field(description="The plan.")
    about: SubjectText | None = Field(
        default=None,
        description="Whose situation counts: an expression that names the scenario's subject, "
        "such as `o.patientId`. Where it is missing, ordinary policies are set aside too.",
    )
    any_object: bool = Field(
        default=False,
        description="Instead of `about`: whoever is involved in a case of the plan has emergency "
        "policies alone, on messages about anybody.",
    )

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        _check_whose(self.about, any_object=self.any_object)
        return self


@register
class Enforcement(Definition):
    """Which rules must be satisfied: one definition, named `default`."""

    kind: ClassVar[str] = "enforcement"
    concerns: ClassVar[Concern] = Concern.ACCESS | Concern.SETTINGS

    name: Literal["default"] = Field(default="default", description="There is one: `default`.")
    policies: Literal["required", "off"] = Field(
        default="off",
        description="required: reading and writing need a satisfied policy, even if there is "
        "none. off: policies are not looked at; preferences are.",
    )
    exclusive: tuple[ExclusivePlan, ...] = Field(
        default=(),
        max_length=PLAN_LIMIT,
        strict=False,
        description="Plans during whose emergencies ordinary policies grant nothing to those "
        "involved: while the subject of a message is in any situation, emergency policies alone "
        "decide.",
    )
    preferences_in_emergencies: Literal["kept", "overridden"] = Field(
        default="kept",
        description="overridden: what an emergency policy grants is delivered although the "
        "publisher's preferences say otherwise; each time is written to the audit log.",
    )
