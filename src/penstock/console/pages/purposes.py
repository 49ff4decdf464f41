"""Purposes: their tree, the topics that are reserved for them, and who subscribes for what.

    purpose ◀── reservation of a filter ──▶ topic: effective purposes ◀── subscription, its purpose

Rules that hold here:
- What a topic or a filter allows is what the gateway's own engine says of the definitions in force.
- A change of the tree becomes definitions to put and keys to delete, and leads through the review
  like any other: renaming a purpose renames it wherever a definition names it.
- Subscriptions are what the gateways answer; where one does not, that is said.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

from fastapi import Query

from penstock.console.desk import Visit, Visitor
from penstock.console.pages.definitions import Draft, show_review
from penstock.console.rooms import Again, Form, PageData, Room
from penstock.definitions import write_yaml
from penstock.definitions.authorizer import authorizer_of
from penstock.errors import UsageError, quote
from penstock.model import kinds
from penstock.model.definition import Reference, marked
from penstock.model.document import Document, Key
from penstock.model.purposes import ALLOWS, PROHIBITS, PurposeError, check_purpose
from penstock.model.topics import TopicError, check_filter, covers
from penstock.policy.purposes.engine import PurposeEngine
from penstock.policy.purposes.explanations import explain_topic
from penstock.store.definitions.documents import Snapshot
from penstock.store.enforcement_points import ClientRequests

ROOM: Final = Room(
    "purposes",
    "Purposes",
    order=15,
    help="explanation/purposes",
    icon="M12 4v5M12 9H6v4M12 9h6v4M4 13h4v5H4zM10 13h4v5h-4zM16 13h4v5h-4zM12 9v4",
    about="What data may be used for, and which topics serve which.",
)
_ASK_SECONDS: Final = 3.0
_HELD_SECONDS: Final = 3.0
_LISTED: Final = 500
_DEPENDS: Final = "some topics of it, and not others"


class PurposeRow(PageData):
    """A purpose in its tree."""

    name: str
    label: str
    depth: int
    about: str
    dpv: str
    allowed: int
    """How many reservations name it."""
    prohibited: int
    controls: Sequence[str]
    """With which people withdraw it."""


class LevelRow(PageData):
    """A level of the topic tree, reserved or on the way to one that is."""

    level: str
    depth: int
    filter: str
    reserved: bool
    allow: Sequence[str]
    prohibit: Sequence[str]


class ReservedBy(PageData):
    """A reservation that has a say."""

    filter: str
    allow: Sequence[str]
    prohibit: Sequence[str]


class Verdict(PageData):
    """What one purpose may do there."""

    purpose: str
    where: str
    """allowed, denied, or changed: some topics of a filter."""
    rule: str


class EffectivePurposes(PageData):
    """What holds for a topic or a filter."""

    text: str
    is_filter: bool
    reserved: bool
    allow: Sequence[str]
    prohibit: Sequence[str]
    by: Sequence[ReservedBy]
    verdicts: Sequence[Verdict]


class PurposesPage(PageData):
    """All purposes, and the topics reserved for them."""

    purposes: Sequence[PurposeRow]
    levels: Sequence[LevelRow]
    more: bool
    topic: str
    effective: EffectivePurposes | None
    open_without_reservation: bool
    claims_need_right: bool
    mode: str
    may_change: bool


class SubscriptionRow(PageData):
    """A subscription of a client that is connected."""

    client: str
    user: str
    filter: str
    purpose: str
    state: str
    """allowed, or paused: the rules do not allow it now."""
    certain: bool
    """Whether it is about certain events only."""
    gateway: str


class SubscriptionsPage(PageData):
    """Who subscribes for what."""

    asked: str
    rows: Sequence[SubscriptionRow]
    clients: int
    shown: int
    gateways: int
    answered: int


@ROOM.page("/purposes", "Purposes", "purposes/tree.html")
def show_tree(visit: Visitor, topic: Annotated[str, Query(max_length=1_000)] = "") -> PurposesPage:
    """Show the tree of purposes, the reservations, and what holds for a topic or a filter."""
    known = visit.definitions
    reservations = known.of(kinds.Reservation)
    allowed = Counter(it for held in reservations.values() for it in held.allow)
    prohibited = Counter(it for held in reservations.values() for it in held.prohibit)
    controls = known.of(kinds.Control)
    engine = authorizer_of(visit.desk.config.gateway, known).purposes
    levels = list(_list_levels(reservations))
    return PurposesPage(
        purposes=[
            PurposeRow(
                name=name,
                label=name.rpartition("/")[2],
                depth=min(name.count("/"), 6),
                about=it.description,
                dpv=it.dpv,
                allowed=allowed[name],
                prohibited=prohibited[name],
                controls=[key for key, control in controls.items() if name in control.purposes],
            )
            for name, it in sorted(
                known.of(kinds.Purpose).items(), key=lambda item: item[0].split("/")
            )
        ],
        levels=levels[:_LISTED],
        more=len(levels) > _LISTED,
        topic=topic,
        effective=_find_effective(visit, topic.strip()) if topic.strip() else None,
        open_without_reservation=engine.settings.allow_without_reservation,
        claims_need_right=engine.settings.claims_need_right,
        mode=engine.settings.mode.name.lower().replace("_", " "),
        may_change=visit.administers,
    )


def _list_levels(reservations: Any) -> Iterator[LevelRow]:
    """Yield the levels that lead to reservations, as a tree is written."""
    seen: set[str] = set()
    for name in sorted(reservations, key=lambda it: it.split("/")):
        parts = name.split("/")
        for depth in range(len(parts)):
            path = "/".join(parts[: depth + 1])
            if path in seen:
                continue
            seen.add(path)
            held = reservations.get(path)
            yield LevelRow(
                level=parts[depth] or "(empty)",
                depth=min(depth, 6),
                filter=path,
                reserved=held is not None,
                allow=held.allow if held is not None else (),
                prohibit=held.prohibit if held is not None else (),
            )


def _find_effective(visit: Visit, text: str) -> EffectivePurposes:
    """Return what the gateway's engine says of a topic or a filter."""
    try:
        check_filter(text)
    except TopicError as error:
        raise UsageError(error.message, fix=error.fix) from None
    engine = authorizer_of(visit.desk.config.gateway, visit.definitions).purposes
    is_filter = any(it in {"+", "#"} for it in text.split("/"))
    effective = None if is_filter else engine.effective(text)
    names = sorted(visit.definitions.of(kinds.Purpose))
    verdicts = [_judge(engine, text, it, is_filter=is_filter) for it in (None, *names)]
    return EffectivePurposes(
        text=text,
        is_filter=is_filter,
        reserved=effective is not None,
        allow=sorted(effective.aip) if effective else [],
        prohibit=sorted(effective.pip) if effective else [],
        by=[
            ReservedBy(filter=name, allow=sorted(held.aip), prohibit=sorted(held.pip))
            for name, held in sorted(engine.affected(text))
        ],
        verdicts=verdicts,
    )


