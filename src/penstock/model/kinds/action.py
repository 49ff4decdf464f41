"""Actions: messages that are published when a scenario evolves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from penstock.errors import PenstockError
from penstock.model.definition import Concern, Definition, PlainName, Reference, register
from penstock.model.kinds.event import ATTRIBUTE_LIMIT, ExpressionOfSet, Word
from penstock.model.topics import check_topic


def _check_template(text: str) -> str:
    try:
        return check_topic(text)
    except PenstockError as error:
        raise ValueError(str(error)) from None


@register
class Action(Definition):
    """A message made of each event of a type that an evolution's request brings about."""

    kind: ClassVar[str] = "action"
    concerns: ClassVar[Concern] = Concern.EVENTS

    event: Annotated[PlainName, Reference("event")] = Field(
        description="The event type whose events become messages."
    )
    topic: Annotated[str, Field(max_length=65535), AfterValidator(_check_template)] = Field(
        description="Where they are published; {pid} stands for the event's attribute pid."
    )
    payload: Annotated[Mapping[Word, ExpressionOfSet], Field(max_length=ATTRIBUTE_LIMIT)] = Field(
        default_factory=dict, description="Fields of the JSON payload: expressions over it."
    )
