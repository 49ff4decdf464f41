"""Attributes of users, clients and groups, as conditions see them under `s`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

from pydantic import Field, JsonValue, model_validator

from penstock.model.definition import NAME_LIMIT, Concern, Definition, register
from penstock.model.kinds.fields import Subject

VALUE_LIMIT = 1_000


@register
class Attributes(Definition):
    """What is known of a user, a client, the members of a group, or anyone."""

    kind: ClassVar[str] = "attributes"
    concerns: ClassVar[Concern] = Concern.ACCESS

    name: Subject = Field(description="Whose: user:NAME, client:ID, group:NAME or anyone.")
    values: Mapping[str, JsonValue] = Field(
        default_factory=dict,
        max_length=VALUE_LIMIT,
        description="Values by attribute, of the types that vocabularies declare for `s`. "
        "Timestamps and durations are written as text.",
    )
    on_behalf_of: Annotated[str, Field(min_length=1, max_length=NAME_LIMIT)] | None = Field(
        default=None,
        description="The user for whom this user or client publishes, such as the wearer of a "
        "sensor. That user's preferences hold for the messages.",
    )

    @model_validator(mode="after")
    def _check_behalf(self) -> Self:
        if self.on_behalf_of is not None and not self.name.startswith(("user:", "client:")):
            raise ValueError(
                f"{self.name} publishes for nobody → give on_behalf_of to a user or a client"
            )
        return self
