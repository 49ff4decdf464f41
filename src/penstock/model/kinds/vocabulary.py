"""Vocabularies: the attributes that expressions may use, and their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field, JsonValue

from penstock.model.definition import Concern, Definition, register


@register
class Vocabulary(Definition):
    """The attributes of subjects, objects and the environment, with their types."""

    kind: ClassVar[str] = "vocabulary"
    concerns: ClassVar[Concern] = Concern.ACCESS | Concern.EVENTS

    subject: Mapping[str, JsonValue] = Field(
        default_factory=dict,
        description="Attributes of `s`, who asks: name and type, such as `pSet: list(string)`. "
        "`uid: string`, `cid: string` and `groups: list(string)` follow from who asks.",
    )
    object: Mapping[str, JsonValue] = Field(
        default_factory=dict,
        description="Attributes of `o`, what the message is about, such as `patientId: string`; "
        "definitions of kind `object` say where they stand.",
    )
    environment: Mapping[str, JsonValue] = Field(
        default_factory=dict,
        description="Attributes of `e`, the surroundings: `time: timestamp`, `purpose: string` "
        "where somebody reads, and `place: string` where the gateway's settings name one.",
    )
    payload: Mapping[str, JsonValue] = Field(
        default_factory=dict, description="Fields of JSON payloads, as `t.payload`."
    )
