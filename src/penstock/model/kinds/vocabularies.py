"""Vocabularies: the attributes that expressions may use, and where those of objects are found.

Rules that hold here:
- A pattern is a topic filter in which `+` may carry a name: `home/+patientId/+/pulse`.
- A path leads into the payload's JSON object: `patient.id`.
- Each attribute is found in one place of a definition, a level or a path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from penstock.errors import quote
from penstock.model.definition import Concern, Definition, register
from penstock.model.kinds.fields import TopicPattern, named_levels, plain_filter

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
