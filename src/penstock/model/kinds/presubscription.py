"""Presubscriptions: purposes for clients that cannot name one themselves."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from penstock.model.definition import Concern, Definition, register
from penstock.model.kinds.fields import PurposePath, TopicFilter
from penstock.model.purposes import PURPOSE_LIMIT

CLIENT_LIMIT = 65535


@register
class Presubscription(Definition):
    """The purpose that applies when a client subscribes to a filter without naming one."""

    kind: ClassVar[str] = "presubscription"
    concerns: ClassVar[Concern] = Concern.PURPOSES

    client: str = Field(
        min_length=1, max_length=CLIENT_LIMIT, description="The MQTT client identifier."
    )
    filter: TopicFilter = Field(description="The topic filter, exactly as the client writes it.")
    purpose: PurposePath = Field(
        max_length=PURPOSE_LIMIT, description="The access purpose of that subscription."
    )
