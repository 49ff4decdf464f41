"""Tokens turned back into originals: the vault of these, and who may ask, always on record.

    who asks, proved ──▶ a right for the view? ──▶ the key that made tokens? ──▶ answers
           │no                   │no                         │no                    │
           └── denied, recorded ─┘                   failed, recorded       recorded, then told

Rules that hold here:
- Only what `masks.supplies.Seal` has sealed is kept here; the key never comes near the store.
- An entry is written once and never changed, until its person is erased: whoever tokenizes the
  same value under the same key, in whichever process, finds the same entry or makes it.
- `put` returns when all entries are durable, so that no token is published before.
- Every attempt is in the audit log, durably, before anything is told: who asked, by which
  right, for which view, and a keyed digest of each token. No original and no token is there.
- Where the field names the person that a record is about, the entry of a token names that
  person by pseudonym, so that people can be told when they were identified.
- What is behind a token of somebody who opted out of a purpose of the view is withheld, from the
  moment of the opt-out on. Where the field does not name the person, nobody can tell whose tokens
  these are: once somebody has opted out of a purpose of the view, none is turned back.
- The reason is free text, for which the audit log has no place: it is kept beside, under the
  number of the request, and the log holds its digest. It can be erased; it cannot be changed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Column, Connection, LargeBinary, String, Table
from sqlalchemy.dialects import postgresql, sqlite

from penstock.clock import utc_now
from penstock.definitions import DefinitionSet
from penstock.definitions.access import find_right
from penstock.definitions.views import hierarchies_of, plan_view
from penstock.errors import DeniedError, PenstockError, UnavailableError, UsageError, quote
from penstock.masks import Keys, Tokenization
from penstock.masks.fields import TEXTS, read_text
from penstock.masks.supplies import KEY_VAULT, fingerprint
from penstock.model.kinds import Hierarchy, Stream, View
from penstock.store.audit.entry import Detail, Entry, Outcome, allow_detail
from penstock.store.audit.log import AREA, AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.database import Database
from penstock.store.opt_outs import Consent, OptedOut
from penstock.store.schema import NAME_LENGTH, REASON_LENGTH, Moment, metadata

VAULT_AREA: Final = "vault"
VAULT_LENGTH: Final = 256
TOKEN_LENGTH: Final = 64
CHUNK: Final = 5_000
"""Tokens that are asked for together; SQLite takes some thirty thousand parameters."""
OPEN_LIMIT: Final = 4

entries_table = Table(
    "vault_entries",
    metadata,
    Column("vault", String(VAULT_LENGTH), primary_key=True),
    Column("token", String(TOKEN_LENGTH), primary_key=True),
    Column("sealed", LargeBinary, nullable=False),
)


class StoreVault:
    """The vaults of an open database. Threads may share it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, vault: str, entries: Mapping[str, bytes]) -> None:
        """Keep sealed values by their tokens; returns when they are safe."""
        # Most values come again and again: those that are there need no writer's turn.
        with self._database.read() as connection:
            missing = sorted(entries.keys() - _find(connection, vault, entries))
        if not missing:
            return
        rows = [{"vault": vault, "token": it, "sealed": entries[it]} for it in missing]
        dialect = postgresql if self._database.is_postgresql else sqlite
        insert = dialect.insert(entries_table).on_conflict_do_nothing()
        with self._database.write(VAULT_AREA) as connection:
            connection.execute(insert, rows)

    def delete(self, entries: Iterable[tuple[str, str]]) -> int:
        """Forget entries, by vault and token; return how many there were."""
        table, gone = entries_table.c, 0
        with self._database.write(VAULT_AREA) as connection:
            for vault, token in entries:
                own = sa.and_(table.vault == vault, table.token == token)
                gone += connection.execute(entries_table.delete().where(own)).rowcount
        return gone

    def get(self, vault: str, token: str) -> bytes | None:
        """Return the sealed value of a token, or None where it is not kept."""
        return self.get_all(vault, [token]).get(token)

    def get_all(self, vault: str, tokens: Sequence[str]) -> dict[str, bytes]:
        """Return the sealed values of those tokens that are kept."""
        with self._database.read() as connection:
            return _find(connection, vault, tokens)


