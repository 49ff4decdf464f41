"""Passes that the console logs in with."""

from __future__ import annotations

from penstock.gateway.connection.tokens import (
    PASS_SECONDS,
    check_pass,
    derive_pass_key,
    looks_like_pass,
    make_pass,
)

KEY = derive_pass_key(b"k" * 32)
NOW = 1_000_000.0


def test_a_pass_is_for_one_user_and_ends() -> None:
    made = make_pass(KEY, "nurse", lambda: NOW)
    assert looks_like_pass(made)
    assert check_pass(KEY, "nurse", made, lambda: NOW) == NOW + PASS_SECONDS
    assert check_pass(KEY, "nurse", made, lambda: NOW + PASS_SECONDS) is None
    assert check_pass(KEY, "officer", made, lambda: NOW) is None
    assert check_pass(derive_pass_key(b"x" * 32), "nurse", made, lambda: NOW) is None


def test_nothing_else_is_a_pass() -> None:
    made = make_pass(KEY, "nurse", lambda: NOW)
    later = made.replace(str(int(NOW) + PASS_SECONDS).encode(), b"9999999999")
    for wrong in (
        b"",
        made[:-1],
        made + b"0",
        later,
        made.replace(b":", b";"),
        b"penstock-console:",
    ):
        assert check_pass(KEY, "nurse", wrong, lambda: NOW) is None
    assert not looks_like_pass(None)
    assert not looks_like_pass(b"secret")
    # One that claims to last longer than passes do was made by nobody.
    far = make_pass(KEY, "nurse", lambda: NOW + PASS_SECONDS)
    assert check_pass(KEY, "nurse", far, lambda: NOW) is None
