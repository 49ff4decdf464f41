"""Opt-outs as views know them: people by their marks, purposes by their paths.

    consent() ──▶ OptOuts ──▶ refusing(purposes) ──▶ OptedOut

Rules that hold here:
- People are known by marks alone, HMAC-SHA-256 of their names under a key. Who has the marks
  but not the key cannot tell who it is, even by trying all names.
- An opt-out of a purpose covers what lies below it. It also covers what lies above: who may
  use data for `care` may use it for `care/research`.
"""

from __future__ import annotations

import hmac
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, Self

from penstock.errors import UnavailableError, UsageError, quote
from penstock.model.purposes import is_related
from penstock.policy.consent import OptedOutNumbers, OptOutIndex

SUBJECT_LIMIT: Final = 1000
KEY_LEAST: Final = 32
NUMBER_BITS: Final = 60
"""Bits of a mark that stand for a person in records. Who shares them with somebody who opted out
is left out too; for one among ten million, with a million opt-outs, the odds are 1 : 100,000."""
DIGITS: Final = 32
"""Hexadecimal digits of a mark."""


class SubjectMarks:
    """Marks people under one key: the same person the same way, and no way back."""

    __slots__ = ("fingerprint", "key")

    def __init__(self, secret: bytes) -> None:
        if len(secret) < KEY_LEAST:
            raise UnavailableError(
                f"the key of consent has {len(secret)} bytes, too few to resist guessing",
                fix=f"use at least {KEY_LEAST} random bytes",
            )
        self.key = hmac.digest(secret, b"penstock consent subjects", "sha256")
        self.fingerprint = hmac.digest(secret, b"penstock consent key", "sha256").hex()[:DIGITS]

    def of(self, subject: str) -> str:
        """Return the mark of a person, named as the records of streams name them."""
        return hmac.digest(self.key, _encode(subject), "sha256").hex()[:DIGITS]

    def number(self, subject: str) -> int:
        """Return the number that stands for a person; raise where nobody can be called so."""
        return number_of(self.of(subject))


def number_of(mark: str) -> int:
    """Return the number that stands for a mark in records."""
    return int(mark[: NUMBER_BITS // 4], 16)


class OptedOut(frozenset[str]):
    """The marks of people who want no part in something, and what marks people so."""

    marks: SubjectMarks | None

    def __new__(cls, who: Iterable[str] = (), marks: SubjectMarks | None = None) -> Self:
        """Gather marks that were all made by the same key."""
        made = super().__new__(cls, who)
        made.marks = marks
        return made


@dataclass(frozen=True, slots=True)
class OptOuts:
    """All opt-outs of an epoch: purpose → the marks of people who opted out of it."""

    epoch: int = 0
    by_purpose: Mapping[str, frozenset[str]] = field(default_factory=dict)
    marks: SubjectMarks | None = None
    _known: dict[tuple[str, ...], OptedOut] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, epoch: int, pairs: Iterable[tuple[str, str]], marks: SubjectMarks) -> OptOuts:
        """Gather pairs of subject, by name, and purpose."""
        found: dict[str, set[str]] = {}
        for subject, purpose in pairs:
            found.setdefault(purpose, set()).add(marks.of(subject))
        return cls(epoch, {purpose: frozenset(who) for purpose, who in found.items()}, marks)

    def make_index(self) -> OptOutIndex:
        """Return the same as gateways hold it."""
        by_purpose = {
            purpose: OptedOutNumbers(array("q", sorted(map(number_of, who))))
            for purpose, who in self.by_purpose.items()
        }
        number = None if self.marks is None else self.marks.number
        return OptOutIndex(self.epoch, by_purpose, number)

    def refusing_any(self) -> OptedOut:
        """Return who opted out of anything: for what does not say what it is for."""
        return self.refusing(self.by_purpose)

    def refusing(self, purposes: Iterable[str]) -> OptedOut:
        """Return who opted out of one of the purposes, of what it is a part of, or has."""
        served = tuple(purposes)
        known = self._known.get(served)
        if known is None:
            who = (it for refused, it in self.by_purpose.items() if touches(refused, served))
            known = self._known[served] = OptedOut(frozenset().union(*who), self.marks)
        return known


def touches(refused: str, purposes: Iterable[str]) -> bool:
    """Whether an opt-out of a purpose concerns data that is used for others."""
    return any(is_related(refused, purpose) for purpose in purposes)


class Consent(Protocol):
    """Tells the opt-outs of now: the one question that enforcement points ask."""

    def __call__(self) -> OptOuts:
        """Return them; raise where they cannot be known, and nothing is published."""


def nobody_opted_out() -> OptOuts:
    """Return no opt-outs: for installations where nobody can."""
    return OptOuts()


def _encode(subject: str) -> bytes:
    """Return the bytes of a name; refuse what no record can say."""
    try:
        found = subject.encode()
    except UnicodeEncodeError:
        found = b""
    if not 0 < len(found) <= SUBJECT_LIMIT:
        raise UsageError(
            f"a person cannot be called {quote(ascii(subject), 20)}",
            fix=f"give 1 to {SUBJECT_LIMIT} bytes of text, as the subject of the stream says it",
        )
    return found
