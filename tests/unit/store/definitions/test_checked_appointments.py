"""Appointments are signed at the one door, and believed for what they say alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.secrets import SecretFile
from penstock.errors import DeniedError
from penstock.model.document import Document, Key
from penstock.model.kinds import Appointment
from penstock.store.audit.signatures import PublicKeys, Signer, load_public_keys
from penstock.store.database import Database
from penstock.store.definitions.checked import (
    CheckedDefinitions,
    is_signed,
    sign_documents,
    trust_keys,
)
from penstock.store.definitions.history import Definitions

BODY = {"credential": 'treats("ann", "p1")', "holder": "user:ann"}
PLAIN = Document("appointment", "t", BODY)


def read(document: Document) -> Appointment:
    return Appointment.model_validate({"name": document.name, **document.body})


def test_a_signature_fits_one_appointment_and_one_key() -> None:
    signer = Signer.generate()
    (signed,) = sign_documents([PLAIN], signer)
    assert is_signed(read(signed), signer.public_keys)
    assert sign_documents([PLAIN], signer) == [signed]  # the same again: nothing changes
    assert sign_documents([signed], signer) == [signed]
    assert not is_signed(read(PLAIN), signer.public_keys)
    assert not is_signed(read(signed), Signer.generate().public_keys)
    for change in (
        {"credential": 'treats("ann", "p2")'},
        {"holder": "user:eve"},
        {"valid_until": "2099-01-01T00:00:00Z"},
        {"signature": "0" * 32 + ":" + "0" * 128},
        {"signature": "nonsense"},
    ):
        forged = Document("appointment", "t", {**signed.body, **change})
        assert not is_signed(read(forged), signer.public_keys)
        with pytest.raises(DeniedError, match="applying it signs it"):
            sign_documents([forged], signer)
    renamed = Document("appointment", "u", signed.body)
    assert not is_signed(read(renamed), signer.public_keys)


def test_what_is_no_appointment_is_left_to_the_check() -> None:
    wrong = Document("appointment", "t", {"credential": "(", "holder": "x"})
    other = Document("role", "r", {})
    assert sign_documents([wrong, other], Signer.generate()) == [wrong, other]


def test_keys_are_loaded_with_the_first_appointment() -> None:
    signer = Signer.generate()
    loaded: list[int] = []

    def load() -> PublicKeys:
        loaded.append(1)
        return signer.public_keys

    trusts = trust_keys(load)
    assert not loaded
    (signed,) = sign_documents([PLAIN], signer)
    assert [trusts(read(signed)), trusts(read(PLAIN)), trusts(read(signed))] == [True, False, True]
    assert loaded == [1]


def test_public_keys_are_read_without_making_a_key(tmp_path: Path) -> None:
    secret = SecretFile(tmp_path / "k.key")
    assert load_public_keys(secret).ids == []
    assert not secret.path.exists()
    signer = Signer.open(secret)
    assert load_public_keys(secret).ids == [signer.key]
    (tmp_path / "k.pub").unlink()
    assert load_public_keys(secret).ids == [signer.key]


def test_the_store_signs_what_is_applied(database: Database) -> None:
    signer = Signer.generate()
    checked = CheckedDefinitions(Definitions(database), signer=signer)
    checked.apply([PLAIN], actor="officer")
    snapshot, meaning = checked.current()
    (held,) = meaning.of(Appointment).values()
    assert is_signed(held, signer.public_keys)
    assert meaning.trusts(held)
    assert checked.apply([PLAIN], actor="officer").is_empty
    checked.edit(
        lambda _: {Key("appointment", "u"): Document("appointment", "u", BODY)}, actor="officer"
    )
    _, meaning = checked.current()
    assert all(map(meaning.trusts, meaning.of(Appointment).values()))
    _, unknown = CheckedDefinitions(Definitions(database)).current()
    assert not any(map(unknown.trusts, unknown.of(Appointment).values()))
    assert snapshot.epoch == 1
