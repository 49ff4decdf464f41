"""Decisions: what gateways decided lately, and why somebody may or may not.

    gateways ─▶ recent decisions ─┐
    form ─────────────────────────┴▶ question ─▶ the one authorizer ─▶ verdict, every rule of it

Rules that hold here:
- The answer is that of `penstock check`; nothing here decides.
- What gateways decided lately is shown to those who administer, without what messages said; that
  they looked is on record.
- What people opted out of is not looked at: `penstock check --data-subject` tells those who may
  know. Situations that hold now count for those alone who see the room of emergencies; others ask
  under those that they suppose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final, Literal
from urllib.parse import urlencode

from fastapi import Query

from penstock.clock import utc_now
from penstock.console.desk import Visit, Visitor
from penstock.console.pages.access import ROOM, ConsideredRule, Name, Verdict
from penstock.console.pages.access_matrix import NO_PURPOSE
from penstock.console.rooms import PageData
from penstock.definitions.access_matrix import list_situations, list_subjects
from penstock.definitions.authorizer import suppose_situations
from penstock.errors import PenstockError, UsageError, quote
from penstock.json_text import read_object
from penstock.kafka.acls import WantedAccess
from penstock.model import kinds
from penstock.policy.access.emergencies import RecordedSituations, SituationBoard, Situations
from penstock.policy.access.requests import make_request
from penstock.policy.decision import Explanation
from penstock.store.detection.situations import read_live
from penstock.store.enforcement_points import RecentDecision

_LISTED: Final = 200
_LIVE: Final = "live"


class DecisionRow(PageData):
    """Something that a gateway decided lately."""

    at: str
    action: str
    user: str
    client: str
    topic: str
    purposes: Sequence[str]
    publisher: str
    allowed: bool
    reason: str
    rule: str
    why: str
    """Where its question is asked anew."""


class DecisionList(PageData):
    """What gateways decided lately, the newest first."""

    asked: str
    outcome: str
    rows: Sequence[DecisionRow]
    total: int
    silent: int
    """How many gateways did not answer."""


class Why(PageData):
    """A question, and its answer."""

    user: str
    action: str
    topic: str
    view: str
    purpose: str
    client: str
    publisher: str
    payload: str
    situation: str
    roles: str
    users: Sequence[str]
    purposes: Sequence[str]
    views: Sequence[str]
    situations: Sequence[str]
    sees_live: bool
    verdict: Verdict | None
    problem: str
    fix: str


# --- recent decisions ---


@ROOM.page("/access/decisions", "Recent decisions", "access/decisions.html")
def list_decisions(
    visit: Visitor,
    q: Annotated[str, Query(max_length=200)] = "",
    outcome: Literal["", "allowed", "denied"] = "",
) -> DecisionList:
    """List what gateways decided lately: who asked for what, and which rule decided."""
    visit.require_administration()
    found, silent = visit.desk.recent_decisions(visit.user)
    wanted = q.strip().casefold()
    fitting = [
        it
        for it in found
        if wanted in f"{it.user} {it.topic} {it.rule}".casefold()
        and (not outcome or it.allowed is (outcome == "allowed"))
    ]
    return DecisionList(
        asked=q,
        outcome=outcome,
        rows=[_tell_decision(it) for it in fitting[:_LISTED]],
        total=len(fitting),
        silent=silent,
    )


def _tell_decision(it: RecentDecision) -> DecisionRow:
    purpose = next((name for name in it.purposes if name), "")
    return DecisionRow(
        at=datetime.fromtimestamp(it.at, UTC).isoformat(),
        action=it.action,
        user=it.user or "",
        client=it.client or "",
        topic=it.topic,
        purposes=[name or NO_PURPOSE for name in it.purposes],
        publisher=it.publisher or "",
        allowed=it.allowed,
        reason=it.why.replace("_", " "),
        rule=it.rule,
        why=address_of_question(
            user=it.user,
            action=it.action,
            topic=it.topic,
            purpose=purpose,
            client=it.client,
            publisher=it.publisher,
        ),
    )


# --- why ---


@ROOM.page("/access/why", "Why?", "access/why.html", help="explanation/policies")
def ask_why(
    visit: Visitor,
    *,
    user: Name = "",
    action: Literal["read", "write"] = "read",
    topic: Annotated[str, Query(max_length=2_000)] = "",
    view: Name = "",
    purpose: Name = "",
    client: Name = "",
    publisher: Name = "",
    payload: Annotated[str, Query(max_length=16_384)] = "",
    situation: Annotated[str, Query(max_length=1_000)] = _LIVE,
    roles: Annotated[str, Query(max_length=2_000)] = "",
) -> Why:
    """Answer whether somebody may read or write a topic or a view, and by which rules."""
    definitions = visit.definitions
    verdict: Verdict | None = None
    problem = fix = ""
    try:
        if view:
            verdict = _ask_kafka(visit, user, view, action)
        elif topic:
            verdict = _ask_gateway(
                visit,
                {
                    "user": user, "action": action, "topic": topic, "purpose": purpose,
                    "client": client, "publisher": publisher, "payload": payload,
                    "situation": situation, "roles": roles,
                },
            )  # fmt: skip
    except PenstockError as error:
        problem, fix = error.message, error.fix or ""
    return Why(
        user=user,
        action=action,
        topic=topic,
        view=view,
        purpose=purpose,
        client=client,
        publisher=publisher,
        payload=payload,
        situation=situation,
        roles=roles,
        users=list_subjects(definitions),
        purposes=sorted(definitions.of(kinds.Purpose)),
        views=sorted(definitions.of(kinds.View)),
        situations=[it for it, scenario, _ in list_situations(definitions) if scenario],
        sees_live=visit.sees("emergencies"),
        verdict=verdict,
        problem=problem,
        fix=fix,
    )


def _ask_kafka(visit: Visit, user: str, view: str, action: str) -> Verdict:
    if not user:
        raise UsageError("no user is named", fix="Kafka decides by users: name one")
    access = WantedAccess(visit.definitions)
    if view not in access.views:
        raise UsageError(f"there is no view {quote(view)}", fix="choose one of the list")
    found = access.explain(user, access.views[view].topic, action, login="ready")
    return _tell_verdict(visit, found, (), ["whether a password is set at Kafka"])


def _ask_gateway(visit: Visit, asked: Mapping[str, str]) -> Verdict:
    desk, definitions = visit.desk, visit.definitions
    payload = read_object(asked["payload"].encode()) if asked["payload"].strip() else {}
    if payload is None:
        raise UsageError("the payload is not a JSON object", fix='write {"pulse": 80}')
    purpose = asked["purpose"] or None
    request = make_request(
        asked["topic"],
        action="write" if asked["action"] == "write" else "read",
        purpose=purpose,
        user=asked["user"] or None,
        client=asked["client"] or None,
        payload=payload,
        publisher=asked["publisher"] or None,
        environment=desk.environment(),
    )
    chosen = frozenset(it.strip() for it in asked["roles"].split(",") if it.strip())
    authorizer = desk.authorizer(definitions, chosen=chosen or None)
    if purpose is not None and not authorizer.declared.admits(purpose):
        near = authorizer.declared.nearest(purpose)
        raise UsageError(
            f"there is no purpose {quote(purpose)}",
            fix=f"did you mean {near!r}?" if near else "choose one of the list",
        )
    situations, left_out = know_situations(visit, asked["situation"])
    if authorizer.consent.subjects.of(asked["topic"]):
        left_out.append("what people opted out of (penstock check --data-subject)")
    witness = RecordedSituations(situations)
    found = authorizer.explain(request._replace(situations=witness))
    looked = [
        f"{scenario} of {subject or 'anybody'}: {', '.join(words) or 'none'}"
        for (scenario, subject), words in witness.seen.items()
    ]
    return _tell_verdict(visit, found, looked, left_out)


def know_situations(visit: Visit, given: str) -> tuple[Situations, list[str]]:
    """Return the situations that an answer counts on, and what it leaves out."""
    text = given.strip()
    if text and text not in {_LIVE, NO_PURPOSE}:
        supposed: dict[str, str] = {}
        for it in text.replace("\n", ",").split(","):
            instance, equals, word = it.strip().rpartition("=")
            if not equals or not instance or not word:
                raise UsageError(
                    f"{quote(it)} names no situation", fix="write SCENARIO/SUBJECT=SITUATION"
                )
            supposed[instance] = word
        return SituationBoard(suppose_situations(visit.definitions, supposed)), []
    if text == NO_PURPOSE or not visit.definitions.of(kinds.Scenario):
        return SituationBoard(), []
    if not visit.sees("emergencies"):
        return SituationBoard(), ["emergencies that hold now: your rights do not show them"]
    return read_live(visit.desk.database, utc_now()), []


def _tell_verdict(
    visit: Visit, found: Explanation, looked: Sequence[str], left_out: Sequence[str]
) -> Verdict:
    return Verdict(
        allowed=found.allowed,
        rule=found.rule,
        reason=found.reason,
        considered=[
            ConsideredRule(rule=it.rule, effect=it.effect, decides=it.rule == found.rule)
            for it in found.considered
        ],
        more=found.more,
        situations=looked,
        epoch=visit.epoch,
        left_out=left_out,
    )


def address_of_question(**asked: str | None) -> str:
    """Return the address of a question."""
    return "/access/why?" + urlencode({name: it for name, it in asked.items() if it})
