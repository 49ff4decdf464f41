"""Reservations: topics that may be used for some purposes only."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from penstock.model.definition import Concern, Definition, register
from penstock.model.kinds.fields import FilterName, PurposePath
from penstock.model.purposes import SET_LIMIT, PurposeSet


@register
class Reservation(Definition):
    """The purposes that the topics of a filter are reserved for."""

    kind: ClassVar[str] = "reservation"
    concerns: ClassVar[Concern] = Concern.PURPOSES

    name: FilterName = Field(description="The topic filter; `home/#` covers `home` too.")
    allow: tuple[PurposePath, ...] = Field(
        default=(),
        max_length=SET_LIMIT,
        strict=False,
        description="Purposes that subscribers may have, each with all below it. "
        "Empty: this reservation allows nobody.",
    )
    prohibit: tuple[PurposePath, ...] = Field(
        default=(),
        max_length=SET_LIMIT,
        strict=False,
        description="Purposes that are refused, each with all below it, whatever is allowed.",
    )

    @property
    def purposes(self) -> PurposeSet:
        """What this reservation says, as the engine takes it."""
        return PurposeSet(frozenset(self.allow), frozenset(self.prohibit))
