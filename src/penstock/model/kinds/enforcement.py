"""What is enforced at all. Explicit, so that deleting a rule can never open a door."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from penstock.model.definition import Concern, Definition, Part, PlainName, Reference, register
from penstock.model.kinds.emergency_policy import SubjectText

PLAN_LIMIT = 1_000


class ExclusivePlan(Part):
    """A plan whose emergencies set ordinary policies aside."""

    plan: Annotated[PlainName, Reference("plan")] = Field(description="The plan.")
    about: SubjectText = Field(
        description="Whose situation counts: an expression that names the scenario's subject, "
        "such as `o.patientId`. Where it is missing, ordinary policies are set aside too."
    )


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
        description="Plans during whose emergencies ordinary policies grant nothing: while the "
        "subject of a message is in any situation, emergency policies alone decide.",
    )
    preferences_in_emergencies: Literal["kept", "overridden"] = Field(
        default="kept",
        description="overridden: what an emergency policy grants is delivered although the "
        "publisher's preferences say otherwise; each time is written to the audit log.",
    )
