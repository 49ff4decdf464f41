"""Signed heads: who signs the log, who may be believed, what a signature says, what can be wrong.

The messages name entries by number, sizes and key ids, never people: they are safe to log.

A head is the size and the root of the tree at a time, signed with Ed25519. One root
speaks for all entries below it, so one signature speaks for the whole log.

Rules that hold here:
- The private key is a PEM file of mode 0600 or an environment variable. Where the file
  is missing it is created, which is logged; it is never replaced.
- Beside the file `X.key` stands `X.pub`: every public key this log has been signed
  with, for auditors and for the time after a change of keys. Only keys named there, or
  given by the auditor, are believed.
- What is signed begins with its purpose, so that no other signature of the same key
  can pass for a head.
- A head is also kept in a file, outside the database. Whoever holds the database alone can
  set the log back to an older signed state; the log has to extend the head in the file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from penstock.config.secrets import Secret, SecretFile
from penstock.errors import PenstockError, UnavailableError, UsageError, quote
from penstock.store.audit.merkle import EMPTY_ROOT
from penstock.telemetry import get_logger, safe_text


@safe_text
class TamperedError(PenstockError):
    """The log, a head or a proof is not what was signed."""

    exit_code: ClassVar[int] = 1


@safe_text
class UncertainAppendError(UnavailableError):
    """The database failed while entries were being committed: they may be in the log or not."""

    def __init__(self, size: int, root: bytes) -> None:
        super().__init__(
            f"the database failed while the audit log was growing to {size} entries",
            fix="ask AuditLog.holds before appending them again",
        )
        self.size = size
        self.root = root


@safe_text
class AuditFullError(UnavailableError):
    """The queue of the audit writer has no room: what cannot be recorded must not happen."""


@safe_text
class AuditStoppedError(UnavailableError):
    """The audit writer takes no entries any more."""


FINDINGS_LIMIT = 20


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One thing that is not as it was signed."""

    message: str
    entry: int | None = None  # the first entry it is about
    until: int | None = None  # where that is only known to lie in a range: its last entry


