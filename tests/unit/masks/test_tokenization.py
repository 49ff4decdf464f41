from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from penstock.errors import InvalidError, UsageError
from penstock.masks import Chain, Field, Rejected, Tokenization, read_masks
from tests.support.masks.single_mask import MemoryVault, chain_of, mask_one, problems_of, supply


def tokens(method: str = "pseudonym", **more: Any) -> dict[str, Any]:
    return {"anonymizer": "tokenization", "method": method, **more}


def reverse(chain: Chain, token: Any) -> Any:
    mask, stage = chain.stages[0]
    assert isinstance(mask, Tokenization)
    return mask.reverse(stage.target("x"))(token)


def test_a_pseudonym_is_the_same_for_the_same_value_in_one_field_of_one_view() -> None:
    token = mask_one("string", tokens(), "Hans")
    assert token == mask_one("string", tokens(), "Hans", "another record")
    assert len(token) == 32
    assert set(token) <= set("0123456789abcdef")
    assert token != mask_one("string", tokens(), "hans")
    assert token != mask_one("string", tokens(domain="people"), "Hans")
    other_view = chain_of("string", tokens(), supplies=supply("other")).apply({"x": "Hans"})
    assert other_view != {"x": token}
    schema = {"x": Field.of("string"), "y": Field.of("string")}
    two = Chain(read_masks([{"keys": ["x", "y"], **tokens()}]), schema, supply())
    both = two.apply({"x": "Hans", "y": "Hans"})
    assert isinstance(both, dict)
    assert both["x"] == token
    assert both["y"] != token


def test_pseudonyms_cannot_be_turned_back() -> None:
    with pytest.raises(UsageError, match="nobody can turn back"):
        reverse(chain_of("string", tokens()), "00")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", "Zoë"),
        ("int", -7),
        ("long", 2**60),
        ("boolean", True),
        ("date", date(2020, 2, 29)),
    ],
)
def test_vault_keeps_the_original_sealed(kind: str, value: Any) -> None:
    vault = MemoryVault()
    chain = chain_of(kind, tokens("vault", vault="patients"), supplies=supply(vault=vault))
    assert chain.output["x"].type == "string"
    outcome = chain.apply({"x": value})
    assert isinstance(outcome, dict)
    token = outcome["x"]
    assert list(vault.entries) == [("patients", token)]
    assert str(value).encode() not in vault.entries["patients", token]
    before = dict(vault.entries)
    assert chain.apply({"x": value}) == outcome
    assert vault.entries == before, "a replay puts the same entry"
    assert reverse(chain, token) == value
    assert reverse(chain, "0" * 32) is None


def test_a_vault_without_the_right_key_says_nothing() -> None:
    vault = MemoryVault()
    spec = tokens("vault", vault="patients")
    outcome = chain_of("string", spec, supplies=supply(vault=vault)).apply({"x": "Hans"})
    assert isinstance(outcome, dict)
    assert reverse(chain_of("string", spec, supplies=supply("other", vault)), outcome["x"]) is None
    moved = dict(vault.entries)
    vault.entries[("patients", "1" * 32)] = moved["patients", outcome["x"]]
    assert reverse(chain_of("string", spec, supplies=supply(vault=vault)), "1" * 32) is None


def test_ff1_keeps_format_and_type_and_is_turned_back() -> None:
    chain = chain_of("string", tokens("ff1", alphabet="alphanumeric", keep="-"))
    outcome = chain.apply({"x": "DE-123-abc"})
    assert isinstance(outcome, dict)
    assert outcome["x"] != "DE-123-abc"
    assert [len(part) for part in outcome["x"].split("-")] == [2, 3, 3]
    assert reverse(chain, outcome["x"]) == "DE-123-abc"
    number = chain_of("int", tokens("ff1"))
    assert number.output["x"].type == "int"
    masked = number.apply({"x": 12345678})
    assert isinstance(masked, dict)
    assert reverse(number, masked["x"]) == 12345678


@pytest.mark.parametrize("value", ["12345", "1234567a", "", "é123456789"])
def test_what_does_not_have_the_format_is_rejected(value: str) -> None:
    assert mask_one("string", tokens("ff1"), value) == Rejected(
        "tokenization of 'x': the value does not have the format that FF1 keeps"
    )


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (tokens("vault"), "give both"),
        (tokens(vault="a"), "give both"),
        (tokens(keep="-"), "belong to method: ff1"),
        (tokens("ff1", keep="1"), "keep names characters of the alphabet"),
        (tokens("ff1", alphabet="aa"), "different characters"),
        (tokens("ff1", alphabet="a"), "different characters"),
        (tokens("md5"), r"anonymizers\[0\].method"),
    ],
)
def test_wrong_parameters(spec: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidError, match=problem):
        read_masks([{"keys": ["x"], **spec}])


def test_types_that_ff1_cannot_keep() -> None:
    (found,) = problems_of({"keys": ["x"], **tokens("ff1")}, x="date")
    assert "whose format FF1 cannot keep → use method: pseudonym or vault" in found
    (found,) = problems_of({"keys": ["x"], **tokens("ff1", alphabet="letters")}, x="int")
    assert "its digits are the alphabet" in found


def test_keys_and_vault_must_be_there() -> None:
    with pytest.raises(InvalidError, match="tokenization needs a vault, and there is none"):
        chain_of("string", tokens("vault", vault="patients"))