class VaultAddress:
    """The vaults of a database by its address: each process opens it for itself.

    Workers of Spark get it within the functions they run, as they get keys.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def put(self, vault: str, entries: Mapping[str, bytes]) -> None:
        """Keep sealed values by their tokens; returns when they are safe."""
        self._open().put(vault, entries)

    def get(self, vault: str, token: str) -> bytes | None:
        """Return the sealed value of a token, or None where it is not kept."""
        return self._open().get(vault, token)

    def _open(self) -> StoreVault:
        return _open_for(self._url, os.getpid())


@lru_cache(OPEN_LIMIT)
def _open_for(url: str, process: int) -> StoreVault:
    # By process, because a connection does not survive a fork.
    del process
    return StoreVault(Database.open(url))


def _find(connection: Connection, vault: str, tokens: Iterable[str]) -> dict[str, bytes]:
    table = entries_table.c
    found: dict[str, bytes] = {}
    wanted = list(tokens)
    for first in range(0, len(wanted), CHUNK):
        chunk = wanted[first : first + CHUNK]
        query = sa.select(table.token, table.sealed).where(
            table.vault == vault, table.token.in_(chunk)
        )
        found |= {token: bytes(sealed) for token, sealed in connection.execute(query)}
    return found


KIND: Final = "detokenize"
MOST_TOKENS: Final = 1000
LONGEST_TOKEN: Final = 4096
REQUEST_BYTES: Final = 16
_NAME: Final = re.compile(r"\w[\w .:/+*#-]{0,199}")

allow_detail("field", Detail.NAME)

disclosures_table = Table(
    "disclosures",
    metadata,
    Column("request", String(2 * REQUEST_BYTES), primary_key=True),
    Column("at", Moment, nullable=False),
    Column("view", String(NAME_LENGTH), nullable=False),
    Column("field", String(NAME_LENGTH), nullable=False),
    Column("reason", String(REASON_LENGTH), nullable=False),
)


@dataclass(frozen=True, slots=True)
class DetokenizationRequest:
    """Who wants which tokens turned back, and why."""

    user: str
    view: str
    field: str
    tokens: tuple[str, ...]
    reason: str

    def __post_init__(self) -> None:
        if not 0 < len(self.tokens) <= MOST_TOKENS:
            raise UsageError(
                f"{len(self.tokens)} tokens are asked for at once", fix=f"give 1 to {MOST_TOKENS}"
            )
        if any(not 0 < len(token) <= LONGEST_TOKEN for token in self.tokens):
            raise UsageError(
                "a token is empty or too long", fix=f"give 1 to {LONGEST_TOKEN} characters"
            )
        for what, text, most in (
            ("view", self.view, NAME_LENGTH),
            ("field", self.field, NAME_LENGTH),
            ("reason", self.reason, REASON_LENGTH),
        ):
            if not 0 < len(text.strip()) <= len(text) <= most or not text.isprintable():
                raise UsageError(
                    f"the {what} {quote(text)} cannot be recorded",
                    fix=f"write 1 to {most} printable characters",
                )


@dataclass(frozen=True, slots=True)
class DetokenizedValue:
    """What is behind a token; None where it is none of ours, or withheld."""

    token: str
    value: Any
    withheld: bool = False
    """Whether the person behind it opted out."""


@dataclass(frozen=True, slots=True)
class _Reversal:
    """How tokens of one field are turned back."""

    turn: Callable[[str], Any]
    mark: Callable[[str], str]
    """Gives the digest that stands for a token in the audit log."""
    write: Callable[[Any], str] | None
    """Gives the name of the person behind an original, where the field names one."""

    def withhold(self, answer: DetokenizedValue, refusing: OptedOut) -> DetokenizedValue:
        """Return the answer, marked where the person behind it is among those who refuse."""
        marks = refusing.marks
        if answer.value is None or self.write is None or marks is None:
            return answer
        return replace(answer, withheld=marks.of(self.write(answer.value)) in refusing)


class Detokenizer:
    """Turns tokens back under the definitions of one epoch."""

    def __init__(
        self,
        database: Database,
        log: AuditLog,
        people: Pseudonyms,
        definitions: DefinitionSet,
        epoch: int,
        *,
        consent: Consent,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._database = database
        self._consent = consent
        self._log = log
        self._people = people
        self._definitions = definitions
        self._epoch = epoch
        self._clock = clock

    def deny(
        self, request: DetokenizationRequest, code: str, message: str, fix: str
    ) -> DeniedError:
        """Record that a request is denied; return the error to raise."""
        self._record(request, Outcome.DENIED, code)
        return DeniedError(message, fix=fix)

    def turn_back(
        self, request: DetokenizationRequest, read_secret: Callable[[], bytes]
    ) -> list[DetokenizedValue]:
        """Return what is behind the tokens; the user's identity has been proved before."""
        right = find_right(
            self._definitions, request.user, lambda it: request.view in it.detokenize
        )
        if right is None:
            raise self.deny(
                request,
                "right",
                f"{quote(request.user)} has no right to turn back tokens of {quote(request.view)}",
                "ask the data officer for a `right` whose `detokenize` names the view",
            )
        try:
            refusing = self._find_opted_out(request.view)
            reversal = self._find_reversal(request, read_secret())
        except PenstockError as error:
            code = "key" if isinstance(error, UnavailableError) else "field"
            self._record(request, Outcome.FAILED, code, right)
            raise
        if refusing and reversal.write is None:
            raise self.deny(
                request,
                "consent",
                f"people opted out of a purpose of {quote(request.view)}, and "
                f"{quote(request.field)} does not tell whose tokens these are",
                "ask for tokens of the field that is the subject of the stream",
            )
        answers = [DetokenizedValue(token, reversal.turn(token)) for token in request.tokens]
        if refusing:
            answers = [reversal.withhold(it, refusing) for it in answers]
        self._record(request, Outcome.ALLOWED, None, right, answers, reversal)
        return [replace(it, value=None) if it.withheld else it for it in answers]

    def _find_opted_out(self, name: str) -> OptedOut:
        """Return who opted out of a purpose of a view; raise where that cannot be known."""
        view = self._definitions.get(View, name)
        return OptedOut() if view is None else self._consent().refusing(view.purposes)

    def _find_reversal(self, request: DetokenizationRequest, secret: bytes) -> _Reversal:
        view = self._definitions.get(View, request.view)
        stream = None if view is None else self._definitions.get(Stream, view.stream)
        if view is None or stream is None:
            raise UsageError(f"there is no view {quote(request.view)}", fix="check the name")
        vault = StoreVault(self._database)
        if vault.get(KEY_VAULT, fingerprint(secret)) is None:
            raise UnavailableError(
                "the key of masks has made no tokens with this store",
                fix="let pipeline.key name the key that the views were run with",
            )
        hierarchies = hierarchies_of(
            {it.key: it for it in self._definitions.of(Hierarchy).values()}
        )
        plan = plan_view(view, stream, hierarchies)
        chains = plan.make_chains(view.name, secret, hierarchies, vault)
        stages = [stage for chain in chains if chain is not None for stage in chain.stages]
        touching = [(mask, stage) for mask, stage in stages if request.field in mask.keys]
        mask, stage = touching[-1] if touching else (None, None)
        if not isinstance(mask, Tokenization) or stage is None or request.field not in plan.output:
            raise UsageError(
                f"the view {quote(view.name)} has no tokens in a field {quote(request.field)}",
                fix="name a field whose last anonymizer is tokenization",
            )
        target = stage.target(request.field)
        reverse = mask.reverse(target)
        kind = plan.output[request.field].type
        key = Keys(secret, view.name).derive(KIND, request.field)

        def turn(token: str) -> Any:
            read = read_text(kind, token)
            return None if read is None else reverse(read)

        def mark(token: str) -> str:
            return hmac.digest(key, token.encode("utf-8", "surrogatepass"), "sha256").hex()[:32]

        write = TEXTS[target.field.type] if request.field == stream.subject else None
        return _Reversal(turn, mark, write)

    def _record(
        self,
        request: DetokenizationRequest,
        outcome: Outcome,
        code: str | None,
        right: str | None = None,
        answers: list[DetokenizedValue] | None = None,
        reversal: _Reversal | None = None,
    ) -> None:
        """Write down the request and, where there are any, its answers: all or nothing."""
        number = secrets.token_hex(REQUEST_BYTES)
        actor = self._people.person(request.user)
        rule = None if right is None else self._people.rule(f"right/{right}")
        names: dict[str, Any] = {"request": number}
        # Both are typed by hand: what is not defined may be anything, a person's name included.
        view = self._definitions.get(View, request.view)
        if view is not None and _NAME.fullmatch(view.name):
            names["view"] = view.name
            stream = self._definitions.get(Stream, view.stream)
            known = () if stream is None else {it.name for it in stream.fields}
            if request.field in known and _NAME.fullmatch(request.field):
                names["field"] = request.field
        digest = hashlib.sha256(f"{number}\0{request.reason}".encode()).hexdigest()
        more: dict[str, Any] = {} if code is None else {"reason": code}
        entries = [
            Entry.make(
                f"{KIND}.request",
                outcome,
                actor=actor,
                rule=rule,
                epoch=self._epoch,
                count=len(request.tokens),
                digest=digest,
                **names,
                **more,
            )
        ]
        for answer in answers or ():
            found = answer.value is not None
            outcome = Outcome.ALLOWED if found else Outcome.FAILED
            person = None
            if found and reversal is not None and reversal.write is not None:
                person = self._people.person(reversal.write(answer.value))
            entries.append(
                Entry.make(
                    f"{KIND}.token",
                    Outcome.DENIED if answer.withheld else outcome,
                    actor=actor,
                    subject=person,
                    rule=rule,
                    epoch=self._epoch,
                    digest="" if reversal is None else reversal.mark(answer.token),
                    **names,
                )
            )
        row = {
            "request": number,
            "at": self._clock(),
            "view": request.view,
            "field": request.field,
            "reason": request.reason,
        }
        with self._database.write(AREA) as connection:
            connection.execute(sa.insert(disclosures_table).values(row))
            self._log.append_within(connection, entries)
