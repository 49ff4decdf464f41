"""Keys of domains: what they sign, and that purposes keep signatures apart."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from penstock.errors import UsageError
from penstock.trust.keys import DomainKey, check_key, fingerprint, generate_pem, verify

PEM = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def test_a_signature_is_for_one_purpose_one_statement_and_one_key() -> None:
    key, other = DomainKey.generate(), DomainKey.generate()
    made = key.sign(b"one", {"a": 1})
    assert verify(key.key, b"one", {"a": 1}, made)
    assert not verify(key.key, b"two", {"a": 1}, made)
    assert not verify(key.key, b"one", {"a": 2}, made)
    assert not verify(other.key, b"one", {"a": 1}, made)
    assert not verify("00", b"one", {"a": 1}, made)
    assert not verify(key.key, b"one", {"a": 1}, "")


def test_a_key_reads_back_and_is_never_shown() -> None:
    pem = generate_pem()
    key = DomainKey.parse(pem, "the file")
    assert DomainKey.parse(pem, "the file").key == key.key
    assert key.seed().hex() not in f"{key!r} {key} {fingerprint(key.key)}"


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----",
        x25519.X25519PrivateKey.generate().private_bytes(*PEM),
        ed25519.Ed25519PrivateKey.generate().private_bytes(*PEM)[:60],
    ],
    ids=["nothing", "empty", "another-kind", "cut"],
)
def test_what_is_no_private_key_is_refused_without_quoting_it(pem: bytes) -> None:
    with pytest.raises(UsageError, match=r"keys/domain\.key") as refused:
        DomainKey.parse(pem, "keys/domain.key")
    assert "BEGIN" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "0" * 63, "G" * 64, "A" * 64])
def test_what_is_no_public_key_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a public key"):
        check_key(text)
