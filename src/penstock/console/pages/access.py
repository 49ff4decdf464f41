"""Access: users and roles, the access matrix, and why somebody may or may not.

    users, roles ─▶ give, take, block ─▶ review: difference, effect ─▶ apply
    examples ─▶ the one authorizer ─▶ matrix
    question ─▶ the one authorizer ─▶ verdict, with every rule that was considered

Rules that hold here:
- The matrix is that of `penstock access`, the answer that of `penstock check`; nothing here
  decides.
- Every change is a definition, and leads through the review.
- What gateways decided lately is shown to those who administer, without what messages said; that
  they looked is on record.
- What people opted out of is not looked at: `penstock check --data-subject` tells those who may
  know. Situations that hold now count for those alone who see the room of emergencies; others ask
  under those that they suppose.
- Working out the matrix is bounded in time; what was left out is said.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote as encode
from urllib.parse import urlencode

from fastapi import Query

from penstock.clock import utc_now
from penstock.console.access import MissingError
from penstock.console.desk import Visit, Visitor
from penstock.console.pages.definitions import Draft, show_review
from penstock.console.rooms import Again, Form, FormData, PageData, Room
from penstock.definitions import DefinitionSet, write_yaml
from penstock.definitions.access import list_claims, list_privileges, make_directory
from penstock.definitions.access_matrix import (
    ORDINARY,
    Cell,
    Question,
    list_situations,
    list_subjects,
    make_examples,
    make_matrix,
)
from penstock.definitions.authorizer import suppose_situations
from penstock.errors import PenstockError, UsageError, quote
from penstock.json_text import read_object
from penstock.kafka.acls import WantedAccess, list_view_cells
from penstock.model import kinds
from penstock.model.document import Document, Key
from penstock.model.kinds.roles import TARGETS
from penstock.policy.access.emergencies import RecordedSituations, SituationBoard, Situations
from penstock.policy.access.principals import ANONYMOUS, Directory
from penstock.policy.access.requests import make_request
from penstock.policy.decision import Explanation
from penstock.store.detection.situations import read_live
from penstock.store.enforcement_points import RecentDecision

ROOM: Final = Room(
    "access",
    "Access",
    order=30,
    help="how-to/see-who-sees-what",
    icon="M8 11a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM2 21c0-4 2.7-6 6-6s6 2 6 6M15 12h7M19 8l3 4-3 4",
    about="Users, roles, who sees what, and why.",
)
_LISTED: Final = 200
_MATRIX_SECONDS: Final = 4.0
_LOOKS: Final = 256
_MOST_ROWS: Final = 400
_RANK: Final = {"none": 0, "removed": 1, "changed": 2, "added": 2, "full": 3}
ANY: Final = "any"
NO_PURPOSE: Final = "none"

Name = Annotated[str, Query(max_length=256)]


class UserRow(PageData):
    """A user whom definitions name."""

    name: str
    roles: Sequence[str]
    active: Sequence[str]
    groups: Sequence[str]
    blocked: bool
    rights: Sequence[str]


class RoleRow(PageData):
    """A role, what it allows, and who has it."""

    name: str
    permissions: Sequence[str]
    claim: Sequence[str]
    includes: Sequence[str]
    users: int


class People(PageData):
    """Users and roles."""

    asked: str
    users: Sequence[UserRow]
    roles: Sequence[RoleRow]
    total: int
    may_change: bool


class Credential(PageData):
    """An appointment that a user holds, by themselves or by a group."""

    name: str
    says: str
    holder: str
    until: str


class UserPage(PageData):
    """One user: roles, what activates them, and what follows."""

    user: UserRow
    defined: bool
    attributes: Mapping[str, Any]
    appointments: Sequence[Credential]
    trouble: str
    claims: Sequence[str]
    kafka: Sequence[str]
    free_roles: Sequence[str]
    may_change: bool


class RolePage(PageData):
    """One role: what it allows, and how one comes by it."""

    role: RoleRow
    description: str
    parameters: Sequence[str]
    excludes: Sequence[str]
    inherited: Sequence[str]
    rules: Sequence[Mapping[str, Any]]
    users: Sequence[str]
    targets: Sequence[str]
    views: Sequence[str]
    streams: Sequence[str]
    may_change: bool


class MatrixCell(PageData):
    """What somebody sees of an attribute."""

    degree: str
    rule: str


class MatrixRow(PageData):
    """What somebody sees of a topic or a view."""

    subject: str
    cells: Sequence[MatrixCell]
    purposes: Sequence[str]
    """For which it is so: `none` is without a purpose."""
    more: Sequence[str]
    """Situations in which they see more than here."""
    sees: bool


class MatrixTable(PageData):
    """One topic or view, by subject and attribute."""

    stream: str
    source: str
    attributes: Sequence[str]
    rows: Sequence[MatrixRow]
    blind: int
    """How many subjects see nothing, and are left out."""


class Matrix(PageData):
    """Who sees which attribute of what, in which degree, in which situation."""

    subject: str
    stream: str
    purpose: str
    situation: str
    everybody: bool
    subjects: Sequence[str]
    streams: Sequence[str]
    purposes: Sequence[str]
    situations: Sequence[str]
    tables: Sequence[MatrixTable]
    left: int
    """How many subjects were not looked at: the time was over."""
    cells: int
    trouble: str


class ConsideredRule(PageData):
    """One rule that was looked at."""

    rule: str
    effect: str
    decides: bool


class Verdict(PageData):
    """An answer, and how it came about."""

    allowed: bool
    rule: str
    reason: str
    considered: Sequence[ConsideredRule]
    more: bool
    situations: Sequence[str]
    epoch: int
    left_out: Sequence[str]
    """What the answer does not count on."""


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


# --- users and roles ---


@ROOM.page("/access", "Users and roles", "access/people.html", help="how-to/roles")
def list_people(visit: Visitor, q: Annotated[str, Query(max_length=200)] = "") -> People:
    """List users and roles, with what they have and who has them."""
    definitions = visit.definitions
    wanted = q.strip().casefold()
    names = [it for it in list_subjects(definitions) if it != ANONYMOUS]
    found = [it for it in names if wanted in it.casefold()]
    directory = make_directory(definitions)
    roles = definitions.of(kinds.Role)
    held = _count_holders(definitions, directory, names)
    return People(
        asked=q,
        users=[_tell_user(definitions, directory, it) for it in found[:_LISTED]],
        roles=[
            _tell_role(it, len(held.get(name, ())))
            for name, it in sorted(roles.items())
            if wanted in name.casefold()
        ][:_LISTED],
        total=len(found),
        may_change=visit.administers,
    )


def _count_holders(
    definitions: DefinitionSet, directory: Directory, names: Iterable[str]
) -> dict[str, list[str]]:
    """Return who has each role now."""
    held: dict[str, list[str]] = {}
    for name in names:
        for role in _active(definitions, directory, name):
            held.setdefault(role, []).append(name)
    return held


def _active(definitions: DefinitionSet, directory: Directory, name: str) -> list[str]:
    user = definitions.get(kinds.User, name)
    if user is not None and user.blocked:
        return []
    return directory.resolve(name, None).roles.names()


def _tell_user(definitions: DefinitionSet, directory: Directory, name: str) -> UserRow:
    user = definitions.get(kinds.User, name)
    who = directory.resolve(name, None)
    subjects = {f"user:{name}", *who.subjects}
    blocked = user is not None and user.blocked
    return UserRow(
        name=name,
        roles=user.roles if user is not None else (),
        active=[] if blocked else who.roles.names(),
        groups=sorted(who.groups),
        blocked=blocked,
        rights=[]
        if blocked
        else [rule for rule, holders, _ in list_privileges(definitions) if subjects & {*holders}],
    )


def _tell_role(role: kinds.Role, users: int) -> RoleRow:
    return RoleRow(
        name=role.name,
        permissions=[str(it) for it in role.permissions],
        claim=[str(it) for it in role.claim],
        includes=role.includes,
        users=users,
    )


@ROOM.page("/access/user", "User", "access/user.html", help="how-to/roles", hidden=True)
def show_user(visit: Visitor, name: Name) -> UserPage:
    """Show one user: roles, what activates them, groups, rights, and what Kafka lets them do."""
    definitions = visit.definitions
    if name not in list_subjects(definitions) or name == ANONYMOUS:
        raise MissingError(f"no definition names the user {quote(name)}", fix="look in the list")
    directory = make_directory(definitions, name)
    who, known = directory.resolve(name, None), definitions.get(kinds.User, name)
    holders = {f"user:{name}", *(f"group:{it}" for it in who.groups)}
    row = _tell_user(definitions, directory, name)
    kafka: list[str] = []
    if known is not None and not known.blocked:
        wanted = WantedAccess(definitions)
        kafka = [str(it) for it in sorted(wanted.access_of_roles(wanted.roles_of(known)), key=str)]
    return UserPage(
        user=row,
        defined=known is not None,
        attributes={
            it: value for it, value in (who.attributes or {}).items() if it != "activeRoles"
        },
        appointments=[
            Credential(
                name=it.name,
                says=it.credential,
                holder=it.holder,
                until=it.valid_until or "",
            )
            for _, it in sorted(definitions.of(kinds.Appointment).items())
            if it.holder in holders
        ],
        trouble=str(who.roles.trouble or ""),
        claims=sorted(
            {it.purpose for it in list_claims(definitions) if it.subject in who.subjects}
        ),
        kafka=kafka,
        free_roles=[
            it
            for it, role in sorted(definitions.of(kinds.Role).items())
            if it not in row.roles and not role.parameters
        ],
        may_change=visit.administers,
    )


@ROOM.page("/access/role", "Role", "access/role.html", help="how-to/roles", hidden=True)
def show_role(visit: Visitor, name: Name) -> RolePage:
    """Show one role: what it allows, how one comes by it, and who has it now."""
    definitions = visit.definitions
    role = definitions.get(kinds.Role, name)
    if role is None:
        raise MissingError(f"there is no role {quote(name)}", fix="look for it in the list")
    directory = make_directory(definitions)
    names = [it for it in list_subjects(definitions) if it != ANONYMOUS]
    users = _count_holders(definitions, directory, names).get(name, [])
    access = WantedAccess(definitions)
    own = access.own_access(name)
    return RolePage(
        role=_tell_role(role, len(users)),
        description=role.description,
        parameters=role.parameters,
        excludes=role.excludes,
        inherited=[str(it) for it in sorted(access.access_of_roles([name]) - own, key=str)],
        rules=[
            {
                "name": rule,
                "role": it.role,
                "conditions": [
                    {
                        "text": condition.role or condition.appointment or condition.when or "",
                        "word": "role"
                        if condition.role
                        else "appointment"
                        if condition.appointment
                        else "when",
                        "watched": condition.membership,
                    }
                    for condition in it.requires
                ],
            }
            for rule, it in sorted(definitions.of(kinds.ActivationRule).items())
            if it.role.partition("(")[0].strip() == name
        ],
        users=users,
        targets=TARGETS,
        views=sorted(it for it, view in access.views.items() if name in view.roles),
        streams=sorted(access.streams),
        may_change=visit.administers,
    )


# --- changes: each is a definition, and is reviewed ---


@ROOM.action("/access/give")
def give_role(visit: Visitor, form: Form) -> Again:
    """Show what giving a role to a user would do."""
    name, role = form.text("user", 256), form.text("role", 256)
    if visit.definitions.get(kinds.Role, role) is None:
        raise UsageError(f"there is no role {quote(role)}", fix="choose one of the list")
    return _review_user(visit, name, f"give the role {role} to {name}", also=role)


@ROOM.action("/access/take")
def take_role(visit: Visitor, form: Form) -> Again:
    """Show what taking a role from a user would do."""
    name, role = form.text("user", 256), form.text("role", 256)
    known = visit.definitions.get(kinds.User, name)
    if known is None or role not in known.roles:
        raise UsageError(
            f"{quote(name)} was not given the role {quote(role)}",
            fix="a role that is activated ends with its appointment, or with its rule",
        )
    return _review_user(visit, name, f"take the role {role} from {name}", without=role)


@ROOM.action("/access/block")
def block_user(visit: Visitor, form: Form) -> Again:
    """Show what blocking a user, or letting them in again, would do."""
    name, blocked = form.text("user", 256), form.text("blocked", 8) != "no"
    if blocked and name == visit.user:
        raise UsageError("you would block yourself", fix="ask somebody else who administers")
    word = "block" if blocked else "let in again:"
    return _review_user(visit, name, f"{word} {name}", blocked=blocked)


def _review_user(
    visit: Visit,
    name: str,
    reason: str,
    *,
    also: str = "",
    without: str = "",
    blocked: bool | None = None,
) -> Again:
    visit.require_administration()
    if name not in list_subjects(visit.definitions) or name == ANONYMOUS:
        raise MissingError(f"no definition names the user {quote(name)}", fix="look in the list")
    snapshot, _ = visit.desk.current()
    held = snapshot.documents.get(Key("user", name)) or Document("user", name, {})
    body = dict(held.body)
    roles = [it for it in body.get("roles", ()) if it != without]
    roles += [also] if also and also not in roles else []
    body["roles"] = roles
    if blocked is not None:
        body["blocked"] = blocked
    body = {key: value for key, value in body.items() if value or key not in {"roles", "blocked"}}
    back = f"/access/user?name={encode(name, safe='')}"
    return show_review(visit, Draft(write_yaml([replace(held, body=body)]), (), reason, back))


@ROOM.action("/access/allow")
def add_permission(visit: Visitor, form: Form) -> Again:
    """Show what a further permission of a role would do."""
    target, name = form.text("target", 16), form.text("name", 256)
    if target not in TARGETS or not name:
        raise UsageError(
            "a permission is about a view, a stream, a topic or a prefix", fix="name one"
        )
    new = {target: name} | ({"allow": "write"} if form.text("allow", 8) == "write" else {})
    return _review_role(
        visit, form, f"let the role {{role}} {new.get('allow', 'read')} {name}", new
    )


@ROOM.action("/access/revoke")
def remove_permission(visit: Visitor, form: Form) -> Again:
    """Show what a role would be without a permission."""
    return _review_role(visit, form, "one permission less", None)


def _review_role(visit: Visit, form: FormData, reason: str, new: Mapping[str, str] | None) -> Again:
    visit.require_administration()
    role = form.text("role", 256)
    snapshot, _ = visit.desk.current()
    held = snapshot.documents.get(Key("role", role))
    known = visit.definitions.get(kinds.Role, role)
    if held is None or known is None:
        raise MissingError(f"there is no role {quote(role)}", fix="look for it in the list")
    listed = [dict(it) for it in held.body.get("permissions", ())]
    if new is None:
        gone = form.text("permission", 600)
        told = [str(it) for it in known.permissions]
        if gone not in told:
            raise UsageError(f"{quote(role)} has no permission {quote(gone)}", fix="go back")
        listed = [it for it, words in zip(listed, told, strict=True) if words != gone]
    else:
        listed.append(dict(new))
    body = {**held.body, "permissions": listed}
    if not listed:
        del body["permissions"]
    back = f"/access/role?name={encode(role, safe='')}"
    text = write_yaml([replace(held, body=body)])
    return show_review(visit, Draft(text, (), f"role {role}: {reason}", back))


# --- the matrix ---


@ROOM.page("/access/matrix", "Access matrix", "access/matrix.html")
def show_matrix(
    visit: Visitor,
    *,
    subject: Name = "",
    stream: Name = "",
    purpose: Name = ANY,
    situation: Annotated[str, Query(max_length=600)] = ORDINARY,
    everybody: bool = False,
) -> Matrix:
    """Show who sees which attribute, in which degree, for which purpose, in which situation."""
    definitions = visit.definitions
    subjects, streams = list_subjects(definitions), sorted(definitions.of(kinds.Stream))
    purposes = sorted(definitions.of(kinds.Purpose))
    situations = [it for it, _, _ in list_situations(definitions)]
    for given, known, what in (
        (subject, subjects, "user"),
        (stream, streams, "stream"),
        (purpose, [ANY, NO_PURPOSE, *purposes], "purpose"),
        (situation, situations, "situation"),
    ):
        if given and given not in known:
            raise MissingError(f"there is no {what} {quote(given)}", fix="choose one of the list")
    asked: list[str | None] = [None, *purposes]
    if purpose != ANY:
        asked = [None if purpose == NO_PURPOSE else purpose]
    gathered = _Gathered(situation)
    left, trouble = gathered.look(
        visit, [subject] if subject else subjects, [stream] if stream else [], asked
    )
    return Matrix(
        subject=subject,
        stream=stream,
        purpose=purpose,
        situation=situation,
        everybody=everybody,
        subjects=subjects,
        streams=streams,
        purposes=purposes,
        situations=situations,
        tables=gathered.tables(everybody=everybody or bool(subject)),
        left=left,
        cells=gathered.count,
        trouble=trouble,
    )


Place = tuple[str, str]
"""A stream, and one of its topics or views."""


class _Gathered:
    """The cells of a matrix, put together by topic and subject."""

    def __init__(self, situation: str) -> None:
        self._situation = situation
        self.count = 0
        self._attributes: dict[Place, dict[str, None]] = {}
        # place → subject → situation → attribute → the most that is seen, and for which purposes
        self._held: dict[Place, dict[str, dict[str, dict[str, Cell]]]] = {}
        self._purposes: dict[tuple[Place, str, str], dict[str, None]] = {}

    def look(
        self,
        visit: Visit,
        subjects: Sequence[str],
        streams: Sequence[str],
        purposes: Sequence[str | None],
    ) -> tuple[int, str]:
        """Work out the cells; return how many subjects there was no time for, and what failed."""
        definitions, desk = visit.definitions, visit.desk
        end = time.monotonic() + _MATRIX_SECONDS
        environment = desk.environment()
        try:
            examples = make_examples(definitions, Question(streams=streams))
            authorizer = desk.authorizer(definitions)
            for number, subject in enumerate(subjects):
                question = Question([subject], streams, purposes=purposes, environment=environment)
                for at, cell in enumerate(make_matrix(authorizer, definitions, question, examples)):
                    if at % _LOOKS == 0 and number and time.monotonic() > end:
                        return len(subjects) - number, ""
                    self._add(cell)
        except PenstockError as error:
            return 0, str(error)
        for cell in list_view_cells(definitions, subjects, streams):
            self._add(cell)
        return 0, ""

    def _add(self, cell: Cell) -> None:
        self.count += 1
        place = (cell.stream, cell.source)
        self._attributes.setdefault(place, {})[cell.attribute] = None
        seen = (
            self._held.setdefault(place, {})
            .setdefault(cell.subject, {})
            .setdefault(cell.situation, {})
        )
        before = seen.get(cell.attribute)
        if before is None or _RANK[cell.degree] > _RANK[before.degree]:
            seen[cell.attribute] = cell
        if cell.degree != "none":
            key = (place, cell.subject, cell.situation)
            self._purposes.setdefault(key, {})[cell.purpose or NO_PURPOSE] = None

    def tables(self, *, everybody: bool) -> list[MatrixTable]:
        """Return what a page shows."""
        return [self._table(place, everybody=everybody) for place in self._held]

    def _table(self, place: Place, *, everybody: bool) -> MatrixTable:
        attributes = list(self._attributes[place])
        rows, blind = [], 0
        for subject, by_situation in self._held[place].items():
            situation = self._situation if self._situation in by_situation else ORDINARY
            seen = by_situation.get(situation, {})
            more = [
                it for it in by_situation if it != situation and _exceeds(by_situation[it], seen)
            ]
            sees = any(it.degree != "none" for it in seen.values())
            if not sees and not more and not everybody:
                blind += 1
                continue
            rows.append(
                MatrixRow(
                    subject=subject,
                    cells=[
                        MatrixCell(degree=seen[it].degree, rule=seen[it].rule)
                        if it in seen
                        else MatrixCell(degree="none", rule="")
                        for it in attributes
                    ],
                    purposes=list(self._purposes.get((place, subject, situation), {})),
                    more=more,
                    sees=sees,
                )
            )
        stream, source = place
        return MatrixTable(
            stream=stream,
            source=source,
            attributes=attributes,
            rows=rows[:_MOST_ROWS],
            blind=blind,
        )


def _exceeds(there: Mapping[str, Cell], here: Mapping[str, Cell]) -> bool:
    """Say whether more is seen of some attribute there than here."""
    return any(
        _RANK[it.degree] > (_RANK[here[name].degree] if name in here else 0)
        for name, it in there.items()
    )


# --- decisions ---


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

_LIVE: Final = "live"


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
