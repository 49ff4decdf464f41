"""FF1: encryption that keeps the format, by NIST SP 800-38G.

Rules that hold here:
- A text of n numerals becomes a text of n numerals, one to one, under key and tweak.
- Revision 1 asks for at least a million possible texts of that length: shorter ones
  would be easy to try out, and are refused.
- Numerals are ints below the radix; what characters they are is the caller's matter.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

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