@dataclass(slots=True)
class AuditVerdict:
    """What verification found."""

    size: int = 0
    root: bytes = EMPTY_ROOT
    heads: int = 0
    pruned: int = 0  # entries before this one were pruned
    survivors: int = 0  # but so many of them are left
    findings: list[AuditFinding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything is as it was signed."""
        return not self.findings

    @property
    def first_bad(self) -> int | None:
        """The first entry that is known to be bad, or that may be the first bad one."""
        return min((one.entry for one in self.findings if one.entry is not None), default=None)

    def add(self, message: str, entry: int | None = None, until: int | None = None) -> None:
        """Note a finding; after so many, more would not help anybody."""
        if len(self.findings) < FINDINGS_LIMIT:
            self.findings.append(AuditFinding(message, entry, until))


_PURPOSE = b"penstock audit head v1\0"
_PEM = re.compile(rb"-----BEGIN PUBLIC KEY-----.+?-----END PUBLIC KEY-----", re.DOTALL)
_PUBLIC_LIMIT = 1_000_000
_ROOT = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SIGNATURE = re.compile(r"[0-9a-f]{128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Head:
    """The state of the log at one size, as its key has signed it."""

    size: int
    root: bytes
    time: int
    key: str
    signature: bytes

    def signed_bytes(self) -> bytes:
        """Return what the signature is over."""
        return _signed_bytes(self.size, self.root, self.time, self.key)

    def as_document(self) -> dict[str, Any]:
        """Return the head as JSON data, to keep it elsewhere."""
        return {
            "size": self.size,
            "root": self.root.hex(),
            "time": self.time,
            "key": self.key,
            "signature": self.signature.hex(),
        }

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Read a head that was kept; its signature is not checked yet."""
        match document:
            case {
                "size": int(size),
                "root": str(root),
                "time": int(moment),
                "key": str(key),
                "signature": str(signature),
            } if _ROOT.fullmatch(root) and _SIGNATURE.fullmatch(signature) and size >= 0:
                return cls(size, bytes.fromhex(root), moment, key, bytes.fromhex(signature))
        raise UsageError(
            f"{quote(document)} is not a head of an audit log",
            fix="pass what `penstock audit head` printed",
        )


def _signed_bytes(size: int, root: bytes, moment: int, key: str) -> bytes:
    data = {"key": key, "root": root.hex(), "size": size, "time": moment}
    return _PURPOSE + json.dumps(data, separators=(",", ":")).encode()


def _statement_bytes(purpose: bytes, statement: bytes) -> bytes:
    # The length keeps a purpose from running into the statement.
    return b"penstock statement %d " % len(purpose) + purpose + statement


def key_id(public: Ed25519PublicKey) -> str:
    """Name a public key: the first 128 bits of its SHA-256."""
    return sha256(public.public_bytes_raw()).hexdigest()[:32]


class PublicKeys:
    """The keys whose signatures are believed."""

    def __init__(self, keys: Iterable[Ed25519PublicKey] = ()) -> None:
        self._keys = {key_id(key): key for key in keys}

    @property
    def ids(self) -> list[str]:
        """The ids of the keys, the oldest first."""
        return list(self._keys)

    def __or__(self, other: PublicKeys) -> PublicKeys:
        return PublicKeys([*self._keys.values(), *other._keys.values()])

    def pem(self, only: str | None = None) -> str:
        """Return the keys, or one of them, as PEM text."""
        keys = [key for name, key in self._keys.items() if only in {None, name}]
        form = (forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)
        return "".join(key.public_bytes(*form).decode() for key in keys)

    @classmethod
    def parse(cls, text: bytes, source: object) -> Self:
        """Read one or more PEM public keys; `source` is named where that fails."""
        try:
            found = [forms.load_pem_public_key(block) for block in _PEM.findall(text)]
        except (ValueError, UnsupportedAlgorithm):
            found = []
        keys = [key for key in found if isinstance(key, Ed25519PublicKey)]
        if not keys or len(keys) < len(found):
            raise UsageError(
                f"{quote(source)} holds no Ed25519 public key in PEM form, or others beside",
                fix="pass what `penstock audit keys` printed",
            )
        return cls(keys)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file of public keys."""
        try:
            with path.open("rb") as file:
                text = file.read(_PUBLIC_LIMIT)
        except OSError as error:
            raise UnavailableError(
                f"the public keys {quote(path)} cannot be read: {error.strerror}",
                fix="pass the file that `penstock audit keys` made",
            ) from None
        return cls.parse(text, path)

    def check(self, head: Head) -> None:
        """Raise `TamperedError` unless one of our keys signed this head."""
        key = self._keys.get(head.key)
        if key is None:
            raise TamperedError(
                f"the head of size {head.size} is signed with a key that is not known: {head.key}",
                fix="if the key was changed on purpose, add the old public key to the .pub file",
            )
        try:
            key.verify(head.signature, head.signed_bytes())
        except InvalidSignature:
            raise TamperedError(f"the signature of the head of size {head.size} is wrong") from None

    def verify_statement(
        self, key: str, purpose: bytes, statement: bytes, signature: bytes
    ) -> bool:
        """Say whether one of our keys, the one named, signed this statement."""
        known = self._keys.get(key)
        if known is None:
            return False
        try:
            known.verify(signature, _statement_bytes(purpose, statement))
        except InvalidSignature:
            return False
        return True


class Signer:
    """Signs heads with the private key, which it never shows."""

    def __init__(self, private: Ed25519PrivateKey, known: PublicKeys | None = None) -> None:
        self._private = private
        own = private.public_key()
        self.key = key_id(own)
        self.public_keys = (known or PublicKeys()) | PublicKeys([own])

    def sign(self, size: int, root: bytes, moment: int) -> Head:
        """Sign a state of the log."""
        signature = self._private.sign(_signed_bytes(size, root, moment, self.key))
        return Head(size, root, moment, self.key, signature)

    def sign_statement(self, purpose: bytes, statement: bytes) -> bytes:
        """Sign a statement of another kind than a head; `purpose` keeps the kinds apart."""
        return self._private.sign(_statement_bytes(purpose, statement))

    @classmethod
    def generate(cls) -> Self:
        """Make a signer with a new key that is kept nowhere."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def open(cls, secret: Secret) -> Self:
        """Read the key; create it, and say so, where it is a file that does not exist."""
        created = False
        if isinstance(secret, SecretFile) and not secret.path.exists():
            created = secret.create(_generate_pem())
        private = _parse_private(secret)
        public = PublicKeys([private.public_key()])
        if not isinstance(secret, SecretFile):
            return cls(private)
        known = _remember(public, public_path(secret.path))
        signer = cls(private, known)
        if created:
            get_logger("audit").warning(
                "created the key that signs the audit log; keep a copy of it in a safe place",
                key_id=signer.key,
            )
        return signer


def public_path(private: Path) -> Path:
    """Return where the public keys stand that belong to a private key file."""
    return private.with_suffix(".pub")


def load_public_keys(secret: Secret) -> PublicKeys:
    """Return the keys that belong to a private key, without making one; none where it is none."""
    if isinstance(secret, SecretFile):
        beside = public_path(secret.path)
        if beside.exists():
            return PublicKeys.load(beside)
        if not secret.path.exists():
            return PublicKeys()
    return PublicKeys([_parse_private(secret).public_key()])


def _generate_pem() -> bytes:
    return Ed25519PrivateKey.generate().private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()
    )


def _parse_private(secret: Secret) -> Ed25519PrivateKey:
    try:
        private = forms.load_pem_private_key(secret.read(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        private = None
    if not isinstance(private, Ed25519PrivateKey):
        raise UnavailableError(
            f"the {secret} holds no Ed25519 private key in PEM form without a password",
            fix="openssl genpkey -algorithm ed25519 makes one; a missing file is created",
        )
    return private


def _remember(public: PublicKeys, path: Path) -> PublicKeys:
    """Add our public key to the file of known ones, if it is not there, and return all."""
    known = PublicKeys.load(path) if path.exists() else PublicKeys()
    together = known | public
    if together.ids != known.ids:
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        beside.write_text(together.pem())
        beside.replace(path)  # whole at every moment, for others that start now
    return together


_LIMIT = 10_000


def anchor_path(private: Path) -> Path:
    """Return where the newest head is kept that belongs to a private key file."""
    return private.with_suffix(".head")


def load_head(path: Path) -> Head:
    """Read a head that was kept in a file; its signature is not checked yet."""
    try:
        with path.open() as file:
            return Head.from_document(json.loads(file.read(_LIMIT)))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not JSON"
        raise UnavailableError(
            f"the head kept in {quote(path)} cannot be read: {reason}",
            fix="pass a file that `penstock audit head --json` wrote",
        ) from None


def save_head(path: Path, head: Head) -> None:
    """Keep a head in a file; the file is whole at every moment."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w") as file:
        file.write(json.dumps(head.as_document()) + "\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
