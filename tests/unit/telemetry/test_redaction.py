from enum import StrEnum

import pytest

from penstock.errors import UsageError
from penstock.telemetry import redaction
from penstock.telemetry.redaction import WITHHELD, Shape


class Colour(StrEnum):
    RED = "red"


class Sly(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "alice@example.org"


@pytest.mark.parametrize(
    ("shape", "value", "printed"),
    [
        (Shape.NUMBER, 7, 7),
        (Shape.NUMBER, -1.5, -1.5),
        (Shape.NUMBER, True, WITHHELD),
        (Shape.NUMBER, float("nan"), WITHHELD),
        (Shape.NUMBER, 10**30, WITHHELD),
        (Shape.NUMBER, "7", WITHHELD),
        (Shape.FLAG, False, False),
        (Shape.FLAG, 1, WITHHELD),
        (Shape.WORD, "tls-1.3", "tls-1.3"),
        (Shape.WORD, Colour.RED, "red"),
        (Shape.WORD, "two words", WITHHELD),
        (Shape.WORD, "alice@example.org", WITHHELD),
        (Shape.WORD, "line\nbreak", WITHHELD),
        (Shape.WORD, "word\n", WITHHELD),
        (Shape.WORD, "\x1b[31mred", WITHHELD),
        (Shape.WORD, "größe", WITHHELD),
        (Shape.WORD, "x" * 81, WITHHELD),
        (Shape.WORD, "", WITHHELD),
        (Shape.WORD, b"bytes", WITHHELD),
        (Shape.WORD, ["list"], WITHHELD),
        (Shape.WORD, Sly("red"), WITHHELD),
        (Shape.WORD, None, None),
    ],
)
def test_a_value_has_the_shape_of_its_field_or_is_withheld(
    shape: Shape, value: object, printed: object
) -> None:
    assert redaction.admit(shape, value) == printed


@pytest.mark.parametrize(
    "name", ["payload", "topic", "client_id", "user_name", "email", "patient_name", "sql"]
)
def test_fields_that_name_people_cannot_be_allowed(name: str) -> None:
    with pytest.raises(UsageError, match="sounds like a person"):
        redaction.allow(name, Shape.WORD)
    assert redaction.shape_of(name) is None


def test_a_field_keeps_its_shape() -> None:
    redaction.allow("epoch", Shape.NUMBER)
    with pytest.raises(UsageError, match="already a number"):
        redaction.allow("epoch", Shape.WORD)


def test_a_field_has_a_plain_name() -> None:
    with pytest.raises(UsageError, match="not a name for a log field"):
        redaction.allow("a b", Shape.WORD)
