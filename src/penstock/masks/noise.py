"""Noise: a number is moved by a random amount, with the same bits in Python and in Spark.

    key, identity → word: 52 bits of a keyed hash ┬→ uniform: evenly between -1 and 1
                                                  └→ normal, Laplace: a line of the table

    word:  half (1 bit) · cell (7 bits) · rest (44 bits, their zeros at the end: the octave)

Rules that hold here:
- The amount is drawn from the keyed hash of the record's identity and the field: a replay
  draws the same, and asking for a record twice tells nothing more.
- Every parameter is part of the key. A record under two amounts of noise has two draws that
  have nothing to do with each other; of one draw, scaled twice, the original would follow.
- Whole numbers stay whole: the amount is rounded, halves to the even number. Where the
  result would leave the type, it stops at the type's last number.
- A number that is not finite has no neighbours: the record is rejected.
- The hash is SHA-256 of the key and the message, cut to 52 bits. The key has a fixed
  length, and what is cut off is never shown, so that no hash can be continued to that of a
  longer message; HMAC would guard against that with a second hash, and cost twice.
- A quantile is that of p, the share of what lies farther out on its side. An octave is from
  a power of two to the next: p falls into the first below ½ with probability ½, into the
  one below that with ¼, and so on; so often has the rest that many zeros at its end. The
  half gives the sign.
- Logarithms differ in their last bits between C and Java, so quantiles come from a table,
  with a straight line for each cell: each octave of p has 128 cells of equal width. What is
  left is arithmetic that IEEE 754 defines to the last bit.
- Entries are rounded to nine decimals, so that no library's last bit shows in them. The
  lines are off by less than 1.2e-5.
- Each distribution is drawn with scale 1; the largest normal draw is 6.3, the largest of
  Laplace 22.2. This is noise against recognition, no mechanism of differential privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from statistics import NormalDist
from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator
from pydantic import Field as Parameter

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
from penstock.masks.mask import Mask, Number, Target, Transform

WORD: Final = 52
HALF: Final = 1 << (WORD - 1)
UNIT: Final = 2.0**-WORD

OCTAVES: Final = 32
LAST_OCTAVE: Final = 1 << (OCTAVES - 1)
"""A bit that every word is given, to end the zeros at its end."""
CELLS: Final = 128
LINES: Final = 2 * CELLS
"""Lines in an octave: the cells of the negative half, then those of the positive."""
REST_BITS: Final = WORD - 8
REST: Final = (1 << REST_BITS) - 1

_QUANTILES: Final[Mapping[str, Callable[[float], float]]] = {
    "laplace": lambda p: -math.log(2.0 * p),
    "normal": lambda p: -NormalDist().inv_cdf(p),
}


def draw_word(key: bytes, message: str) -> int:
    """Return the word that a key of 32 bytes draws for a message."""
    return int.from_bytes(sha256(key + message.encode()).digest()[:8]) >> (64 - WORD)


@lru_cache(maxsize=len(_QUANTILES))
def quantile_table(distribution: str) -> tuple[float, ...]:
    """Return the lines of all octaves: where each starts, and its slope per unit of the rest."""
    quantile = _QUANTILES[distribution]
    table: list[float] = []
    for octave in range(OCTAVES):
        width = 2.0 ** -(octave + 2)
        bounds = [width * (1 + cell / CELLS) for cell in range(CELLS + 1)]
        sizes = [round(quantile(p), 9) for p in bounds]
        for sign in (-1.0, 1.0):
            for start, end in pairwise(sizes):
                table += (sign * start, sign * (end - start) * 2.0**-REST_BITS)
    return tuple(table)


def draw_uniform(word: int) -> float:
    """Return a number between -1 and 1, evenly."""
    return ((word - HALF) + 0.5) * UNIT * 2.0


def draw_quantile(word: int, table: tuple[float, ...]) -> float:
    """Return what a word draws from the distribution of a table."""
    ended = word | LAST_OCTAVE
    zeros = (ended ^ (ended - 1)).bit_count() - 1
    line = 2 * (zeros * LINES + (word >> REST_BITS))
    return table[line] + table[line + 1] * float(word & REST)


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
        drawn = (self.distribution, self.mode, float(self.noise).hex(), str(self.seed))
        return target.keys.derive(self.name, target.name, target.label, target.field.type, *drawn)

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
