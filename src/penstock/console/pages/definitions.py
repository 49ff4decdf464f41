"""Definitions: what there is, what it was, and changes, each shown before it is applied.

    edit, delete, roll back ─▶ review: problems | diff, effect on access ─▶ apply, as reviewed

Rules that hold here:
- Nothing is applied that was not shown as it is: the form to apply carries a mark over the text,
  the deletions and the epoch it was compared with. Where that is another by now, it is shown anew.
- Every way of changing leads through the review. What is applied passes the one door that all
  changes pass, with the history, the audit log and the name of who did it.
- To look takes the right to see the room; to change, the right to administer.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import quote as encode

from fastapi import Query
from pydantic import Field

from penstock.clock import utc_now
from penstock.console.access import MissingError
from penstock.console.desk import Visit, Visitor
from penstock.console.effects import AccessEffect, find_effect, replay, summarize
from penstock.console.rooms import Again, Done, Form, FormData, PageData, Room
from penstock.definitions import (
    DefinitionSet,
    Difference,
    after_applying,
    differences,
    read_text,
    write_yaml,
)
from penstock.errors import InvalidError, PenstockError, Problem, UsageError, quote
from penstock.model import kinds
from penstock.model.document import Document, Key
from penstock.model.kinds import KINDS
from penstock.policy.access.emergencies import SituationBoard
from penstock.store.definitions.documents import Snapshot
from penstock.store.detection.situations import read_live
from penstock.store.rights.registrations import RegistrationStatus

ROOM: Final = Room(
    "definitions",
    "Definitions",
    order=10,
    help="reference/definitions",
    icon="M6 3h9l4 4v14H6zM14 3v5h5M9 13h7M9 17h7",
    about="All that is declared, its history, and changes.",
)
_LISTED: Final = 500
_TEXT_LIMIT: Final = 900_000
_REASON_LIMIT: Final = 2_000
_PATH: Final = re.compile(r"/[a-z]+(/[a-z]+)*(\?[\w.~%&=+-]*)?", re.ASCII)


class KindCount(PageData):
    """How many definitions there are of a kind."""

    kind: str
    count: int
    about: str


class DefinitionRow(PageData):
    """A definition in the list."""

    kind: str
    name: str
    summary: str


class DefinitionList(PageData):
    """Definitions, of all kinds or of one."""

    kind: str
    asked: str
    epoch: int
    kinds: Sequence[KindCount]
    rows: Sequence[DefinitionRow]
    total: int
    may_change: bool


class RevisionRow(PageData):
    """One change of a definition."""

    epoch: int
    at: str
    actor: str
    reason: str
    deleted: bool


class DefinitionPage(PageData):
    """One definition, with its history."""

    kind: str
    name: str
    about: str
    text: str | None = Field(description="As YAML; none: there is none now.")
    used_by: Sequence[str]
    revisions: Sequence[RevisionRow]
    may_change: bool


class DiffLine(PageData):
    """One line of a difference: `+`, `-` or a blank, and the text."""

    sign: str
    text: str


class DefinitionDiff(PageData):
    """How one definition differs."""

    action: str
    kind: str
    name: str
    means_the_same: bool
    lines: Sequence[DiffLine]


class EpochRow(PageData):
    """One change of the whole set."""

    epoch: int
    at: str
    actor: str
    reason: str
    changes: int


class HistoryPage(PageData):
    """All changes, the newest first."""

    epoch: int
    epochs: Sequence[EpochRow]
    may_change: bool


class EpochPage(PageData):
    """What an epoch changed."""

    epoch: int
    current: int
    diffs: Sequence[DefinitionDiff]
    may_change: bool


class EditorPage(PageData):
    """A text to edit, and what is wrong with it."""

    text: str
    deletes: Sequence[str]
    reason: str
    problems: Sequence[Mapping[str, str]]
    message: str = ""
    kinds: Sequence[str] = ()


class AccessRow(PageData):
    """What changes for somebody."""

    subject: str
    source: str
    purpose: str
    situation: str
    direction: str
    attributes: Sequence[tuple[str, str, str]]
    rule: str


class ReplayedRow(PageData):
    """A recent decision that would be another one."""

    action: str
    user: str
    topic: str
    purposes: Sequence[str]
    times: int
    was: str
    will: str
    rule: str


class ReplayPage(PageData):
    """Recent decisions of the gateways, decided anew under the draft."""

    rows: Sequence[ReplayedRow]
    same: int
    unknown: int
    left: int
    silent: int
    """How many gateways did not answer."""


class ReviewPage(PageData):
    """A change as it would be, before it is applied."""

    text: str
    deletes: Sequence[str]
    reason: str
    back: str
    epoch: int
    mark: str
    diffs: Sequence[DefinitionDiff]
    access: Sequence[AccessRow]
    counts: Sequence[tuple[str, int]]
    total: int
    looked: int
    left: int
    replay: ReplayPage | None = None
    registration: str = ""
    notice: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """A change that somebody wants to make."""

    text: str
    deletes: tuple[Key, ...]
    reason: str
    back: str = ""
    """The page that it was made on, to go on at."""
    registration: str = ""
    """Which registration it approves, if any."""

    @classmethod
    def read(cls, form: FormData) -> Draft:
        """Read what the editor or the review has sent."""
        text = form.get("text", "")
        if len(text) > _TEXT_LIMIT:
            raise UsageError(
                "the text is too long for a form", fix="apply it with `penstock apply -f FILE`"
            )
        return cls(
            text,
            tuple(dict.fromkeys(parse_key(it) for it in form.all("delete"))),
            form.text("reason", _REASON_LIMIT),
            _read_back(form.text("back", 1_000)),
            form.text("registration", 32),
        )

    def mark(self, visit: Visit, epoch: int) -> str:
        """Return what binds the form to apply to what was shown."""
        shown = "\0".join([str(epoch), self.registration, self.text, *map(str, self.deletes)])
        return hmac.digest(visit.csrf.encode(), shown.encode(), "sha256").hex()


def _read_back(given: str) -> str:
    """Return a path of the console, whatever was given."""
    return given if _PATH.fullmatch(given) else ""


def parse_key(text: str) -> Key:
    """Read `kind/name`."""
    kind, slash, name = text.partition("/")
    if not slash or kind not in KINDS or not name:
        raise UsageError(f"{quote(text)} names no definition", fix="write KIND/NAME")
    return Key(kind, name)


def address_of(key: Key) -> str:
    """Return the address of a definition."""
    return f"/definitions/one?kind={encode(key.kind, safe='')}&name={encode(key.name, safe='')}"


def about(kind: str) -> str:
    """Return what a kind is for, in a sentence."""
    return (KINDS[kind].__doc__ or "").partition("\n")[0].strip()


@ROOM.page("/definitions", "Definitions", "definitions/list.html")
def list_definitions(
    visit: Visitor,
    kind: Annotated[str, Query(max_length=64)] = "",
    q: Annotated[str, Query(max_length=200)] = "",
) -> DefinitionList:
    """List definitions, of all kinds or of one, by a part of their names."""
    snapshot, _ = visit.desk.current()
    counts: dict[str, int] = {}
    found: list[DefinitionRow] = []
    wanted, total = q.strip().casefold(), 0
    for key in sorted(snapshot.documents):
        counts[key.kind] = counts.get(key.kind, 0) + 1
        if (kind and key.kind != kind) or wanted not in key.name.casefold():
            continue
        total += 1
        if len(found) < _LISTED:
            summary = summarize_body(snapshot.documents[key].body)
            found.append(DefinitionRow(kind=key.kind, name=key.name, summary=summary))
    return DefinitionList(
        kind=kind,
        asked=q,
        epoch=snapshot.epoch,
        kinds=[KindCount(kind=it, count=counts[it], about=about(it)) for it in sorted(counts)],
        rows=found,
        total=total,
        may_change=visit.administers,
    )


def summarize_body(body: Mapping[str, Any]) -> str:
    """Return the first fields of a definition in a line."""
    parts = []
    for name, value in body.items():
        if name == "signature":
            continue
        shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        if isinstance(value, Mapping):
            shown = ", ".join(map(str, value))
        parts.append(f"{name}: {shown}")
    text = " · ".join(parts)
    return text if len(text) <= 160 else text[:159] + "…"  # noqa: PLR2004 - a line of the table


@ROOM.page("/definitions/one", "Definition", "definitions/one.html", hidden=True)
def show_definition(
    visit: Visitor,
    kind: Annotated[str, Query(max_length=64)],
    name: Annotated[str, Query(max_length=256)],
) -> DefinitionPage:
    """Show one definition, what uses it, and its history."""
    snapshot, definitions = visit.desk.current()
    key = _known_key(kind, name)
    document = snapshot.documents.get(key)
    revisions = visit.desk.definitions.definitions.history(key)
    if document is None and not revisions:
        raise MissingError(f"there is no {kind} {quote(name)}", fix="look for it in the list")
    return DefinitionPage(
        kind=kind,
        name=name,
        about=about(kind),
        text=write_yaml([document]) if document is not None else None,
        used_by=[str(it) for it in definitions.used_by(key)],
        revisions=[
            RevisionRow(
                epoch=it.epoch,
                at=it.at.isoformat(),
                actor=it.actor,
                reason=it.reason,
                deleted=it.document is None,
            )
            for it in revisions
        ],
        may_change=visit.administers,
    )


def _known_key(kind: str, name: str) -> Key:
    if kind not in KINDS:
        raise MissingError(f"there is no kind {quote(kind)}", fix="look for it in the list")
    return Key(kind, name)


@ROOM.page("/definitions/history", "History", "definitions/history.html")
def show_history(visit: Visitor) -> HistoryPage:
    """List all changes of the definitions, the newest first."""
    rows = visit.desk.definitions.definitions.epochs(200)
    return HistoryPage(
        epoch=visit.epoch,
        epochs=[
            EpochRow(
                epoch=it.epoch,
                at=it.at.isoformat(),
                actor=it.actor,
                reason=it.reason,
                changes=it.changes,
            )
            for it in rows
        ],
        may_change=visit.administers,
    )


@ROOM.page("/definitions/epoch", "Epoch", "definitions/epoch.html", hidden=True)
def show_epoch(visit: Visitor, epoch: Annotated[int, Query(ge=1, lt=1 << 63)]) -> EpochPage:
    """Show what an epoch changed."""
    store = visit.desk.definitions.definitions
    before, after = store.snapshot_at(epoch - 1), store.snapshot_at(epoch)
    return EpochPage(
        epoch=epoch,
        current=visit.epoch,
        diffs=tell_differences(differences(before.documents, after.documents)),
        may_change=visit.administers,
    )


def tell_differences(found: Sequence[Difference]) -> list[DefinitionDiff]:
    """Return differences as a page shows them."""
    return [
        DefinitionDiff(
            action=it.action,
            kind=it.key.kind,
            name=it.key.name,
            means_the_same=it.means_the_same,
            lines=[DiffLine(sign=line[:1] or " ", text=line[1:]) for line in it.lines()],
        )
        for it in found
    ]


@ROOM.page("/definitions/edit", "Edit", "definitions/edit.html", hidden=True)
def edit(
    visit: Visitor,
    kind: Annotated[str, Query(max_length=64)] = "",
    name: Annotated[str, Query(max_length=256)] = "",
) -> EditorPage:
    """Show a definition, or nothing yet, in the editor."""
    visit.require_administration()
    snapshot, _ = visit.desk.current()
    text = ""
    if kind and name:
        document = snapshot.documents.get(_known_key(kind, name))
        if document is None:
            raise MissingError(f"there is no {kind} {quote(name)}", fix="look for it in the list")
        text = write_yaml([document])
    elif kind:
        text = f"kind: {_known_key(kind, 'x').kind}\nname: \n"
    return EditorPage(text=text, deletes=[], reason="", problems=[], kinds=sorted(KINDS))


@ROOM.action("/definitions/review")
def review(visit: Visitor, form: Form) -> Again:
    """Show what a change would do, or what is wrong with it."""
    visit.require_administration()
    return show_review(visit, Draft.read(form))


@ROOM.action("/definitions/rollback")
def review_rollback(visit: Visitor, form: Form) -> Again:
    """Show what going back to an epoch would do, for all definitions or one."""
    visit.require_administration()
    given = form.text("epoch", 20)
    if not given.isascii() or not given.isdigit():
        raise UsageError(f"{quote(given)} is not an epoch", fix="choose one in the history")
    store = visit.desk.definitions.definitions
    now, then = store.snapshot(), store.snapshot_at(int(given))
    keys = [parse_key(it) for it in form.all("key")] or sorted(
        now.documents.keys() | then.documents.keys()
    )
    put = [
        then.documents[key]
        for key in keys
        if key in then.documents and then.documents[key] != now.documents.get(key)
    ]
    gone = tuple(key for key in keys if key in now.documents and key not in then.documents)
    return show_review(visit, Draft(write_yaml(put), gone, f"back to epoch {given}"))


@ROOM.action("/definitions/apply")
def apply(visit: Visitor, form: Form) -> Again | Done:
    """Apply a change as it was reviewed."""
    visit.require_administration()
    draft = Draft.read(form)
    snapshot, _ = visit.desk.current()
    mark = form.get("mark", "")
    if not hmac.compare_digest(mark.encode(), draft.mark(visit, snapshot.epoch).encode()):
        return show_review(
            visit, draft, "The definitions or the text changed since: this is what it would do now."
        )
    expected = snapshot.epoch

    def want(now: Snapshot) -> dict[Key, Document | None]:
        if now.epoch != expected:
            raise UsageError(
                "the definitions changed in this very moment", fix="go back, and review it again"
            )
        wanted: dict[Key, Document | None] = dict.fromkeys(draft.deletes)
        return wanted | {it.key: it for it in read_text(draft.text).documents}

    change = visit.desk.definitions.edit(
        want, actor=visit.user, reason=draft.reason or "by the console"
    )
    visit.desk.follow(change)
    if draft.registration:
        approved = RegistrationStatus.APPROVED
        visit.desk.registrations.decide(draft.registration, approved, visit.user)
        visit.desk.record("approved", visit.user, request=draft.registration)
    if change.is_empty:
        return Done("/definitions", "Nothing changed: it was so already.")
    count = len(change.created) + len(change.updated) + len(change.deleted)
    noun = "definition" if count == 1 else "definitions"
    touched = [*change.created, *change.updated]
    one = address_of(touched[0]) if len(touched) == 1 else ""
    to = draft.back or one or f"/definitions/epoch?epoch={change.epoch}"
    return Done(to, f"Epoch {change.epoch}: {count} {noun} changed.")


def show_review(visit: Visit, draft: Draft, notice: str = "") -> Again:
    """Return the review of a draft, or the editor with what is wrong with it."""
    snapshot, definitions = visit.desk.current()
    reading = read_text(draft.text)
    try:
        if not reading.documents and not draft.deletes and not reading.problems:
            raise UsageError("nothing is defined in the text", fix="begin with kind: and name:")
        for key in draft.deletes:
            if key not in snapshot.documents:
                raise UsageError(f"there is no {key}", fix="it may be deleted already")
        after = definitions.change(
            reading.documents,
            draft.deletes,
            locate=reading.locate,
            problems=reading.problems,
        )
    except PenstockError as error:
        return Again("definitions/edit.html", "Edit", _tell_problems(draft, error))
    documents = after_applying(snapshot.documents, reading.documents)
    for key in draft.deletes:
        documents.pop(key, None)
    found = differences(snapshot.documents, documents)
    effect = find_effect(visit.desk.authorizer, definitions, after) if found else AccessEffect()
    return Again(
        "definitions/review.html",
        "Review",
        ReviewPage(
            text=draft.text,
            deletes=list(map(str, draft.deletes)),
            reason=draft.reason,
            back=draft.back,
            epoch=snapshot.epoch,
            mark=draft.mark(visit, snapshot.epoch),
            diffs=tell_differences(found),
            access=[
                AccessRow(
                    subject=it.subject,
                    source=it.source,
                    purpose=it.purpose,
                    situation=it.situation,
                    direction=it.direction,
                    attributes=it.attributes,
                    rule=it.rule,
                )
                for it in effect.changes
            ],
            counts=summarize(effect.changes),
            total=effect.total,
            looked=effect.looked,
            left=effect.left,
            replay=_replay(visit, definitions, after) if found and visit.administers else None,
            registration=draft.registration,
            notice=notice,
        ),
        status=200,
    )


def _replay(visit: Visit, before: DefinitionSet, after: DefinitionSet) -> ReplayPage:
    desk = visit.desk
    decisions, silent = desk.recent_decisions(visit.user)
    done = replay(
        decisions,
        desk.authorizer(before),
        desk.authorizer(after),
        read_live(desk.database, utc_now()) if before.of(kinds.Scenario) else SituationBoard(),
    )
    return ReplayPage(
        rows=[
            ReplayedRow(
                action=it.decision.action,
                user=it.decision.user or "",
                topic=it.decision.topic,
                purposes=[purpose or "none" for purpose in it.decision.purposes],
                times=it.times,
                was="allowed" if it.decision.allowed else "denied",
                will="allowed" if it.will_be_allowed else "denied",
                rule=it.rule,
            )
            for it in done.changes
        ],
        same=done.same,
        unknown=done.unknown,
        left=done.left,
        silent=silent,
    )


def _tell_problems(draft: Draft, error: PenstockError) -> EditorPage:
    problems = (
        error.problems
        if isinstance(error, InvalidError)
        else [Problem("", error.message, error.fix)]
    )
    return EditorPage(
        text=draft.text,
        deletes=list(map(str, draft.deletes)),
        reason=draft.reason,
        problems=[
            {"place": it.place, "message": it.message, "fix": it.fix or ""} for it in problems[:100]
        ],
        message=f"{len(problems)} problem{'s' if len(problems) != 1 else ''}: nothing was applied",
        kinds=sorted(KINDS),
    )
