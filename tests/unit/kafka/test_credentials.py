"""SCRAM against the example of RFC 7677, and against a broker that lies.

Sealed credentials open for their user with their key only.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from penstock.config.secrets import KeyFile
from penstock.errors import UnavailableError, UsageError
from penstock.kafka.credentials import CredentialVault, Login, LoginRefusedError, derive

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)


def login() -> Login:
    return Login("SCRAM-SHA-256", "user", "pencil", nonce=NONCE)


def test_the_example_of_the_standard() -> None:
    example = login()
    assert example.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    final = example.final(SERVER_FIRST)
    assert final.endswith(b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    example.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    "first",
    [
        b"r=another,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        SERVER_FIRST.replace(b"4096", b"0"),
        SERVER_FIRST.replace(b"4096", b"99999999"),
        SERVER_FIRST.replace(b"4096", b"many"),
        SERVER_FIRST.replace(b"W22ZaJ0SNY7soEsUEjb6gQ==", b"x"),
        b"",
        b"\xff\xfe",
    ],
)
def test_a_strange_answer_is_refused(first: bytes) -> None:
    with pytest.raises(LoginRefusedError, match="nonsense"):
        login().final(first)


@pytest.mark.parametrize("final", [b"v=AAAA", b"e=other-error", b"", b"v=x"])
def test_a_broker_that_cannot_prove_itself_is_refused(final: bytes) -> None:
    example = login()
    example.final(SERVER_FIRST)
    with pytest.raises(LoginRefusedError):
        example.check(final)


def test_names_are_escaped() -> None:
    assert b"n=a=2Cb=3Dc," in Login("SCRAM-SHA-512", "a,b=c", "x").first()


def test_salts_differ_and_nothing_is_shown() -> None:
    one, other = (derive("secret", "SCRAM-SHA-512", 4096) for _ in range(2))
    assert one.salt != other.salt
    assert one.salted != other.salted
    assert "salted" not in repr(one)


@pytest.mark.parametrize("password", ["", "x" * 1025])
def test_a_password_has_a_length(password: str) -> None:
    with pytest.raises(UsageError):
        derive(password, "SCRAM-SHA-512", 4096)


CREDENTIAL = derive("secret", "SCRAM-SHA-512", 4096)


def test_what_was_sealed_opens_for_the_same_user(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "key")
    sealed = CredentialVault.open(file).seal("alice", CREDENTIAL)
    assert CredentialVault.open(file).unseal("alice", sealed) == CREDENTIAL
    assert CREDENTIAL.salted not in sealed.sealed


def test_nothing_else_opens(tmp_path: Path) -> None:
    vault = CredentialVault.open(KeyFile(tmp_path / "key"))
    sealed = vault.seal("alice", CREDENTIAL)
    moved = dataclasses.replace(sealed, mechanism="SCRAM-SHA-256")
    bent = dataclasses.replace(sealed, sealed=sealed.sealed[:-1] + b"?")
    for user, found in (("bob", sealed), ("alice", moved), ("alice", bent)):
        with pytest.raises(UnavailableError, match=f"of '{user}' does not open"):
            vault.unseal(user, found)
    with pytest.raises(UnavailableError):
        CredentialVault(b"another key").unseal("alice", sealed)
