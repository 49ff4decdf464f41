"""Receipts of choices: genuine as they were signed, and under no other form or key."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.definitions import DefinitionSet, read_text
from penstock.errors import InvalidError, UsageError
from penstock.rights.accountability import PURPOSE, make_receipt, verify_receipt
from penstock.store.audit.signatures import PublicKeys, Signer

TEXT = """
{kind: purpose, name: marketing, dpv: "dpv:Marketing"}
---
{kind: purpose, name: marketing/age, dpv: "https://w3id.org/dpv#TargetedAdvertising"}
---
{kind: control, name: ads, stateful: true, purposes: [marketing], categories: [age, gender]}
---
{kind: control, name: forget, stateful: false, operation: delete}
"""
SIGNER = Signer.generate()


def make(**changed: Any) -> dict[str, Any]:
    row = {
        "id": "0" * 32, "publisher": "portal", "control": "ads", "action": "opt-out",
        "categories": "[]", "at": datetime(2026, 1, 1, tzinfo=UTC), "epoch": 7,
    } | changed  # fmt: skip
    definitions = DefinitionSet.build(read_text(TEXT).documents)
    return make_receipt(SimpleNamespace(**row), "Jörg", definitions, SIGNER)


def test_it_says_what_was_chosen_and_what_that_meant() -> None:
    found = make()
    assert verify_receipt(found, SIGNER.public_keys)
    assert found["purposes"] == [{"name": "marketing", "dpv": "dpv:Marketing"}]
    assert (found["choice"], found["subject"], found["epoch"]) == ("opt-out", "Jörg", 7)
    (part,) = make(categories='["age", "gender"]')["purposes"]
    assert part["dpv"].endswith("#TargetedAdvertising")
    with pytest.raises(UsageError, match="choices alone"):
        make(control="forget", action="delete")


@given(st.sampled_from(sorted(make())), st.one_of(st.none(), st.text(), st.integers()))
def test_whatever_is_changed_it_is_genuine_no_more(name: str, value: object) -> None:
    found = make()
    changed = {**found, name: value}
    assert verify_receipt(changed, SIGNER.public_keys) == (changed == found)
    less = {key: it for key, it in found.items() if key != name}
    assert not verify_receipt(less, SIGNER.public_keys)
    assert not verify_receipt({**found, "more": value}, SIGNER.public_keys)


def test_no_other_key_and_no_other_kind_of_signature_counts() -> None:
    other = Signer.generate()
    assert not verify_receipt(make(), other.public_keys)
    assert not verify_receipt(make(), PublicKeys())
    statement = b"x"
    signature = SIGNER.sign_statement(b"other", statement)
    assert SIGNER.public_keys.verify_statement(SIGNER.key, b"other", statement, signature)
    assert not SIGNER.public_keys.verify_statement(SIGNER.key, PURPOSE, statement, signature)
    assert not SIGNER.public_keys.verify_statement(SIGNER.key, b"othe", b"r" + statement, signature)


@pytest.mark.parametrize("dpv", ["marketing", "dpv:", "http://w3id.org/dpv#A", "dpv:A b", "#A"])
def test_identifiers_of_the_vocabulary_have_its_form(dpv: str) -> None:
    with pytest.raises(InvalidError, match="Data Privacy Vocabulary"):
        DefinitionSet.build(read_text(TEXT.replace("dpv:Marketing", dpv)).documents)
