"""Sealed credentials open for their user with their key only."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from penstock.config.secrets import KeyFile
from penstock.errors import UnavailableError
from penstock.kafka.credential_vault import CredentialVault
from penstock.kafka.scram import derive

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
