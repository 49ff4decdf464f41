"""An entry of the audit log: what may stand in it, and the bytes that are hashed.

Rules that hold here:
- People appear as pseudonyms (see `pseudonyms`); a name in their place is refused. So is a rule
  that is named in clear: filters and preferences hold people's names.
- Details come from an allow-list, each in its shape. There is no place for payloads,
  topics with identities, or free text.
- The bytes of an entry are its canonical JSON as in RFC 8785 (sorted keys, no spaces,
  UTF-8, integers only), so that anybody can compute its hash with another program:

    {"actor":…,"details":{…},"epoch":…,"kind":…,"outcome":…,"rule":…,"seq":…,"subject":…,
     "time":…,"v":1}

- `seq` is part of them: an entry that moves to another place is another entry.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from enum import StrEnum
from json.encoder import encode_basestring
from typing import Any, Self

from penstock.errors import UsageError, quote

VERSION = 1
DETAILS_LIMIT = 16
# Beyond this, programs that read JSON numbers as doubles would see another number.
LARGEST = 2**53 - 1

PSEUDONYM = re.compile(r"[a-z]_[a-z2-7]{26}", re.ASCII)
CODE = re.compile(r"[a-z][a-z0-9_.-]{0,63}", re.ASCII)
_RULE = re.compile(r"[a-z][a-z _-]{0,99} r_[a-z2-7]{26}", re.ASCII)
# Words of the program itself: what decided has no name of its own.
_FIXED_RULES = frozenset(
    (
        "administer",
        "advertisement",
        "allow_without_reservation",
        "blocked user",
        "capability",
        "capability filter",
        "declared purposes",
        "define",
        "definitions",
        "dormant subscription",
        "enforcement default",
        "filter_hybrid",
        "filter_on_publish",
        "filter_on_subscribe",
        "open mode",
        "presubscribe",
        "purposes of the message",
        "reserve",
        "right to claim",
        "right to monitor",
        "unseen message",
        "unstamped",
    )
)
_ERROR_RULE = re.compile(r"error [A-Za-z]{1,64}", re.ASCII)
_NAME = re.compile(r"\w[\w .:/+*#-]{0,199}")
_DIGEST = re.compile(r"[0-9a-f]{8,128}", re.ASCII)
canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode


class Outcome(StrEnum):
    """How an event ended."""

    ALLOWED = "allowed"
    DENIED = "denied"
    DONE = "done"
    FAILED = "failed"


class Detail(StrEnum):
    """What the value of a detail may look like."""

    NAME = "name"  # of a definition
    CODE = "code"  # one of a few words that the program knows
    COUNT = "count"
    FLAG = "flag"
    DIGEST = "digest"  # hexadecimal: a hash, an id
    PSEUDONYM = "pseudonym"


_PATTERNS = {
    Detail.NAME: _NAME,
    Detail.CODE: CODE,
    Detail.DIGEST: _DIGEST,
    Detail.PSEUDONYM: PSEUDONYM,
}

_details: dict[str, Detail] = {
    "authority": Detail.PSEUDONYM,
    "bytes": Detail.COUNT,
    "component": Detail.CODE,
    "control": Detail.NAME,
    "count": Detail.COUNT,
    "created": Detail.COUNT,
    "definition": Detail.NAME,
    "deleted": Detail.COUNT,
    "digest": Detail.DIGEST,
    "duration_us": Detail.COUNT,
    "event": Detail.NAME,
    "key": Detail.DIGEST,
    "log": Detail.DIGEST,
    "mask": Detail.NAME,
    "operation": Detail.CODE,
    "override": Detail.FLAG,
    "plan": Detail.NAME,
    "protocol": Detail.CODE,
    "purpose": Detail.NAME,
    "reason": Detail.CODE,
    "request": Detail.DIGEST,
    "role": Detail.NAME,
    "situation": Detail.NAME,
    "stream": Detail.NAME,
    "updated": Detail.COUNT,
    "view": Detail.NAME,
}


def is_fixed_rule(text: str) -> bool:
    """Tell whether a rule is a word of the program, so that no name can be in it."""
    return text in _FIXED_RULES or _ERROR_RULE.fullmatch(text) is not None


def allow_detail(name: str, shape: Detail) -> None:
    """Put a detail on the list; meant to be called while a module is imported."""
    if not CODE.fullmatch(name):
        raise UsageError(f"{quote(name)} is not a name for a detail", fix="use snake_case")
    if _details.setdefault(name, shape) is not shape:
        raise UsageError(f"the detail {quote(name)} is already a {_details[name]}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One event, before it has a place in the log. Made by `Entry.make`, which checks."""

    time: int  # microseconds since 1970, UTC
    kind: str
    outcome: str
    actor: str | None
    subject: str | None
    rule: str | None
    epoch: int | None
    details: str  # canonical JSON

    @classmethod
    def make(
        cls,
        kind: str,
        outcome: Outcome,
        *,
        actor: str | None = None,
        subject: str | None = None,
        rule: str | None = None,
        epoch: int | None = None,
        at: int | None = None,
        **details: str | int | bool,
    ) -> Self:
        """Make an entry for now, or for `at` (microseconds since 1970); refuse what must not be in.

        `actor` did it, `subject` is who the data is about; both are pseudonyms.
        """
        if not CODE.fullmatch(kind):
            raise UsageError(
                f"{quote(kind)} is not a kind of event", fix="write like decision.read"
            )
        for role, person in (("actor", actor), ("subject", subject)):
            if person is not None and not PSEUDONYM.fullmatch(person):
                # Not quoted: it is probably somebody's name.
                raise UsageError(
                    f"the {role} of an audit entry is not a pseudonym",
                    fix="pass Pseudonyms.person(name), never the name",
                )
        if rule is not None and not (_RULE.fullmatch(rule) or is_fixed_rule(rule)):
            # Not quoted either.
            raise UsageError(
                "the rule of an audit entry is named in clear",
                fix="pass Pseudonyms.rule(text), never the text",
            )
        moment = time.time_ns() // 1000 if at is None else at
        if not 0 <= moment <= LARGEST or (epoch is not None and not 0 <= epoch <= LARGEST):
            raise UsageError(f"time {moment} or epoch {epoch} is out of range")
        text = canonical_details(details) if details else "{}"
        return cls(moment, kind, outcome.value, actor, subject, rule, epoch, text)


