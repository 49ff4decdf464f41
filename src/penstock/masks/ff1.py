"""FF1: format-preserving encryption by NIST SP 800-38G, of texts and of whole numbers.

Rules that hold here:
- A text of n numerals becomes a text of n numerals, one to one, under key and tweak.
- Revision 1 asks for at least a million possible texts of that length: shorter ones
  would be easy to try out, and are refused.
- Characters named in `keep` stay where they are; any other character outside the
  alphabet has no token, so that nothing passes unseen.
- A number keeps its sign and its count of digits, and stays within its type: it is
  encrypted until it does (cycle walking), which is one to one as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from penstock.masks.fields import LEAST, MOST, FieldType

ROUNDS: Final = 10
MIN_DOMAIN: Final = 1_000_000
MAX_RADIX: Final = 1 << 16
MAX_LENGTH: Final = 256
_BLOCK: Final = 16


class _Shape(NamedTuple):
    """What follows from the length of a text alone."""

    left: int  # numerals in the left half
    left_size: int  # how many texts the left half can be
    right_size: int
    width: int  # bytes that hold the number of a half
    taken: int  # bytes of the pseudorandom stream that are taken in each round
    first: bytes  # the state after the first block
    padding: bytes  # tweak and zeros before the round's number


class FF1:
    """FF1 under one key, radix and tweak."""

    def __init__(self, key: bytes, radix: int, tweak: bytes = b"") -> None:
        if not 2 <= radix <= MAX_RADIX:  # noqa: PLR2004 - the standard's bound
            raise ValueError(f"the radix {radix} is not within 2 and {MAX_RADIX}")
        self.radix = radix
        self.tweak = tweak
        # FF1 is built from the bare block cipher: each call here encrypts single blocks.
        self._encrypt = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update  # noqa: S305
        self._shape = lru_cache(maxsize=MAX_LENGTH)(self._find_shape)

    def encrypt(self, numerals: list[int]) -> list[int] | None:
        """Return the encrypted numerals, or None where there are too few or too many."""
        if not self._fits(len(numerals)):
            return None
        shape = self._shape(len(numerals))
        a, b = self._join(numerals[: shape.left]), self._join(numerals[shape.left :])
        sizes = (shape.left_size, shape.right_size)
        for turn in range(ROUNDS):
            a, b = b, (a + self._stream(shape, turn, b)) % sizes[turn % 2]
        return self._split(a, shape.left) + self._split(b, len(numerals) - shape.left)

    def decrypt(self, numerals: list[int]) -> list[int] | None:
        """Return what was encrypted, or None where there are too few or too many numerals."""
        if not self._fits(len(numerals)):
            return None
        shape = self._shape(len(numerals))
        a, b = self._join(numerals[: shape.left]), self._join(numerals[shape.left :])
        sizes = (shape.left_size, shape.right_size)
        for turn in reversed(range(ROUNDS)):
            a, b = (b - self._stream(shape, turn, a)) % sizes[turn % 2], a
        return self._split(a, shape.left) + self._split(b, len(numerals) - shape.left)

    def _fits(self, length: int) -> bool:
        # A length that is long enough in radix 2 is long enough in any.
        return length <= MAX_LENGTH and (length >= 20 or self.radix**length >= MIN_DOMAIN)  # noqa: PLR2004

    def _find_shape(self, length: int) -> _Shape:
        left = length // 2
        right = length - left
        right_size = self.radix**right
        width = ((right_size - 1).bit_length() + 7) // 8
        header = (
            bytes((1, 2, 1))
            + self.radix.to_bytes(3)
            + bytes((ROUNDS, left % 256))
            + length.to_bytes(4)
            + len(self.tweak).to_bytes(4)
        )
        return _Shape(
            left,
            self.radix**left,
            right_size,
            width,
            4 * ((width + 3) // 4) + 4,
            self._encrypt(header),
            self.tweak + bytes((-len(self.tweak) - width - 1) % _BLOCK),
        )

    def _stream(self, shape: _Shape, turn: int, half: int) -> int:
        """Return the number that a round adds to one half, made from the other."""
        text = shape.padding + bytes((turn,)) + half.to_bytes(shape.width)
        state = shape.first
        for at in range(0, len(text), _BLOCK):
            state = self._encrypt(_xor(state, text[at : at + _BLOCK]))
        stream = state
        for index in range(1, (shape.taken + _BLOCK - 1) // _BLOCK):
            stream += self._encrypt(_xor(state, index.to_bytes(_BLOCK)))
        return int.from_bytes(stream[: shape.taken])

    def _join(self, numerals: list[int]) -> int:
        number = 0
        for numeral in numerals:
            number = number * self.radix + numeral
        return number

    def _split(self, number: int, length: int) -> list[int]:
        numerals = [0] * length
        for index in reversed(range(length)):
            number, numerals[index] = divmod(number, self.radix)
        return numerals


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one) ^ int.from_bytes(other)).to_bytes(_BLOCK)


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
