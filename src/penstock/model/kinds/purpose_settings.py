"""How purposes are enforced by all gateways of an installation."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from penstock.model.definition import Concern, Definition, register


@register
class PurposeSettings(Definition):
    """How purposes are enforced: one definition, named `default`."""

    kind: ClassVar[str] = "purpose-settings"
    concerns: ClassVar[Concern] = Concern.PURPOSES

    name: Literal["default"] = Field(default="default", description="There is one: `default`.")
    allow_without_reservation: bool = Field(
        default=True, description="Whether topics without a reservation are open to all."
    )
    filter_on_subscribe: bool = Field(
        default=False, description="Whether subscriptions are refused as a whole."
    )
    filter_on_publish: bool = Field(default=True, description="Whether each delivery is checked.")
    filter_hybrid: bool = Field(
        default=False,
        description="Whether subscriptions that can never receive are refused, the others checked.",
    )
    hybrid_tag: bool = Field(
        default=False, description="Whether hybrid filtering marks what it delivers."
    )
    use_tree_store: bool = Field(
        default=True, description="Whether reservations are kept as a tree (else flat)."
    )
    cache_reservations: bool = Field(
        default=True, description="Whether combined purposes of a topic are remembered."
    )
    cache_subscriptions: bool = Field(
        default=True, description="Whether decisions on subscriptions are remembered."
    )
    auto_persist: bool = Field(
        default=True, description="Whether commands are stored at once, or on PERSIST."
    )
