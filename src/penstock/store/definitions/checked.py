"""Definitions that are checked as a whole before any change is stored.

    apply ──▶ sign ──▶ store ──▶ every enforcement point: trusts? ──▶ roles

Rules that hold here:
- Every change of definitions goes through here: the command line, the API and the
  commands of MQTT clients. What is stored is always a valid set.
- The check happens inside the write transaction, on the very set that is changed; so
  does the entry in the audit log, where there is one: no change without its entry.
- Appointments are signed here with the key of the audit log (Ed25519), where there is one, under
  a purpose of their own. Who can write to the database, and has not the key, appoints nobody.
- What is signed has the name, the credential, the holder and the times in it: a signature
  fits no other appointment.
- A document that has a signature already is stored as it is, where that signature is right:
  a copy from another installation, or of a changed one, is refused.
- A change by which somebody would have more roles than can be watched is refused here, at the
  door: what is stored already goes on, and they have none.
- Signatures that were looked at once are remembered, in limited number.
- What other domains signed is looked at when it is registered: certificates hold then, and no list
  of revocations takes the place of a newer one.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection

from penstock.definitions import DefinitionSet
from penstock.definitions.document_checks import Locate, fill_streams, locate_by_key
from penstock.definitions.set import LOAD_KINDS, Trust, load_check, trust_nothing
from penstock.errors import DeniedError, Problem, UsageError, quote
from penstock.model.document import KIND, Document, Key
from penstock.model.kinds import Appointment, EventType, RevocationList, Stream
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.definitions.documents import Delete, Edit, Put, Snapshot, edits_between
from penstock.store.definitions.history import Change, Definitions
from penstock.store.purpose_state import STATE

if TYPE_CHECKING:  # who only reads definitions without appointments needs no keys
    from penstock.store.audit.signatures import PublicKeys, Signer

_PURPOSE: Final = b"penstock appointment v1"
_SIGNATURE: Final = re.compile(r"([0-9a-f]{32}):([0-9a-f]{128})", re.ASCII)
_REMEMBERED: Final = 131_072
_SIGNED_ELSEWHERE: Final = frozenset({EventType.kind, RevocationList.kind})


def _statement(appointment: Appointment) -> bytes:
    return json.dumps(
        appointment.statement, sort_keys=True, separators=(",", ":"), ensure_ascii=True
    ).encode()


def is_signed(appointment: Appointment, keys: PublicKeys) -> bool:
    """Tell whether one of these keys signed an appointment as it is."""
    found = _SIGNATURE.fullmatch(appointment.signature or "")
    if found is None:
        return False
    signature = bytes.fromhex(found[2])
    return keys.verify_statement(found[1], _PURPOSE, _statement(appointment), signature)


def trust_keys(load: Callable[[], PublicKeys]) -> Trust:
    """Return what tells whether an appointment is believed; keys are loaded with the first."""
    keys: list[PublicKeys] = []
    known: dict[tuple[bytes, str | None], bool] = {}

    def trusts(appointment: Appointment) -> bool:
        if not keys:
            keys.append(load())
        what = (_statement(appointment), appointment.signature)
        answer = known.get(what)
        if answer is None:
            if len(known) >= _REMEMBERED:
                known.clear()
            answer = known[what] = is_signed(appointment, keys[0])
        return answer

    return trusts


def sign_documents(documents: Iterable[Document], signer: Signer) -> list[Document]:
    """Return documents with those appointments signed that are not; a wrong signature is refused.

    Documents that are not in the shape of an appointment are left to the check of the set.
    """
    return [_sign(it, signer) if it.kind == Appointment.kind else it for it in documents]


def _sign(document: Document, signer: Signer) -> Document:
    try:
        appointment = Appointment.model_validate({"name": document.name, **document.body})
    except ValueError:
        return document
    if appointment.signature is not None:
        if not is_signed(appointment, signer.public_keys):
            raise DeniedError(
                f"the signature of the appointment {quote(document.name)} is not one of this "
                "installation, or it was changed since",
                fix="remove `signature`: applying it signs it",
            )
        return document
    signature = signer.sign_statement(_PURPOSE, _statement(appointment)).hex()
    body = {**document.body, "signature": f"{signer.key}:{signature}"}
    return Document(document.kind, document.name, body)


if TYPE_CHECKING:  # who only reads definitions needs no keys, and no library that signs
    from penstock.store.audit.log import AuditLog
    from penstock.store.audit.pseudonyms import Pseudonyms
    from penstock.store.audit.signatures import Signer

Wanted = Mapping[Key, Document | None]
"""Documents by their keys; None where there is to be none."""
_Plan = tuple[Sequence[Document], Sequence[Key]]
"""What a change puts, and what it deletes."""
Then = Callable[[Connection, Change], None]
Record = Callable[[Connection, Change, str, str | None], None]
"""Writes down, within its transaction, that a change was made, by whom, and by which command."""


class CheckedDefinitions:
    """The definitions of a store, each change checked. Threads may share it."""

    def __init__(
        self,
        definitions: Definitions,
        record: Record | None = None,
        *,
        signer: Signer | None = None,
        trusts: Trust = trust_nothing,
    ) -> None:
        self.definitions = definitions
        self._record = record
        self._signer = signer
        self.trusts = trusts if signer is None else trust_keys(lambda: signer.public_keys)
        """Tells whether an appointment is believed."""
        self._held: tuple[Snapshot, DefinitionSet] | None = None

    def current(self) -> tuple[Snapshot, DefinitionSet]:
        """Return the current documents and what they mean."""
        snapshot = self.definitions.snapshot()
        return snapshot, self.meaning(snapshot)

    def meaning(self, snapshot: Snapshot) -> DefinitionSet:
        """Return what the documents of a snapshot mean, reusing what is known already."""
        held = self._held
        if held is None:
            made = DefinitionSet.build(snapshot.documents.values(), trusts=self.trusts)
        elif held[0].mark == snapshot.mark:
            return held[1]
        else:
            before, now = held[0].documents, snapshot.documents
            made = held[1].change(
                put=[now[key] for key in now if now[key] is not before.get(key)],
                delete=[key for key in before if key not in now],
            )
        self._held = (snapshot, made)
        return made

    def apply(
        self,
        documents: Sequence[Document],
        *,
        actor: str,
        reason: str = "",
        prune: Iterable[str] = (),
        locate: Locate = locate_by_key,
        problems: Iterable[Problem] = (),
        then: Then | None = None,
    ) -> Change:
        """Put documents; of the kinds in `prune`, delete those that are not among them."""
        pruned = set(prune)
        documents = self._sign(documents)
        kept = {document.key for document in documents}

        def plan(now: Snapshot) -> _Plan:
            gone = [key for key in now.documents if key.kind in pruned and key not in kept]
            return documents, gone

        return self._change(plan, actor, reason, then, locate=locate, problems=problems)

    def delete(
        self, keys: Sequence[Key], *, actor: str, reason: str = "", then: Then | None = None
    ) -> Change:
        """Delete definitions; each must exist, and nothing may refer to it any more."""

        def plan(now: Snapshot) -> _Plan:
            for key in keys:
                if key not in now.documents:
                    raise UsageError(
                        f"there is no {key.kind} {quote(key.name)}",
                        fix=f"`penstock get {key.kind}` lists them",
                    )
            return (), keys

        return self._change(plan, actor, reason, then)

    def edit(
        self,
        want: Callable[[Snapshot], Wanted],
        *,
        actor: str,
        reason: str = "",
        then: Then | None = None,
        whole: bool = False,
        operation: str | None = None,
    ) -> Change:
        """Make the set as `want` wants it, which sees the set that is changed.

        `whole` is for what concerns all definitions of a kind, however many there are;
        `operation` is the word for the audit log.
        """

        def plan(now: Snapshot) -> _Plan:
            held, wanted = now.documents, want(now)
            # What stays as it is was checked when it came: RELOAD may want thousands of them.
            put = [it for key, it in wanted.items() if it is not None and it != held.get(key)]
            return self._sign(put), [key for key in wanted if wanted[key] is None and key in held]

        return self._change(plan, actor, reason, then, whole=whole, operation=operation)

    def rollback(
        self, epoch: int, *, keys: Iterable[Key] | None = None, actor: str, reason: str = ""
    ) -> Change:
        """Bring back what an earlier epoch held, as a new change.

        What commands did to the purpose state stays noted, and what was revoked stays revoked,
        unless its key is named.
        """
        named = None if keys is None else list(keys)

        def plan(now: Snapshot) -> _Plan:
            then = self.definitions.snapshot_at(epoch).documents
            # Nor does a revocation come undone: lists of revocations stay the newest.
            both = now.documents.keys() | then.keys()
            kept = {STATE} | {it for it in both if it.kind == RevocationList.kind}
            # An appointment that was deleted or shortened since is brought back by its name alone.
            kept |= {
                key
                for key, it in then.items()
                if key.kind == Appointment.kind and now.documents.get(key) != it
            }
            wanted = both - kept if named is None else named
            for key in named or ():
                if key not in now.documents and key not in then:
                    raise UsageError(
                        f"there is no {key.kind} {quote(key.name)}, neither now nor at {epoch}",
                        fix=f"`penstock history {key}` shows its epochs",
                    )
            edits = edits_between(now.documents, then, wanted)
            put = [edit.document for edit in edits if isinstance(edit, Put)]
            return put, [edit.key for edit in edits if isinstance(edit, Delete)]

        return self._change(plan, actor, reason, None)

    def _sign(self, documents: Sequence[Document]) -> Sequence[Document]:
        if self._signer is None or Appointment.kind not in set(map(KIND, documents)):
            return documents
        return sign_documents(documents, self._signer)

    def _change(
        self,
        plan: Callable[[Snapshot], _Plan],
        actor: str,
        reason: str,
        then: Then | None,
        *,
        locate: Locate = locate_by_key,
        problems: Iterable[Problem] = (),
        whole: bool = False,
        operation: str | None = None,
    ) -> Change:
        put: Sequence[Document] = ()
        made: DefinitionSet | None = None

        def edit(now: Snapshot) -> Sequence[Edit]:
            nonlocal put, made
            put, gone = plan(now)
            kinds = set(map(KIND, put))
            if Stream.kind in kinds:
                put = fill_streams(put, now.documents)
            objections = list(problems)
            if not kinds.isdisjoint(_SIGNED_ELSEWHERE):
                objections += load_check("trust_checks:admit")(put, now.documents, time.time())
            made = self.meaning(now).change(put, gone, locate=locate, problems=objections)
            if not kinds.isdisjoint(LOAD_KINDS):
                load_check("access:refuse_overload")(made, [it.key for it in put])
            return [*map(Put, put), *map(Delete, gone)]

        def finish(connection: Connection, change: Change) -> None:
            if self._record is not None and not change.is_empty:
                self._record(connection, change, actor, operation)
            if then is not None:
                then(connection, change)

        change = self.definitions.change(edit, actor=actor, reason=reason, then=finish, whole=whole)
        stored = change.after.documents
        # Who asks next what the set means need not work it out again, unless a document reads
        # otherwise once it is JSON.
        if made is not None and all(stored[it.key].body == it.body for it in put):
            self._held = (change.after, made)
        return change


CHANGED = "definitions.changed"


def recorder(log: AuditLog, pseudonyms: Pseudonyms) -> Record:
    """Return what `CheckedDefinitions` calls for each change that alters something."""

    def record(connection: Connection, change: Change, actor: str, operation: str | None) -> None:
        details: dict[str, Any] = {} if operation is None else {"operation": operation}
        entry = Entry.make(
            CHANGED,
            Outcome.DONE,
            actor=pseudonyms.person(actor),
            epoch=change.epoch,
            created=len(change.created),
            updated=len(change.updated),
            deleted=len(change.deleted),
            **details,
        )
        log.append_within(connection, [entry])

    return record
