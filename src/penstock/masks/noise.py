"""Noise: a number is moved by a random amount.

Rules that hold here:
- The amount is drawn from the keyed hash of the record's identity and the field: a replay
  draws the same, and asking for a record twice tells nothing more.
- Whole numbers stay whole: the amount is rounded, halves to the even number. Where the
  result would leave the type, it stops at the type's last number.
- A number that is not finite has no neighbours: the record is rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator
from pydantic import Field as Parameter

from penstock.masks.constants import Number
from penstock.masks.draws import draw_quantile, draw_uniform, draw_word, quantile_table
from penstock.masks.fields import (
    INTEGERS,
    LEAST,
    MAX_DOUBLE,
    MAX_FLOAT,
    MOST,
    NUMBERS,
    Field,
    FieldType,
    to_single,
)
from penstock.masks.mask import Mask, Target, Transform

MAX_NOISE: Final = 1e9
MAX_SEED: Final = 2**63 - 1


def _check_noise(value: float) -> float:
    if not 0 < value <= MAX_NOISE:
        raise ValueError(f"write a number greater than 0, at most {MAX_NOISE:g}")
    return float(value)


class Noise(Mask):
    """Moves numbers by random amounts."""

    name: ClassVar[str] = "noise"
    accepts: ClassVar[frozenset[FieldType]] = NUMBERS
    refusal: ClassVar[str] = "the value is not a finite number"

    noise: Annotated[Number, AfterValidator(_check_noise)] = Parameter(
        description="The amount: the standard deviation of normal noise, the scale of Laplace "
        "noise, the largest amount of uniform noise. Multiplicative: as a share of "
        "the value, so that 0.1 means one tenth.",
    )
    mode: Literal["additive", "multiplicative"] = Parameter(
        default="multiplicative",
        description="Whether the amount is added as it is or as a share of the value. "
        "As a share, 0 stays 0.",
    )
    distribution: Literal["normal", "laplace", "uniform"] = Parameter(
        default="normal", description="How the amount is distributed, around 0."
    )
    seed: int = Parameter(
        default=0, ge=0, le=MAX_SEED, description="Another seed draws other amounts. No secret."
    )

    @property
    def needs_identity(self) -> bool:
        """Each record has its own amount."""
        return True

    @property
    def needs_keys(self) -> bool:
        """Who knows the key can take the noise away again."""
        return True

    def output(self, found: Field) -> Field:
        """Return the field as it is."""
        return found

    def key(self, target: Target) -> bytes:
        """Return the key under which amounts are drawn for a field."""
        return target.keys.derive(self.name, target.name, target.label, str(self.seed))

    def transform(self, target: Target) -> Transform:
        """Return the function that moves numbers of a field."""
        key = self.key(target)
        distribute, scale = _distribute(self.distribution), self.noise
        share = self.mode == "multiplicative"
        move = _MOVES[target.field.type]

        def blur(value: float, identity: str) -> float | None:
            if not -MAX_DOUBLE <= value <= MAX_DOUBLE:  # also for NaN
                return None
            amount = distribute(draw_word(key, identity)) * scale
            return move(value, float(value) * amount if share else amount)

        return blur


def _distribute(distribution: str) -> Callable[[int], float]:
    if distribution == "uniform":
        return draw_uniform
    table = quantile_table(distribution)
    return lambda word: draw_quantile(word, table)


def _move_integer(kind: FieldType) -> Callable[[float, float], int]:
    least, most = LEAST[kind], MOST[kind]
    first, last = LEAST[FieldType.LONG], MOST[FieldType.LONG]

    def move(value: float, amount: float) -> int:
        # The amount is bounded first, as a column of 64 bits can hold no more.
        whole = min(max(round(amount), first), last)
        return min(max(int(value) + whole, least), most)

    return move


def _move_double(value: float, amount: float) -> float:
    return min(max(value + amount, -MAX_DOUBLE), MAX_DOUBLE)


def _move_float(value: float, amount: float) -> float:
    return to_single(min(max(value + amount, -MAX_FLOAT), MAX_FLOAT))


_MOVES: Final[Mapping[FieldType, Callable[[float, float], float]]] = {
    **{kind: _move_integer(kind) for kind in INTEGERS},
    FieldType.DOUBLE: _move_double,
    FieldType.FLOAT: _move_float,
}
