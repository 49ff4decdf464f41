"""Access: users and roles, what they have, and changes of it; the room of these pages and others.

    users, roles ─▶ give, take, block, allow, revoke ─▶ review: difference, effect ─▶ apply

Rules that hold here:
- Every change is a definition, and leads through the review.
- The matrix (`access_matrix`), recent decisions and why (`access_decisions`) are pages of this
  room, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final
from urllib.parse import quote as encode

from fastapi import Query

from penstock.console.access import MissingError
from penstock.console.desk import Visit, Visitor
from penstock.console.pages.definitions import Draft, show_review
from penstock.console.rooms import Again, Form, FormData, PageData, Room
from penstock.definitions import DefinitionSet, write_yaml
from penstock.definitions.access import list_claims, list_privileges, make_directory
from penstock.definitions.access_matrix import list_subjects
from penstock.errors import UsageError, quote
from penstock.kafka.acls import WantedAccess
from penstock.model import kinds
from penstock.model.document import Document, Key
from penstock.model.kinds.roles import TARGETS
from penstock.policy.access.principals import ANONYMOUS, Directory

ROOM: Final = Room(
    "access",
    "Access",
    order=30,
    help="how-to/see-who-sees-what",
    icon="M8 11a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM2 21c0-4 2.7-6 6-6s6 2 6 6M15 12h7M19 8l3 4-3 4",
    about="Users, roles, who sees what, and why.",
)
_LISTED: Final = 200

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


# --- answers of `access_decisions`; here, since /openapi.json names `Verdict` by its module ---


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
