"""Blurring: part of a text is replaced by Xs, as in `XXXXXXXXXXXXX313`.

What is left is shown as it was, so that blurring hides little from who knows the rest.
The result of a number is text: its notation with the sign, blurred.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from pydantic import Field as Parameter

from penstock.masks.fields import INTEGERS, TEXTS, Field, FieldType
from penstock.masks.mask import Mask, Target, Transform

SYMBOL: Final = "X"


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
        fixed = None if self.keep_length else SYMBOL

        def blur(value: object, _: str) -> str:
            text = write(value)
            count = len(text) if limit is None else min(limit, len(text))
            hidden = fixed or SYMBOL * count
            return hidden + text[count:] if at_start else text[: len(text) - count] + hidden

        return blur
