from __future__ import annotations

import string

import pytest

from penstock.masks.fields import FieldType
from penstock.masks.tokenization import FF1, NumberFormat, TextFormat

SHORT = "2B7E151628AED2A6ABF7158809CF4F3C"
MIDDLE = SHORT + "EF4359D8D580AA4F"
LONG = MIDDLE + "7F036D6F04FC6A94"
DIGITS, MIXED = "0123456789", "0123456789abcdefghi"
TEN, ELEVEN = "39383736353433323130", "3737373770717273373737"
ALPHABET = string.digits + string.ascii_lowercase

# The nine FF1 samples that NIST publishes with SP 800-38G.
SAMPLES = [
    (SHORT, "", DIGITS, "2433477484"),
    (SHORT, TEN, DIGITS, "6124200773"),
    (SHORT, ELEVEN, MIXED, "a9tv40mll9kdu509eum"),
    (MIDDLE, "", DIGITS, "2830668132"),
    (MIDDLE, TEN, DIGITS, "2496655549"),
    (MIDDLE, ELEVEN, MIXED, "xbj3kv35jrawxv32ysr"),
    (LONG, "", DIGITS, "6657667009"),
    (LONG, TEN, DIGITS, "1001623463"),
    (LONG, ELEVEN, MIXED, "xs8a0azh2avyalyzuwd"),
]


@pytest.mark.parametrize(("key", "tweak", "plain", "encrypted"), SAMPLES)
def test_published_samples(key: str, tweak: str, plain: str, encrypted: str) -> None:
    radix = 36 if plain == MIXED else 10
    ff1 = FF1(bytes.fromhex(key), radix, bytes.fromhex(tweak))
    numerals = [ALPHABET.index(character) for character in plain]
    made = ff1.encrypt(numerals)
    assert made is not None
    assert "".join(ALPHABET[numeral] for numeral in made) == encrypted
    assert ff1.decrypt(made) == numerals


def test_texts_that_are_easy_to_try_out_are_refused() -> None:
    ff1 = FF1(bytes(32), 10)
    assert ff1.encrypt([1] * 5) is None
    assert ff1.encrypt([1] * 6) is not None
    assert FF1(bytes(32), 2).encrypt([1] * 19) is None
    assert FF1(bytes(32), 2).encrypt([1] * 20) is not None
    assert ff1.decrypt([]) is None
    assert ff1.encrypt([1] * 257) is None


def test_radix_within_the_standard() -> None:
    with pytest.raises(ValueError, match="radix 1 "):
        FF1(bytes(32), 1)


def test_text_keeps_its_format() -> None:
    format_ = TextFormat(bytes(32), string.digits, "- ")
    token = format_.encrypt("4111-1111 1111-1313")
    assert token is not None
    assert [c if c in "- " else "9" for c in token] == list("9999-9999 9999-9999")
    assert token != "4111-1111 1111-1313"  # noqa: S105 - a number to mask, no password
    assert format_.decrypt(token) == "4111-1111 1111-1313"


def test_text_outside_the_alphabet_has_no_token() -> None:
    format_ = TextFormat(bytes(32), string.digits, "-")
    assert format_.encrypt("DE-123456789") is None
    assert format_.encrypt("١٢٣٤٥٦٧٨٩") is None
    assert format_.encrypt("---") is None


@pytest.mark.parametrize("number", [100_000, -100_000, 999_999, 2**31 - 1, -(2**31), 123_456_789])
def test_number_keeps_sign_digits_and_type(number: int) -> None:
    format_ = NumberFormat(bytes(32), FieldType.INT)
    token = format_.encrypt(number)
    assert token is not None
    assert token != number
    assert (len(str(token)), token < 0) == (len(str(number)), number < 0)
    assert -(2**31) <= token < 2**31
    assert format_.decrypt(token) == number


def test_number_with_few_digits_has_no_token() -> None:
    assert NumberFormat(bytes(32), FieldType.LONG).encrypt(99_999) is None