def canonical_details(details: dict[str, Any]) -> str:
    """Check details against the list and write them as canonical JSON."""
    if len(details) > DETAILS_LIMIT:
        raise UsageError(f"{len(details)} details are more than {DETAILS_LIMIT}")
    for name, value in details.items():
        shape = _details.get(name)
        if shape is None:
            raise UsageError(
                f"the detail {quote(name)} is not on the list of the audit log",
                fix="use one of the list, or add it with allow_detail",
            )
        if not _fits(shape, value):
            raise UsageError(f"the detail {quote(name)} of an audit entry is not a {shape}")
    return canonical(details)


def _fits(shape: Detail, value: object) -> bool:
    if shape is Detail.FLAG:
        return type(value) is bool
    if shape is Detail.COUNT:
        return type(value) is int and 0 <= value <= LARGEST
    return isinstance(value, str) and _PATTERNS[shape].fullmatch(value) is not None


def encode(seq: int, entry: Entry) -> bytes:
    """Return the bytes that are hashed for this entry at this place."""
    word = encode_basestring
    actor = "null" if entry.actor is None else word(entry.actor)
    subject = "null" if entry.subject is None else word(entry.subject)
    rule = "null" if entry.rule is None else word(entry.rule)
    epoch = "null" if entry.epoch is None else entry.epoch
    return (
        f'{{"actor":{actor},"details":{entry.details},"epoch":{epoch}'
        f',"kind":{word(entry.kind)},"outcome":{word(entry.outcome)},"rule":{rule}'
        f',"seq":{seq},"subject":{subject},"time":{entry.time},"v":{VERSION}}}'
    ).encode()


def as_document(seq: int, entry: Entry) -> dict[str, Any]:
    """Return the entry as JSON data, the same that `encode` writes."""
    document: dict[str, Any] = json.loads(encode(seq, entry))
    return document
