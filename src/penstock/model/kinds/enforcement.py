"""What is enforced at all. Explicit, so that deleting a rule can never open a door."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from penstock.model.definition import Definition, register


@register
class Enforcement(Definition):
    """Which rules must be satisfied: one definition, named `default`."""

    kind: ClassVar[str] = "enforcement"

    name: Literal["default"] = Field(default="default", description="There is one: `default`.")
    policies: Literal["required", "off"] = Field(
        default="off",
        description="required: reading and writing need a satisfied policy, even if there is "
        "none. off: policies are not looked at.",
    )
