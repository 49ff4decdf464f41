"""Policies: grants to read or write topics, under a condition on attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from penstock.model.definition import (
    Concern,
    Definition,
    ExpressionText,
    Marker,
    Reference,
    Steps,
    register,
)
from penstock.model.kinds.fields import Subject, TopicFilter

EXPRESSION_LIMIT = 8192

Condition = Annotated[str, Field(max_length=EXPRESSION_LIMIT), ExpressionText("bool")]
"""An expression that is true or false."""


class Grant(Definition):
    """What ordinary and emergency policies share: who may do what with which topics, when."""

    subject: Subject = Field(
        default="anyone", description="user:NAME, client:ID, group:NAME or anyone."
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
