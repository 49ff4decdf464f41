"""Purposes, their sets, and compatibility."""

from __future__ import annotations

import pytest

from penstock.model.purposes import (
    ALLOWS,
    PROHIBITS,
    PURPOSE_LIMIT,
    SET_LIMIT,
    SILENT,
    PurposeError,
    PurposeSet,
    check_purpose,
    lineage,
    read_purposes,
)
from tests.support.policy.purpose_sets import parse_purposes


@pytest.mark.parametrize(
    "text", ["billing", "a/b/c", "öffentlich", "two words", "x" * PURPOSE_LIMIT]
)
def test_purposes_that_stand(text: str) -> None:
    assert check_purpose(text) == text


@pytest.mark.parametrize(
    "text",
    ["", "/", "a/", "/a", "a//b", " a", "a ", "a,b", "a|b", "{a", "a}", "a/#", "+", "a\0", "a\n"],
)
def test_purposes_that_do_not(text: str) -> None:
    with pytest.raises(PurposeError) as caught:
        check_purpose(text)
    assert caught.value.fix


def test_a_purpose_has_a_limit() -> None:
    with pytest.raises(PurposeError, match="characters"):
        check_purpose("x" * (PURPOSE_LIMIT + 1))


def test_the_lineage_goes_up() -> None:
    assert lineage("a/b/c") == ("a/b/c", "a/b", "a")
    assert lineage("a") == ("a",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", None),
        ("{|}", PurposeSet()),
        ("{|x}", PurposeSet.of(pip=["x"])),
        ("{a}", PurposeSet.of(["a"])),
        ("{a|}", PurposeSet.of(["a"])),
        ("{b,a/c|x,y/z}", PurposeSet.of(["a/c", "b"], ["x", "y/z"])),
        ("{a,a}", PurposeSet.of(["a"])),
    ],
)
def test_reading_sets(text: str, expected: PurposeSet | None) -> None:
    assert parse_purposes(text) == expected


@pytest.mark.parametrize("text", ["{,}", "{a,}", "{a|b|c}", "{ a}", "{a|,}"])
def test_malformed_sets_are_refused(text: str) -> None:
    with pytest.raises(PurposeError):
        parse_purposes(text)


def test_other_characters_can_be_chosen() -> None:
    read = read_purposes("a;b!c", divider="!", separator=";")
    assert read == PurposeSet.of(["a", "b"], ["c"])


def test_a_set_prints_in_one_way() -> None:
    assert str(PurposeSet()) == "{|}"
    assert str(PurposeSet.of(["b", "a"])) == "{a,b}"
    assert str(PurposeSet.of(pip=["x"])) == "{|x}"
    assert str(PurposeSet.of(["b"], ["x", "w"])) == "{b|w,x}"


@pytest.mark.parametrize(
    ("ap", "effect"),
    [
        ("marketing", ALLOWS),
        ("marketing/newsletter", ALLOWS),
        ("marketing/individualized", PROHIBITS),
        ("marketing/individualized/email", PROHIBITS),
        ("operational/billing", ALLOWS),
        ("research", SILENT),
        ("market", SILENT),
        ("marketingx", SILENT),
        (None, SILENT),
    ],
)
def test_the_car_sharing_reservation(ap: str | None, effect: int) -> None:
    purposes = parse_purposes("{operational,marketing|marketing/individualized}")
    assert purposes is not None
    assert purposes.effect(ap) == effect
    assert purposes.compatible(ap) is (effect == ALLOWS)


def test_prohibitions_only_is_not_for_nobody() -> None:
    assert PurposeSet.of(pip=["x"]).prohibits_only
    assert not PurposeSet().prohibits_only
    assert not PurposeSet.of(["a"], ["x"]).prohibits_only


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("{x}", "{x/y}", "{x/y}"),
        ("{x}", "{z}", "{|}"),
        ("{x}", "{y|z}", "{|}"),  # not {|z}: that would admit everything but z
        ("{x}", "{|x/y}", "{x|x/y}"),
        ("{|x}", "{|y}", "{|x,y}"),
        ("{|}", "{|y}", "{|}"),
        ("{x|x/a}", "{x/a,x/b|x/c}", "{x/a,x/b|x/a,x/c}"),
    ],
)
def test_narrowing(one: str, other: str, expected: str) -> None:
    left, right = parse_purposes(one), parse_purposes(other)
    assert left is not None
    assert right is not None
    assert str(left.narrow(right)) == expected


def test_a_set_has_a_limit() -> None:
    PurposeSet.of(f"p{n}" for n in range(SET_LIMIT))
    with pytest.raises(PurposeError, match="too large"):
        PurposeSet.of(f"p{n}" for n in range(SET_LIMIT + 1))
