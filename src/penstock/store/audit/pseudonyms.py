"""Keyed pseudonyms: the same name gives the same mark, and no mark gives a name.

A pseudonym is HMAC-SHA-256 under a secret key, cut to 128 bits. Who holds the key can
compute the pseudonym of a name and so find that person's entries; who does not, cannot,
even by trying all names. Destroying the key cuts every entry off from every person,
without changing a byte of the log.

Rules that hold here:
- Roles are separate domains: the person `alice` and the client `alice` share nothing.
- A rule keeps its kind in clear; its name is a pseudonym. Filters, preferences, rights and ACLs
  are named after people often enough, and nobody can tell from the name.
- Names are taken as they are; two spellings are two names.
- The key is never shown, not even by `repr`.
"""

from __future__ import annotations

import base64
import hmac
import re
import secrets
from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import Self

from penstock.config.secrets import Secret, SecretFile
from penstock.errors import UnavailableError
from penstock.store.audit.entry import is_fixed_rule
from penstock.telemetry import get_logger

KEY_LEAST = 32
_KEPT = 65_536
_DOMAIN = b"penstock pseudonym v1\0"
# What comes before the name of a rule; an ACL says who may do what with which kind of resource.
_RULE_KIND = re.compile(
    r"(reservation|shared subscription|subscription|policy|preference"
    r"|emergency-policy|authorisation-rule|restriction|transformation|event type|capability"
    r"|right|role|reserve|presubscribe"
    r"|(?:allow|deny) [a-z_]{1,32} [a-z_]{1,32})[ /]"
)


class PseudonymRole(StrEnum):
    """What a name is the name of; the value begins the pseudonym."""

    PERSON = "p"
    CLIENT = "c"
    SERVICE = "s"
    RULE = "r"


class Pseudonyms:
    """Turns names into pseudonyms under one key."""

    __slots__ = ("_of",)

    def __init__(self, key: bytes) -> None:
        if len(key) < KEY_LEAST:
            raise UnavailableError(
                f"the key for pseudonyms has {len(key)} bytes, too few to resist guessing",
                fix=f"use at least {KEY_LEAST} random characters",
            )

        def compute(role: PseudonymRole, name: str) -> str:
            message = _DOMAIN + role.value.encode() + b"\0" + name.encode("utf-8", "surrogatepass")
            digest = hmac.digest(key, message, sha256)[:16]
            return f"{role.value}_{base64.b32encode(digest).decode().lower().rstrip('=')}"

        self._of: Callable[[PseudonymRole, str], str] = lru_cache(_KEPT)(compute)

    @classmethod
    def open(cls, secret: Secret) -> Self:
        """Read the key; create it, and say so, where it is a file that does not exist."""
        missing = isinstance(secret, SecretFile) and not secret.path.exists()
        if isinstance(secret, SecretFile) and missing and secret.create(generate_key()):
            get_logger("audit").warning(
                "created the key for pseudonyms; without it nobody can tell who an entry is about"
            )
        return cls.load(secret)

    @classmethod
    def load(cls, secret: Secret) -> Self:
        """Read the key, which has to exist: to look for people, a new one is of no use."""
        return cls(secret.read().strip())

    def person(self, name: str) -> str:
        """Return the pseudonym of a person: a user, or somebody the data is about."""
        return self._of(PseudonymRole.PERSON, name)

    def client(self, name: str) -> str:
        """Return the pseudonym of a client id."""
        return self._of(PseudonymRole.CLIENT, name)

    def service(self, name: str) -> str:
        """Return the pseudonym of a service account."""
        return self._of(PseudonymRole.SERVICE, name)

    def rule(self, text: str) -> str | None:
        """Return a rule as an entry may name it: `reservation r_…` for `reservation a/alice{care}`.

        Words that the program knows stay as they are; no text gives nothing.
        """
        if not text or is_fixed_rule(text):
            return text or None
        kind = _RULE_KIND.match(text)
        return f"{kind[1] if kind else 'rule'} {self._of(PseudonymRole.RULE, text)}"

    def all_of(self, name: str) -> tuple[str, ...]:
        """Return the pseudonyms of somebody's name in every role, to search for."""
        roles = (PseudonymRole.PERSON, PseudonymRole.CLIENT, PseudonymRole.SERVICE)
        return tuple(self._of(role, name) for role in roles)


def generate_key() -> bytes:
    """Make a new key, as the text that stands in its file."""
    return secrets.token_hex(KEY_LEAST).encode() + b"\n"