def _judge(engine: PurposeEngine, text: str, purpose: str | None, *, is_filter: bool) -> Verdict:
    """Say whether a subscription for a purpose receives from a topic, or from those of a filter."""
    if not is_filter:
        said = explain_topic(engine.reservations, text, purpose)
        where = "allowed" if engine.decide(text, purpose) else "denied"
        return Verdict(purpose=purpose or "", where=where, rule=said.rule)
    where, rule = _judge_filter(engine, text, purpose)
    return Verdict(purpose=purpose or "", where=where, rule=rule)


def _judge_filter(engine: PurposeEngine, filter_: str, purpose: str | None) -> tuple[str, str]:
    """Say it of all topics of a filter: reservations add up, and a prohibition wins."""
    whole: set[int] = set()
    some: set[int] = set()
    for name, held in engine.affected(filter_):
        (whole if covers(name, filter_) else some).add(held.effect(purpose))
    if PROHIBITS in whole:
        return "denied", "no topic of it: all are prohibited"
    if ALLOWS in whole or (not whole and not some and engine.settings.allow_without_reservation):
        return ("changed", _DEPENDS) if PROHIBITS in some else ("allowed", "every topic of it")
    if ALLOWS in some or (not whole and engine.settings.allow_without_reservation):
        return "changed", _DEPENDS
    return "denied", "no topic of it: none allows it"


# --- subscriptions ---


@ROOM.page(
    "/purposes/subscriptions",
    "Subscriptions",
    "purposes/subscriptions.html",
    live="purposes/held.html",
    every=5.0,
)
def list_subscriptions(
    visit: Visitor, q: Annotated[str, Query(max_length=200)] = ""
) -> SubscriptionsPage:
    """Show who subscribes for what, and whether the rules allow it now."""
    desk = visit.desk

    def ask() -> Any:
        return ClientRequests(desk.database).ask("held", "", _ASK_SECONDS)

    answers = desk.remember("subscriptions", _HELD_SECONDS, ask)
    wanted = q.strip().casefold()
    rows = [
        SubscriptionRow(
            client=client["client"],
            user=client["user"] or "",
            filter=it["filter"],
            purpose=it["purpose"] or "",
            state="paused" if it["paused"] else "allowed",
            certain=it["filtered"],
            gateway=str(body["gateway"]),
        )
        for body in answers.bodies
        for client in body["clients"]
        for it in client["filters"]
    ]
    found = [it for it in rows if wanted in " ".join(_words_of(it)).casefold()]
    found.sort(key=_words_of)
    return SubscriptionsPage(
        asked=q,
        rows=found[:_LISTED],
        clients=sum(body["count"] for body in answers.bodies),
        shown=min(len(found), _LISTED),
        gateways=answers.expected,
        answered=len(answers.bodies),
    )


