"""Formats that FF1 keeps: texts over an alphabet, and whole numbers of a type.

Rules that hold here:
- Characters named in `keep` stay where they are; any other character outside the
  alphabet has no token, so that nothing passes unseen.
- A number keeps its sign and its count of digits, and stays within its type: it is
  encrypted until it does, which is one to one as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock.masks.ff1 import FF1
from penstock.masks.fields import LEAST, MOST, FieldType

DIGITS: Final = "0123456789"
LOWER: Final = "abcdefghijklmnopqrstuvwxyz"
ALPHABETS: Final[Mapping[str, str]] = {
    "digits": DIGITS,
    "letters": LOWER + LOWER.upper(),
    "alphanumeric": DIGITS + LOWER + LOWER.upper(),
}

_Cipher = Callable[[list[int]], list[int] | None]


class TextFormat:
    """Texts over an alphabet, under one key."""

    def __init__(self, key: bytes, alphabet: str, keep: str = "") -> None:
        self._ff1 = FF1(key, len(alphabet))
        self._alphabet = alphabet
        self._numerals = {character: index for index, character in enumerate(alphabet)}
        self._kept = frozenset(keep)

    def encrypt(self, text: str) -> str | None:
        """Return the token of a text, or None where it does not have the format."""
        return self._pass(text, self._ff1.encrypt)

    def decrypt(self, token: str) -> str | None:
        """Return the text of a token, or None where it does not have the format."""
        return self._pass(token, self._ff1.decrypt)

    def _pass(self, text: str, cipher: _Cipher) -> str | None:
        numerals = []
        for character in text:
            numeral = self._numerals.get(character)
            if numeral is not None:
                numerals.append(numeral)
            elif character not in self._kept:
                return None
        made = cipher(numerals)
        if made is None:
            return None
        characters = iter([self._alphabet[numeral] for numeral in made])
        return "".join(
            next(characters) if character in self._numerals else character for character in text
        )


class NumberFormat:
    """Whole numbers of a type, under one key."""

    def __init__(self, key: bytes, kind: FieldType) -> None:
        self._ff1 = FF1(key, 10)
        self._least, self._most = LEAST[kind], MOST[kind]

    def encrypt(self, number: int) -> int | None:
        """Return the token of a number, or None where it has too few digits."""
        return self._walk(number, self._ff1.encrypt)

    def decrypt(self, token: int) -> int | None:
        """Return the number of a token, or None where it has too few digits."""
        return self._walk(token, self._ff1.decrypt)

    def _walk(self, number: int, cipher: _Cipher) -> int | None:
        digits: list[int] | None = [int(digit) for digit in str(abs(number))]
        while digits is not None:
            digits = cipher(digits)
            if digits is not None and digits[0]:
                size = int("".join(map(str, digits)))
                made = -size if number < 0 else size
                if self._least <= made <= self._most:
                    return made
        return None
