"""How purposes are enforced by all gateways of an installation."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from penstock.model.definition import Definition, register


@register
class PurposeSettings(Definition):
    """How purposes are enforced: one definition, named `default`."""

    kind: ClassVar[str] = "purpose-settings"

    name: Annotated[Literal["default"], Field(description="There is one: `default`.")] = "default"
    filtering: Literal["publish", "subscribe", "hybrid", "none"] = Field(
        default="publish",
        description="When purposes are checked: on each delivery (publish), on subscribing "
        "(subscribe), both (hybrid). `none` switches purposes off.",
    )
    allow_without_reservation: bool = Field(
        default=True, description="Whether topics without a reservation are open to all."
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
