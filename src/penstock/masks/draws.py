"""Draws from distributions that give the same bits in Python and in Spark.

    word (52 bits of a keyed hash) → u = (word + ½) / 2⁵², never 0 or 1 ┬→ uniform: 2u - 1
                                                                        ├→ Laplace: ± -ln 2p
                                                                        └→ normal:  ± -Φ⁻¹(p)

where p is the smaller of u and 1 - u, and the half of u gives the sign.

Rules that hold here:
- Logarithms differ in their last bits between C and Java, so quantiles come from a table,
  with straight lines between its entries: each octave of p has 256 cells of equal width.
  What is left is arithmetic that IEEE 754 defines to the last bit.
- Entries are rounded to nine decimals, so that no library's last bit shows in them. The
  lines are off by less than 3e-6.
- Each distribution is drawn with scale 1; the largest normal draw is 8.2, the largest of
  Laplace 36. This is noise against recognition, no mechanism of differential privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from statistics import NormalDist
from typing import Final

WORD: Final = 52
HALF: Final = 1 << (WORD - 1)
LAST: Final = (1 << WORD) - 1
UNIT: Final = 2.0**-WORD

CELL_BITS: Final = 8
CELLS: Final = 1 << CELL_BITS
REST_BITS: Final = WORD - 1 - CELL_BITS
REST: Final = (1 << REST_BITS) - 1
REST_UNIT: Final = 2.0**-REST_BITS

_QUANTILES: Final[Mapping[str, Callable[[float], float]]] = {
    "laplace": lambda p: -math.log(2.0 * p),
    "normal": lambda p: -NormalDist().inv_cdf(p),
}


@lru_cache(maxsize=len(_QUANTILES))
def quantile_table(distribution: str) -> tuple[float, ...]:
    """Return the quantiles of p at the bounds of all cells, from 2⁻⁵³ to ½."""
    quantile = _QUANTILES[distribution]
    bounds = [
        (CELLS + cell) / (2 * CELLS) * 2.0 ** (octave - WORD)
        for octave in range(WORD)
        for cell in range(CELLS)
    ]
    return tuple(round(quantile(p), 9) for p in (*bounds, 0.5))


def draw_uniform(word: int) -> float:
    """Return a number between -1 and 1, evenly."""
    return ((word - HALF) + 0.5) * UNIT * 2.0


def draw_quantile(word: int, table: tuple[float, ...]) -> float:
    """Return the quantile of a word in a table, with the sign of its half."""
    odd = 2 * min(word, LAST - word) + 1  # p is odd / 2⁵³
    bits = odd.bit_length()
    shifted = odd << (WORD - bits)
    index = (bits - 1) * CELLS + (shifted >> REST_BITS) - CELLS
    size = table[index] + (table[index + 1] - table[index]) * ((shifted & REST) * REST_UNIT)
    return size if word >= HALF else -size
