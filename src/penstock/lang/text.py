"""What strings mean, where Python and the JVM would differ by themselves.

Rules that hold here:
- A string is a sequence of Unicode characters (code points without surrogates);
  anything else that Python calls `str` is no value.
- `lower` maps one code point to one code point, whatever stands beside it, and only
  where both were assigned in Unicode 3.2. Full lower-casing depends on the Unicode version of
  each runtime; case pairs that old are frozen by Unicode's stability policy, so every
  Python and every JVM agrees on them.
- The levels of a topic are what stands between its slashes.
"""

from __future__ import annotations

import unicodedata
from typing import Final


def is_text(value: str) -> bool:
    """Tell whether a str is free of surrogates, so that it has a UTF-8 form."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _build_lower_table() -> dict[int, int]:
    table = {}
    for code in range(0x10500):  # no capital letter of Unicode 3.2 lies beyond
        character = chr(code)
        small = character.lower()
        pair = len(small) == 1 and small != character
        if pair and all(unicodedata.ucd_3_2_0.category(c) != "Cn" for c in (character, small)):
            table[code] = ord(small)
    return table


LOWER: Final = _build_lower_table()


def lower(value: str) -> str:
    """Return the string with each capital letter replaced by its small one."""
    return value.lower() if value.isascii() else value.translate(LOWER)


def includes(topic: str, word: str) -> bool:
    """Tell whether one level of a topic equals or contains a word."""
    return "/" not in word and word in topic
