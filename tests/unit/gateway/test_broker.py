"""Texts that brokers close connections over."""

from __future__ import annotations

import pytest

from penstock.mqtt import are_acceptable


@pytest.mark.parametrize("text", ["", "ward/ann", "Ærøskøbing 病 🏥", "e\u0301", " ", "\u202e"])
def test_plain_texts_are_acceptable(text: str) -> None:
    assert are_acceptable([text, "x"])


@pytest.mark.parametrize(
    "character",
    ["\0", "\x01", "\n", "\x1f", "\x7f", "\x9f", "\ud800", "\ufdd0", "\ufffe", "\U0001ffff",
     "\U0010fffe"],
)  # fmt: skip
def test_control_characters_and_what_is_none_are_not(character: str) -> None:
    assert not are_acceptable(["x", f"ward/{character}x"])
