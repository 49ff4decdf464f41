"""Suppression and blurring: a value, or a part of its text, is no longer shown.

Rules that hold here:
- Suppressed text becomes `*`, everything else null. Null in a text becomes `*` too: whether there
  was a value is hidden as well.
- Blurring replaces part of a text by Xs, as in `XXXXXXXXXXXXX313`. What is left is shown as it
  was, so that it hides little from who knows the rest.
- The result of a number is text: its notation with the sign, blurred.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final, Literal

from pydantic import Field as Parameter

from penstock.masks.fields import INTEGERS, TEXTS, Field, FieldType
from penstock.masks.mask import Mask, Row, Stage, Step, Target, Transform

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


BLUR_SYMBOL: Final = "X"


class Blurring(Mask):
    """Replaces characters of a text by X."""

    name: ClassVar[str] = "blurring"
    accepts: ClassVar[frozenset[FieldType]] = INTEGERS | {FieldType.STRING}

    n_fields: int | None = Parameter(
        default=None,
        gt=0,
        le=65_536,
        description="How many characters to blur; all where it is left out.",
    )
    keep_length: bool = Parameter(
        default=True,
        description="Whether each blurred character becomes an X; "
        "otherwise one X stands for all of them.",
    )
    from_: Literal["start", "end"] = Parameter(
        default="start", alias="from", description="The end of the text where blurring begins."
    )

    def output(self, found: Field) -> Field:
        """Return a text, whatever the field was."""
        return found.as_type(FieldType.STRING)

    def transform(self, target: Target) -> Transform:
        """Return the function over texts or whole numbers."""
        write = TEXTS[target.field.type]
        limit, at_start = self.n_fields, self.from_ == "start"
        fixed = None if self.keep_length else BLUR_SYMBOL

        def blur(value: object, _: str) -> str:
            text = write(value)
            count = len(text) if limit is None else min(limit, len(text))
            hidden = fixed or BLUR_SYMBOL * count
            return hidden + text[count:] if at_start else text[: len(text) - count] + hidden

        return blur
