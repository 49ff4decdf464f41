"""Constants in the parameters of masks, and how they fit the types of fields."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator
from pydantic import Field as Parameter

from penstock.errors import Problem, quote
from penstock.masks.fields import CHECKS, INTEGERS, Field, FieldType, read_text
from penstock.masks.mask import MAX_TEXT, check_text

MAX_CONSTANTS: Final = 10_000


def check_constant(value: object) -> object:
    """Refuse what is no constant: lists, maps, null, numbers without end."""
    match value:
        case bool() | int():
            return value
        case float():
            if math.isfinite(value):
                return value
            raise ValueError("write a finite number")
        case str():
            if len(value) > MAX_TEXT:
                raise ValueError(f"it has more than {MAX_TEXT} characters")
            return check_text(value)
        case _:
            raise ValueError("write text, a number, true or false")


def _check_number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("write a number")
    return value


Constant = Annotated[Any, AfterValidator(check_constant)]
"""Text, a number, true or false."""

Number = Annotated[int | float, BeforeValidator(_check_number)]
"""A finite number, whole or not; each problem with it is told once."""

Substitutes = Annotated[
    tuple[Constant, ...], Parameter(min_length=1, max_length=MAX_CONSTANTS, strict=False)
]


def fit(constants: Sequence[object], found: Field) -> list[Any]:
    """Return constants as values of a field's type; None for each that is none."""
    return [_fit(constant, found.type) for constant in constants]


def _fit(constant: object, kind: FieldType) -> Any:
    if kind is FieldType.DATE and isinstance(constant, str):
        return read_text(kind, constant)
    if kind in INTEGERS and isinstance(constant, float):
        return None
    return CHECKS[kind](constant)


def check_fit(
    place: str, constants: Sequence[object], name: str, found: Field, fix: str
) -> Iterator[Problem]:
    """Yield a problem for each constant that cannot stand in a field."""
    for index, value in enumerate(fit(constants, found)):
        if value is None:
            message = f"{quote(constants[index])} is no {found.type}, as {quote(name)} is"
            yield Problem(f"{place}[{index}]", message, fix)
