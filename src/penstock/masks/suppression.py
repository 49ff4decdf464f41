"""Suppression: a value becomes nothing. Text becomes `*`, everything else null.

Null becomes `*` too: whether there was a value is hidden as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final, Literal

from pydantic import Field as Parameter

from penstock.masks.fields import Field, FieldType
from penstock.masks.mask import Mask, Row, Stage, Step

SYMBOL: Final = "*"


class Suppression(Mask):
    """Replaces values by `*`, or by null where the field is not text."""

    name: ClassVar[str] = "suppression"
    accepts: ClassVar[frozenset[FieldType]] = frozenset(FieldType)

    as_: Literal["text"] | None = Parameter(
        default=None,
        alias="as",
        description="`text`: fields of every type become text, and hold `*`. "
        "Otherwise numbers, dates and the like become null.",
    )

    def output(self, found: Field) -> Field:
        """Text stays text; other types become optional, or text where that is declared."""
        if found.type is FieldType.STRING or self.as_:
            return Field(FieldType.STRING)
        return replace(found, optional=True)

    def compile(self, stage: Stage) -> list[Step]:
        """Return the steps: each sets a constant, also in place of null."""
        return [_set(key, self.replacement(stage.schema[key])) for key in self.keys]

    def replacement(self, found: Field) -> str | None:
        """Return what stands in place of every value of a field."""
        return SYMBOL if self.output(found).type is FieldType.STRING else None


def _set(name: str, constant: str | None) -> Step:
    def step(row: Row, _: str) -> None:
        row[name] = constant

    return step
