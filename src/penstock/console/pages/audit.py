"""The audit log: search, verify, export.

Rules that hold here:
- Entries name people by pseudonyms. A name is searched for by computing its pseudonyms; to those
  who administer, users whom the definitions name are shown by their names.
- To look is not recorded; to search for somebody, to export and to verify is. Who looks through
  the pages of one search is recorded once.
- Verifying reads the whole log, so one does at a time, beside the pages; its verdict stays until
  the next.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import sqlalchemy as sa
from fastapi import Query
from starlette.responses import StreamingResponse

from penstock.clock import utc_now
from penstock.console.desk import Desk, Visit, Visitor
from penstock.console.rooms import Done, Form, PageData, Room
from penstock.definitions.access_matrix import list_subjects
from penstock.errors import PenstockError
from penstock.store.audit.entry import PSEUDONYM, Outcome
from penstock.store.audit.reader import (
    Filter,
    Recorded,
    entries,
    newest_head,
    read_after,
    read_last,
)
from penstock.store.audit.signatures import PublicKeys, anchor_path, load_head, public_path
from penstock.store.audit.verification import verify

ROOM: Final = Room(
    "audit",
    "Audit log",
    order=70,
    help="explanation/audit-log",
    icon="M12 3l8 3v6c0 5-3.5 8-8 9-4.5-1-8-4-8-9V6zM9 12l2 2 4-4",
    about="What was decided and done, signed.",
)
_LISTED: Final = 100
_KINDS_SECONDS: Final = 30.0
_SEARCH_SECONDS: Final = 300.0
_MOST_NOTED: Final = 1_000
_FOREVER: Final = float("inf")
_MILLION: Final = 1_000_000

AskedOutcome = Annotated[
    Literal["", "allowed", "denied", "done", "failed"], Query(description="How it ended.")
]
AskedText = Annotated[str, Query(max_length=256)]


class EntryRow(PageData):
    """One entry."""

    seq: int
    at: str
    kind: str
    outcome: str
    actor: str
    subject: str
    rule: str
    epoch: int | None
    details: dict[str, str | int | bool]


class EntryList(PageData):
    """Entries, the newest first."""

    kind: str
    outcome: str
    who: str
    kinds: Sequence[str]
    rows: Sequence[EntryRow]
    older: int | None
    """The number to go on from."""
    size: int


class Finding(PageData):
    """Something that is not as it was signed."""

    message: str
    entry: int | None


class VerifyPage(PageData):
    """What the last look at the whole log found."""

    state: str
    """never, running, done, or failed."""
    at: str
    ok: bool
    size: int
    heads: int
    pruned: int
    root: str
    findings: Sequence[Finding]
    trouble: str
    head_size: int
    """How many entries the newest signed head covers."""
    head_root: str


@ROOM.page("/audit", "Audit log", "audit/list.html")
def list_entries(
    visit: Visitor,
    kind: AskedText = "",
    outcome: AskedOutcome = "",
    who: AskedText = "",
    before: Annotated[int | None, Query(ge=0, lt=1 << 63)] = None,
) -> EntryList:
    """List entries, the newest first, by kind, outcome, and who they are about."""
    desk = visit.desk
    with desk.database.read() as connection:
        found = read_last(connection, _LISTED, _filter(desk, kind, outcome, who, before))[::-1]
    _note_search(visit, who)
    names = _known_names(visit)
    head = newest_head(desk.database)
    return EntryList(
        kind=kind,
        outcome=outcome,
        who=who,
        kinds=desk.remember("audit kinds", _KINDS_SECONDS, lambda: _list_kinds(desk)),
        rows=[_tell(it, names) for it in found],
        older=found[-1].seq if len(found) == _LISTED else None,
        size=head.size if head is not None else 0,
    )


def _filter(desk: Desk, kind: str, outcome: str, who: str, before: int | None) -> Filter:
    people: Sequence[str] = ()
    if who.strip():
        # Who knows a pseudonym already searches for it as it is.
        people = (who.strip(), *desk.people.all_of(who.strip()))
    return Filter(
        kinds=(kind,) if kind else (),
        outcomes=(Outcome(outcome),) if outcome else (),
        people=people,
        before=before,
    )


def _about(desk: Desk, who: str) -> dict[str, Any]:
    """Return whom an entry of the log is about where somebody was searched for."""
    wanted = who.strip()
    if not wanted:
        return {}
    return {"subject": wanted if PSEUDONYM.fullmatch(wanted) else desk.people.person(wanted)}


def _note_search(visit: Visit, who: str) -> None:
    """Record that somebody was searched for, once for a while."""
    found, now = _about(visit.desk, who), time.monotonic()
    if not found:
        return
    noted: dict[tuple[str, str], float] = visit.desk.remember("searches", _FOREVER, dict)
    key = (visit.user, found["subject"])
    if now - noted.get(key, float("-inf")) < _SEARCH_SECONDS:
        return
    visit.desk.record("search", visit.user, **found)
    if len(noted) >= _MOST_NOTED:
        noted.clear()  # then some are recorded twice
    noted[key] = now


def _list_kinds(desk: Desk) -> list[str]:
    with desk.database.read() as connection:
        rows = connection.scalars(sa.select(entries.c.kind).distinct().order_by(entries.c.kind))
        return [str(it) for it in rows]


def _known_names(visit: Visit) -> dict[str, str]:
    if not visit.administers:
        return {}
    names: dict[str, str] = {}
    for it in (*list_subjects(visit.definitions), visit.user):
        for pseudonym in visit.desk.people.all_of(it):
            names[pseudonym] = it
    return names


def _tell(found: Recorded, names: dict[str, str]) -> EntryRow:
    entry = found.entry
    details = json.loads(entry.details) if entry.details else {}
    return EntryRow(
        seq=found.seq,
        at=datetime.fromtimestamp(entry.time / _MILLION, UTC).isoformat(),
        kind=str(entry.kind),
        outcome=str(entry.outcome),
        actor=names.get(entry.actor or "", entry.actor or ""),
        subject=names.get(entry.subject or "", entry.subject or ""),
        rule=entry.rule or "",
        epoch=entry.epoch,
        details=details if isinstance(details, dict) else {},
    )


@ROOM.action("/audit/export", streams=True)
def export(visit: Visitor, form: Form) -> StreamingResponse:
    """Send all entries that fit, the oldest first, as lines of JSON."""
    desk = visit.desk
    wanted = form.text("outcome", 16)
    outcome = wanted if wanted in {it.value for it in Outcome} else ""
    only = _filter(desk, form.text("kind", 256), outcome, form.text("who", 256), None)
    desk.record("export", visit.user, **_about(desk, form.text("who", 256)))

    def lines() -> Iterator[str]:
        seq = -1
        while True:
            with desk.database.read() as connection:
                page = read_after(connection, seq, 1_000, only)
            for it in page:
                yield json.dumps(it.as_document(), ensure_ascii=False) + "\n"
            if not page:
                return
            seq = page[-1].seq

    name = f"audit-{utc_now():%Y%m%d-%H%M%S}.ndjson"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)


@dataclass(slots=True)
class Verification:
    """One look at the whole log at a time."""

    page: VerifyPage
    running: bool = False


_LOCK: Final = threading.Lock()
_NAME: Final = "audit verification"


def _verification(desk: Desk) -> Verification:
    return desk.remember(_NAME, _FOREVER, lambda: Verification(_make_page("never")))


def _make_page(state: str, trouble: str = "") -> VerifyPage:
    return VerifyPage(
        state=state,
        at=utc_now().isoformat() if state != "never" else "",
        ok=False,
        size=0,
        heads=0,
        pruned=0,
        root="",
        findings=[],
        trouble=trouble,
        head_size=0,
        head_root="",
    )


@ROOM.page("/audit/verify", "Verify", "audit/verify.html", live="audit/verdict.html", every=1.0)
def show_verification(visit: Visitor) -> VerifyPage:
    """Show what the last look at the whole log found."""
    page = _verification(visit.desk).page
    head = newest_head(visit.desk.database)
    if head is None:
        return page
    return page.model_copy(update={"head_size": head.size, "head_root": head.root.hex()})


@ROOM.action("/audit/verify")
def start_verification(visit: Visitor, form: Form) -> Done:
    """Begin to look at the whole log, unless that is going on."""
    del form
    desk, state = visit.desk, _verification(visit.desk)
    with _LOCK:
        if state.running:
            return Done("/audit/verify")
        state.running, state.page = True, _make_page("running")
    desk.record("verify", visit.user)
    threading.Thread(target=_verify, args=(desk, state), name="verify", daemon=True).start()
    return Done("/audit/verify")


def _verify(desk: Desk, state: Verification) -> None:
    key = desk.config.audit.signing_key.path
    try:
        anchor = anchor_path(key)
        kept = [load_head(anchor)] if anchor.exists() else []
        verdict = verify(desk.database, PublicKeys.load(public_path(key)), kept=kept)
    except PenstockError as error:
        state.page = _make_page("failed", str(error))
    else:
        findings = [Finding(message=it.message, entry=it.entry) for it in verdict.findings[:50]]
        state.page = _make_page("done").model_copy(
            update={
                "ok": verdict.ok,
                "size": verdict.size,
                "heads": verdict.heads,
                "pruned": verdict.pruned or 0,
                "root": verdict.root.hex(),
                "findings": findings,
            }
        )
    finally:
        state.running = False
