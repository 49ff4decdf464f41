"""Hierarchies: what values are instances of, step by step (Berlin → Germany → Europe)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import Field, model_validator

from penstock.errors import quote
from penstock.model.definition import Concern, Definition, Part, register

VALUE_LIMIT: Final = 100_000
DEPTH_LIMIT: Final = 32
TEXT_LIMIT: Final = 4096

Value = Annotated[str, Field(max_length=TEXT_LIMIT)]
Way = Annotated[tuple[Value, ...], Field(strict=False)]


class HierarchyNode(Part):
    """A value, or a group and what it stands for."""

    value: Value = Field(description="The value, or the name of the group.")
    children: tuple[HierarchyNode, ...] = Field(
        default=(), strict=False, description="What the group stands for; none for a value."
    )


@register
class Hierarchy(Definition):
    """What values are instances of, for generalization and k-anonymity."""

    kind: ClassVar[str] = "hierarchy"
    concerns: ClassVar[Concern] = Concern.VIEWS

    values: Mapping[Value, Way] | None = Field(
        default=None,
        min_length=1,
        max_length=VALUE_LIMIT,
        description="Each value with its generalizations, from the nearest to the most general: "
        "`Berlin: [Germany, Europe]`. All end at the same.",
    )
    tree: HierarchyNode | None = Field(
        default=None, description="The same as nested groups: `{value, children}`."
    )

    @model_validator(mode="after")
    def _check_notation(self) -> Self:
        if (self.values is None) == (self.tree is None):
            raise ValueError("give values, or tree → exactly one of both")
        if self.values is not None:
            _check_ways(self.values)
        return self

    def nested(self) -> dict[str, Any]:
        """Return the tree as nested data: `{value, children}`."""
        if self.tree is not None:
            return self.tree.model_dump()
        values = self.values or {}
        below: dict[str, dict[str, None]] = {}
        for value, way in values.items():
            for child, parent in zip((value, *way), way, strict=False):
                below.setdefault(parent, {})[child] = None
        return _grow(next(iter(values.values()))[-1], below)


def _grow(value: str, below: Mapping[str, Mapping[str, None]]) -> dict[str, Any]:
    return {"value": value, "children": [_grow(child, below) for child in below.get(value, ())]}


def _check_ways(values: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse ways that make no tree: two roots, two parents of one value, a way back."""
    parents: dict[str, str] = {}
    root = next(iter(values.values()))[-1:]
    for value, way in values.items():
        if not way or len(way) > DEPTH_LIMIT:
            raise ValueError(f"{quote(value)} has {len(way)} generalizations → give 1 to 32")
        if way[-1:] != root:
            raise ValueError(
                f"{quote(value)} ends at {quote(way[-1])}, others at {quote(root[0])} → "
                "let all values end at the same"
            )
        steps = (value, *way)
        if len(set(steps)) != len(steps):
            raise ValueError(f"the way of {quote(value)} comes to a value twice → shorten it")
        for child, parent in zip(steps, way, strict=False):
            if parents.setdefault(child, parent) != parent:
                raise ValueError(
                    f"{quote(child)} lies below {quote(parents[child])} and {quote(parent)} → "
                    "let it lie below one"
                )
    groups = set(parents.values())
    both = next((value for value in values if value in groups), None)
    if both is not None:
        raise ValueError(f"{quote(both)} is a value and a group of others → rename the group")