def _words_of(row: SubscriptionRow) -> tuple[str, ...]:
    return row.filter, row.user, row.client, row.purpose


# --- changes: each leads to the review ---


def _check_name(name: str) -> None:
    try:
        check_purpose(name)
    except PurposeError as error:
        raise UsageError(error.message, fix=error.fix) from None


@ROOM.action("/purposes/add")
def add(visit: Visitor, form: Form) -> Again:
    """Show what a new purpose would change."""
    visit.require_administration()
    parent, label = form.text("parent", 256), form.text("label", 256)
    name = f"{parent}/{label}" if parent else label
    _check_name(name)
    if visit.definitions.get(kinds.Purpose, name) is not None:
        raise UsageError(f"there is a purpose {quote(name)} already", fix="choose another name")
    about, dpv = form.text("description", 1_000), form.text("dpv", 256)
    body = {"description": about} if about else {}
    made = Document("purpose", name, body | ({"dpv": dpv} if dpv else {}))
    return show_review(visit, Draft(write_yaml([made]), (), f"the purpose {name}", "/purposes"))


@ROOM.action("/purposes/rename")
def rename(visit: Visitor, form: Form) -> Again:
    """Show what renaming a purpose, with all below it, would change."""
    visit.require_administration()
    old, label = form.text("name", 256), form.text("label", 256)
    parent = old.rpartition("/")[0]
    new = f"{parent}/{label}" if parent else label
    _check_name(new)
    if visit.definitions.get(kinds.Purpose, old) is None:
        raise UsageError(f"there is no purpose {quote(old)}", fix="look at the tree again")
    if visit.definitions.get(kinds.Purpose, new) is not None:
        raise UsageError(f"there is a purpose {quote(new)} already", fix="choose another name")
    put, gone = plan_renaming(visit, visit.desk.current()[0], old, new)
    return show_review(
        visit, Draft(write_yaml(put), tuple(gone), f"{old} is renamed {new}", "/purposes")
    )


def plan_renaming(
    visit: Visit, snapshot: Snapshot, old: str, new: str
) -> tuple[list[Document], list[Key]]:
    """Return the definitions that differ, and the keys that go.

    Only texts that mean a purpose are changed: a field of another meaning keeps the same word.
    """
    put, gone = [], []
    for key, document in sorted(snapshot.documents.items()):
        body, changed = copy.deepcopy(dict(document.body)), False
        for marker, steps, text in marked(visit.definitions.definitions[key]):
            if not isinstance(marker, Reference) or marker.kind != "purpose" or steps == ("name",):
                continue
            head = text[: len(marker.prefix)]
            named = text.removeprefix(marker.prefix)
            if named == old or named.startswith(f"{old}/"):
                changed = _replace(body, steps, text, f"{head}{new}{named[len(old) :]}") or changed
        name = key.name
        if key.kind == "purpose" and (name == old or name.startswith(f"{old}/")):
            name = new + name[len(old) :]
            gone.append(key)
        if changed or name != key.name:
            put.append(Document(key.kind, name, body))
    return put, gone


def _replace(body: Any, steps: Sequence[str | int], old: str, new: str) -> bool:
    """Put a text in place of another where the steps lead; a mapping's key is one, too."""
    at = body
    for step in steps[:-1]:
        at = at[step]
    last = steps[-1]
    if isinstance(at, str | int):
        return False
    if at[last] == old:
        at[last] = new
        return True
    held = at[last]
    if isinstance(held, dict) and old in held:
        held[new] = held.pop(old)
        return True
    return False


@ROOM.action("/purposes/remove")
def remove(visit: Visitor, form: Form) -> Again:
    """Show what removing a purpose, with all below it, would change."""
    visit.require_administration()
    name = form.text("name", 256)
    gone = tuple(
        Key("purpose", it)
        for it in sorted(visit.definitions.of(kinds.Purpose))
        if it == name or it.startswith(f"{name}/")
    )
    if not gone:
        raise UsageError(f"there is no purpose {quote(name)}", fix="look at the tree again")
    return show_review(visit, Draft("", gone, f"{name} is removed", "/purposes"))


@ROOM.action("/purposes/reserve")
def reserve(visit: Visitor, form: Form) -> Again:
    """Show what a reservation would change; one that names nothing is deleted."""
    visit.require_administration()
    name = form.text("filter", 1_000)
    allow, prohibit = form.all("allow"), form.all("prohibit")
    held = visit.definitions.get(kinds.Reservation, name)
    if form.get("do") == "delete":
        return show_review(
            visit, Draft("", (Key("reservation", name),), f"{name} is free", "/purposes")
        )
    body: dict[str, Any] = {}
    if held is not None and held.description:
        body["description"] = held.description
    body |= {"allow": allow} if allow else {}
    body |= {"prohibit": prohibit} if prohibit else {}
    made = Document("reservation", name, body)
    return show_review(visit, Draft(write_yaml([made]), (), f"{name} is reserved", "/purposes"))
