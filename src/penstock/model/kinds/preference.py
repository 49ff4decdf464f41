"""Preferences: how users limit who reads the messages that are published for them."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from penstock.model.definition import NAME_LIMIT, Concern, Definition, register
from penstock.model.kinds.fields import TopicFilter
from penstock.model.kinds.policy import Condition


@register
class Preference(Definition):
    """A user's limit on readers: of those about a message, at least one must hold."""

    kind: ClassVar[str] = "preference"
    concerns: ClassVar[Concern] = Concern.ACCESS | Concern.RULES

    user: Annotated[str, Field(min_length=1, max_length=NAME_LIMIT)] = Field(
        description="On whose behalf the messages are published."
    )
    filter: TopicFilter = Field(description="The topics of the messages that are limited.")
    when: Condition = Field(
        description="What must hold for a reader, over s, o, e and t; "
        "an error or a missing attribute counts as not satisfied."
    )
