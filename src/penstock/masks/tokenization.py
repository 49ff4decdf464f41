"""Tokenization: a value is replaced by a token, which some may turn back.

    method      token                          turned back by
    pseudonym   32 hexadecimal digits          nobody; the same value has the same token
    vault       32 hexadecimal digits          who has the vault and the key
    ff1         the same format as the value   who has the key

Rules that hold here:
- The same value has the same token within its domain: this field of this view, or
  wherever the same `domain` is named.
- A value that does not have the format of FF1 makes the record rejected.
- FF1 is format-preserving encryption by NIST SP 800-38G: a text of n numerals becomes a text of n
  numerals, one to one, under key and tweak.
- Revision 1 asks for at least a million possible texts of that length: shorter ones
  would be easy to try out, and are refused.
- Characters named in `keep` stay where they are; any other character outside the
  alphabet has no token, so that nothing passes unseen.
- A number keeps its sign and its count of digits, and stays within its type: it is
  encrypted until it does (cycle walking), which is one to one as well.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from pydantic import AfterValidator, model_validator
from pydantic import Field as Parameter
from typing_extensions import override

from penstock.errors import Problem, UsageError, quote
from penstock.masks.fields import (
    DISCRETE,
    INTEGERS,
    LEAST,
    MOST,
    TEXTS,
    Field,
    FieldType,
    read_text,
)
from penstock.masks.mask import FieldName, Mask, Target, Transform, check_text
from penstock.masks.supplies import Hierarchy, Seal

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


TOKEN: Final = 32
"""Hexadecimal digits of a pseudonym: 128 bits, so that no two values ever share one."""
MIN_ALPHABET: Final = 2
MAX_ALPHABET: Final = 1024


def _check_alphabet(alphabet: str) -> str:
    check_text(alphabet)
    characters = ALPHABETS.get(alphabet, alphabet)
    if not MIN_ALPHABET <= len(characters) <= MAX_ALPHABET or len(set(characters)) != len(
        characters
    ):
        names = ", ".join(ALPHABETS)
        raise ValueError(f"write {names}, or {MIN_ALPHABET} to {MAX_ALPHABET} different characters")
    return alphabet


class Tokenization(Mask):
    """Replaces values by tokens."""

    name: ClassVar[str] = "tokenization"
    accepts: ClassVar[frozenset[FieldType]] = DISCRETE - {FieldType.TIMESTAMP}
    refusal: ClassVar[str] = "the value does not have the format that FF1 keeps"

    method: Literal["pseudonym", "vault", "ff1"] = Parameter(
        default="pseudonym",
        description="How tokens are made: `pseudonym` by a keyed hash, `vault` the same with "
        "the originals kept sealed, `ff1` by encryption that keeps the format.",
    )
    vault: FieldName | None = Parameter(
        default=None, description="The name of the vault that keeps the originals."
    )
    alphabet: Annotated[str, AfterValidator(_check_alphabet)] = Parameter(
        default="digits",
        max_length=MAX_ALPHABET,
        description="The characters that FF1 replaces by each other: "
        "`digits`, `letters`, `alphanumeric`, or the characters themselves.",
    )
    keep: Annotated[str, AfterValidator(check_text)] = Parameter(
        default="",
        max_length=64,
        description="Characters outside the alphabet that stay where they are, such as `-`.",
    )
    domain: FieldName | None = Parameter(
        default=None,
        description="Fields and views that name the same domain give the same tokens; "
        "left out: this field of this view alone.",
    )

    @model_validator(mode="after")
    def _check_method(self) -> Self:
        if (self.method == "vault") != (self.vault is not None):
            raise ValueError("method: vault and the vault's name go together → give both")
        if self.method != "ff1" and (self.keep or self.alphabet != "digits"):
            raise ValueError("alphabet and keep belong to method: ff1 → leave them out")
        if set(self.keep) & set(self.characters):
            raise ValueError("keep names characters of the alphabet → leave them out of one")
        return self

    @property
    def needs_keys(self) -> bool:
        """All methods have a key."""
        return True

    @property
    def needs_vault(self) -> bool:
        """Only one method keeps the originals."""
        return self.method == "vault"

    @property
    def characters(self) -> str:
        """The characters of the alphabet."""
        return ALPHABETS.get(self.alphabet, self.alphabet)

    @override
    def check_field(
        self, name: str, found: Field, hierarchies: Mapping[str, Hierarchy]
    ) -> Iterator[Problem]:
        """Yield fields whose format FF1 cannot keep."""
        if self.method != "ff1":
            return
        if found.type not in INTEGERS | {FieldType.STRING}:
            message = f"{quote(name)} is {found.type}, whose format FF1 cannot keep"
            yield Problem("method", message, "use method: pseudonym or vault")
        elif found.type in INTEGERS and (self.keep or self.alphabet != "digits"):
            message = f"{quote(name)} is {found.type}: its digits are the alphabet"
            yield Problem("alphabet", message, "leave alphabet and keep out")

    def output(self, found: Field) -> Field:
        """FF1 keeps the type; other tokens are text."""
        return found if self.method == "ff1" else found.as_type(FieldType.STRING)

    def key(self, target: Target, *labels: str) -> bytes:
        """Return a key of this mask's domain."""
        if self.domain is not None:
            return target.keys.derive_shared(self.name, self.domain, self.method, *labels)
        return target.keys.derive(self.name, target.name, self.method, *labels)

    def seal(self, target: Target) -> Seal:
        """Return the seal of the vault."""
        parts = [self.key(target, part) for part in ("encryption", "authentication")]
        return Seal(str(self.vault), parts[0], parts[1])

    def format(self, target: Target) -> TextFormat | NumberFormat:
        """Return the format that FF1 keeps."""
        key, kind = self.key(target), target.field.type
        if kind in INTEGERS:
            return NumberFormat(key, kind)
        return TextFormat(key, self.characters, self.keep)

    def transform(self, target: Target) -> Transform:
        """Return the function from values to tokens."""
        if self.method == "ff1":
            encrypt: Callable[[Any], Any] = self.format(target).encrypt
            return lambda value, _: encrypt(value)
        key, write = self.key(target), TEXTS[target.field.type]
        if self.method == "pseudonym":
            return lambda value, _: make_token(key, write(value))
        seal, vault, title = self.seal(target), target.supplies.require_vault(), str(self.vault)

        def store(value: Any, _: str) -> str:
            text = write(value)
            token = make_token(key, text)
            vault.put(title, {token: seal.close(token, text)})
            return token

        return store

    def reverse(self, target: Target) -> Callable[[Any], Any]:
        """Return the function from tokens back to values; None for a token that is not ours.

        Whoever calls it has made sure that the caller has the right, and that it is audited.
        """
        if self.method == "ff1":
            decrypt: Callable[[Any], Any] = self.format(target).decrypt
            return decrypt
        if self.method == "pseudonym":
            raise UsageError(
                f"tokens of {quote(target.name)} are pseudonyms, which nobody can turn back",
                fix="declare method: vault or method: ff1 where originals are needed again",
            )
        seal, vault, title = self.seal(target), target.supplies.require_vault(), str(self.vault)

        def look_up(token: Any) -> Any:
            sealed = vault.get(title, token)
            text = None if sealed is None else seal.open(token, sealed)
            return None if text is None else read_text(target.field.type, text)

        return look_up


def make_token(key: bytes, text: str) -> str:
    """Return the pseudonym of a text."""
    return hmac.digest(key, text.encode(), "sha256").hex()[:TOKEN]
