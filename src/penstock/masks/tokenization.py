"""Tokenization: a value is replaced by a token, which some may turn back.

    method      token                          turned back by
    pseudonym   32 hexadecimal digits          nobody; the same value has the same token
    vault       32 hexadecimal digits          who has the vault and the key
    ff1         the same format as the value   who has the key

Rules that hold here:
- The same value has the same token within its domain: this field of this view, or
  wherever the same `domain` is named.
- A value that does not have the format of FF1 makes the record rejected.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, model_validator
from pydantic import Field as Parameter
from typing_extensions import override

from penstock.errors import Problem, UsageError, quote
from penstock.masks.ff1 import ALPHABETS, NumberFormat, TextFormat
from penstock.masks.fields import DISCRETE, INTEGERS, TEXTS, Field, FieldType, read_text
from penstock.masks.mask import FieldName, Mask, Target, Transform, check_text
from penstock.masks.supplies import Hierarchy, Seal

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
