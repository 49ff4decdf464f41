import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from penstock.config.secrets import SecretFile, SecretVariable
from penstock.errors import UnavailableError, UsageError
from penstock.store.audit.signatures import (
    Head,
    PublicKeys,
    Signer,
    TamperedError,
    load_head,
    public_path,
    save_head,
)

SIGNER = Signer.generate()
HEAD = SIGNER.sign(3, b"r" * 32, 5)


def test_a_good_signature_is_believed() -> None:
    SIGNER.public_keys.check(HEAD)


@pytest.mark.parametrize(
    "forged",
    [
        replace(HEAD, size=4),
        replace(HEAD, root=b"s" * 32),
        replace(HEAD, time=6),
        replace(HEAD, signature=bytes(64)),
        replace(HEAD, signature=b""),
    ],
)
def test_any_change_is_noticed(forged: Head) -> None:
    with pytest.raises(TamperedError, match="signature of the head of size"):
        SIGNER.public_keys.check(forged)


def test_the_signature_of_another_key_is_not_believed() -> None:
    other = Signer.generate().sign(3, b"r" * 32, 5)
    with pytest.raises(TamperedError, match=f"not known: {other.key}"):
        SIGNER.public_keys.check(other)
    with pytest.raises(TamperedError, match="signature of the head"):
        SIGNER.public_keys.check(replace(other, key=SIGNER.key))


def test_a_head_survives_as_json(tmp_path: Path) -> None:
    save_head(tmp_path / "a.head", HEAD)
    assert load_head(tmp_path / "a.head") == HEAD
    assert [path.name for path in tmp_path.iterdir()] == ["a.head"]


@pytest.mark.parametrize(
    "change",
    [
        {"size": -1},
        {"size": "3"},
        {"root": "abc"},
        {"root": 5},
        {"signature": "zz" * 64},
        {"key": None},
        {"time": None},
    ],
)
def test_what_is_no_head_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="not a head"):
        Head.from_document(HEAD.as_document() | change)


@pytest.mark.parametrize("document", [None, [], "head", 5, {}])
def test_other_json_is_refused(document: Any) -> None:
    with pytest.raises(UsageError, match="not a head"):
        Head.from_document(document)


def test_a_head_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"missing\.head"):
        load_head(tmp_path / "missing.head")
    (tmp_path / "x.head").write_text("{")
    with pytest.raises(UnavailableError, match="not JSON"):
        load_head(tmp_path / "x.head")


def test_a_missing_key_is_created_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = SecretFile(tmp_path / "keys" / "audit-signing.key")
    signer = Signer.open(secret)
    said = capsys.readouterr().err
    assert "created the key that signs the audit log" in said
    assert signer.key in said
    assert secret.path.stat().st_mode & 0o777 == 0o600
    assert PublicKeys.load(public_path(secret.path)).ids == [signer.key]
    assert Signer.open(secret).key == signer.key
    assert capsys.readouterr().err == ""


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    secret = SecretFile(tmp_path / "audit-signing.key")
    Signer.open(secret)
    secret.path.chmod(0o644)
    with pytest.raises(UnavailableError, match="others can read it"):
        Signer.open(secret)


def test_a_change_of_keys_keeps_the_old_public_key(tmp_path: Path) -> None:
    secret = SecretFile(tmp_path / "audit-signing.key")
    old = Signer.open(secret)
    head = old.sign(1, b"r" * 32, 1)
    secret.path.unlink()
    new = Signer.open(secret)
    assert new.key != old.key
    assert new.public_keys.ids == [old.key, new.key]
    new.public_keys.check(head)
    assert PublicKeys.load(public_path(secret.path)).ids == [old.key, new.key]


def test_the_key_can_stand_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = SecretFile(tmp_path / "audit-signing.key")
    signer = Signer.open(secret)
    monkeypatch.setenv("TEST_AUDIT_KEY", secret.path.read_text())
    assert Signer.open(SecretVariable("TEST_AUDIT_KEY")).key == signer.key


def test_what_is_no_private_key_is_refused_and_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "audit-signing.key"
    path.touch(mode=0o600)
    path.write_text("my secret words")
    with pytest.raises(UnavailableError, match="holds no Ed25519 private key") as raised:
        Signer.open(SecretFile(path))
    assert "my secret" not in str(raised.value)


def test_public_keys_are_only_ed25519(tmp_path: Path) -> None:
    other = generate_private_key(SECP256R1()).public_key()
    form = (forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)
    for text in (b"", b"hello", other.public_bytes(*form), b"-----BEGIN PUBLIC KEY-----\nx\n"):
        with pytest.raises(UsageError, match="holds no Ed25519 public key"):
            PublicKeys.parse(text, "test")
    both = other.public_bytes(*form) + SIGNER.public_keys.pem().encode()
    with pytest.raises(UsageError, match="or others beside"):
        PublicKeys.parse(both, "test")
    with pytest.raises(UnavailableError, match="cannot be read"):
        PublicKeys.load(tmp_path / "missing.pub")


def test_what_is_signed_is_documented() -> None:
    data = json.dumps(
        {"key": HEAD.key, "root": HEAD.root.hex(), "size": 3, "time": 5}, separators=(",", ":")
    )
    assert HEAD.signed_bytes() == b"penstock audit head v1\0" + data.encode()
