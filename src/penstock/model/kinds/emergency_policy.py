"""Emergency policies: grants that hold in some situations of an emergency plan only."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from penstock.model.definition import Concern, ExpressionText, PlainName, Reference, register
from penstock.model.kinds.policy import EXPRESSION_LIMIT, Grant

LIST_LIMIT = 1_000

SubjectText = Annotated[str, Field(max_length=EXPRESSION_LIMIT), ExpressionText("string")]
"""An expression that names the subject of a scenario, such as `o.patientId`."""


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
        description="Whether ordinary policies grant nothing while this policy applies, even "
        "where its condition does not hold. Otherwise it adds to them.",
    )

    @model_validator(mode="after")
    def _check_choices(self) -> Self:
        if self.situations and self.minimum_level is not None:
            raise ValueError("has both `situations` and `minimum_level` → leave one of them out")
        if (self.about is None) is not self.any_object:
            raise ValueError(
                "must say whose situation counts → write `about: o.ATTRIBUTE`, or "
                "`any_object: true`, not both"
            )
        return self
