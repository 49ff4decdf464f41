"""The ACLs that the definitions ask for, user by user, and the status of users and roles.

Rules that hold here:
- Who has a role may do what its permissions say, what those of the roles it includes say,
  and may read the views that name one of these roles.
- Users have the roles of their definition, and those that activation rules lead to now. Kafka has
  no sessions of ours: all conditions count each time, and no place is known.
- A user with a certificate has the ACLs twice: as the user, and as the principal that Kafka makes
  of the certificate. Its name has an equals sign, which no user's has.
- Reading needs a consumer group, writing in transactions a transaction: each user has all
  that begin with the user's own name and a colon, and no others.
- There are no deny ACLs: what is not allowed is denied, and an ACL is revoked by deleting it,
  so that it can be granted again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from penstock.definitions import DefinitionSet
from penstock.definitions.access import make_directory
from penstock.definitions.access_matrix import ORDINARY, Cell, list_subjects, look_at_view
from penstock.errors import quote
from penstock.eventlog.connection import SEPARATOR
from penstock.model.document import Document, Key
from penstock.model.kinds import ActivationRule, Concern, Role, Stream, User, View, kinds_of
from penstock.model.kinds.roles import Permission
from penstock.policy.access.principals import Directory, RoleGraph
from penstock.policy.decision import Considered, Explanation, Part, list_considered
from penstock.store.kafka_users import KafkaUser

ANY_HOST = "*"
_KINDS = kinds_of(Concern.KAFKA)
_WHO = kinds_of(Concern.ROLES) - {"user"} | {"group", "attributes", "vocabulary"}
"""Kinds by which somebody comes by a role, beside their own definition."""


class Acl(NamedTuple):
    """One ACL binding, without its principal."""

    resource: str  # topic, group, transactional_id; others where somebody else made it
    pattern: str  # literal or prefixed
    name: str
    operation: str
    permission: str = "allow"
    host: str = ANY_HOST

    def __str__(self) -> str:
        rest = "…" if self.pattern == "prefixed" else ""
        where = "" if self.host == ANY_HOST else f" from {self.host}"
        return f"{self.permission} {self.operation} {self.resource} {self.name}{rest}{where}"


def principals_of(name: str, certificate: str | None) -> tuple[str, ...]:
    """Return what Kafka calls a user: by name, and by certificate where there is one."""
    return (name,) if certificate is None else (name, certificate)


class TopicAccess(NamedTuple):
    """What a permission resolves to: one topic or all of a prefix, to read or to write."""

    pattern: str
    name: str
    allow: str

    def __str__(self) -> str:
        return f"{self.allow} {self.name}{'…' if self.pattern == 'prefixed' else ''}"

    def covers(self, topic: str, action: str) -> bool:
        """Tell whether it is about a topic, as Kafka matches names, and about an action."""
        found = topic.startswith(self.name) if self.pattern == "prefixed" else topic == self.name
        return found and self.allow == action


class WantedAccess:
    """Who may do what at the cluster, by one set of definitions."""

    def __init__(self, definitions: DefinitionSet) -> None:
        self.users: dict[str, User] = {}
        self.principals: dict[str, User] = {}
        self.roles: dict[str, Role] = {}
        self.views: dict[str, View] = {}
        self.streams: dict[str, Stream] = {}
        # One walk over all: there may be many users.
        for key, found in definitions.definitions.items():
            match found:
                case User():
                    self.users[key.name] = found
                    for name in principals_of(key.name, found.certificate):
                        self.principals[name] = found
                case Role():
                    self.roles[key.name] = found
                case View():
                    self.views[key.name] = found
                case Stream():
                    self.streams[key.name] = found
        self.graph = RoleGraph(self.roles)
        self._directory: Directory | None = None
        if any(key.kind == ActivationRule.kind for key in definitions.definitions):
            self._directory = make_directory(definitions)
        self._by_view: dict[str, set[TopicAccess]] = {}
        for view in self.views.values():
            for role in view.roles:
                self._by_view.setdefault(role, set()).add(
                    TopicAccess("literal", view.topic, "read")
                )
        # Many users have the same roles; what these come to is worked out once.
        self._topic_acls: dict[tuple[str, ...], frozenset[Acl]] = {}

    def resolve(self, permission: Permission) -> TopicAccess:
        """Return the topics that a permission names."""
        word, name = permission.target
        match word:
            case "view":
                return TopicAccess("literal", self.views[name].topic, permission.allow)
            case "stream":
                return TopicAccess("literal", self.streams[name].topic, permission.allow)
            case "topic":
                return TopicAccess("literal", name, permission.allow)
            case _:
                return TopicAccess("prefixed", name, permission.allow)

    def own_access(self, role: str) -> set[TopicAccess]:
        """Return what a role gives by itself, without what it includes."""
        found = set(self._by_view.get(role, ()))
        if role in self.roles:
            found.update(map(self.resolve, self.roles[role].permissions))
        return found

    def access_of_roles(self, roles: Iterable[str]) -> frozenset[TopicAccess]:
        """Return what roles give together, with all they include."""
        held = self.graph.closure(roles)
        return frozenset(access for role in held for access in self.own_access(role))

    def roles_of(self, user: User) -> tuple[str, ...]:
        """Return the roles that a user has: assigned, or activated now."""
        if self._directory is None:
            return user.roles
        return tuple(self._directory.resolve(user.name, None).roles.names())

    @property
    def due(self) -> int | None:
        """When time alone may change who has which roles, in milliseconds since 1970."""
        return None if self._directory is None else self._directory.roles.due_for_all

    def acls(self, principal: str) -> frozenset[Acl]:
        """Return the ACLs that a user should have, by name or by certificate.

        None for one who is unknown or blocked.
        """
        held = self.principals.get(principal)
        if held is None or held.blocked:
            return frozenset()
        roles = self.roles_of(held)
        topics = self._topic_acls.get(roles)
        if topics is None:
            access = self.access_of_roles(roles)
            topics = frozenset(Acl("topic", item.pattern, item.name, item.allow) for item in access)
            self._topic_acls[roles] = topics
        own = f"{held.name}{SEPARATOR}"
        found = set(topics)
        operations = {acl.operation for acl in topics}
        if "read" in operations:
            found.add(Acl("group", "prefixed", own, "read"))
        if "write" in operations:
            found.add(Acl("transactional_id", "prefixed", own, "write"))
        return frozenset(found)

    def users_of(self, roles: Iterable[str]) -> Iterator[str]:
        """Yield the users who have one of these roles, also by inclusion."""
        asked = set(roles)
        if not asked:
            return
        for name, user in self.users.items():
            if not asked.isdisjoint(self.graph.closure(self.roles_of(user))):
                yield name

    def touched(self, before: Mapping[Key, Document], after: Mapping[Key, Document]) -> set[str]:
        """Return the principals whose ACLs a change may have changed; this is the access after it.

        A user who lost a role without being changed lost it through a role that was changed,
        and still has that one: so looking at the access after the change finds all.
        """
        users: set[str] = set()
        roles: set[str] = set()
        streams: set[str] = set()
        if _change_who(before, after):
            # Whom it gives and takes a role from, only both sets together would tell.
            return set(self.principals)
        for key in before.keys() | after.keys():
            if key.kind not in _KINDS:
                continue
            old, new = before.get(key), after.get(key)
            if old is not None and new is not None and (old is new or old.body == new.body):
                continue
            if key.kind == "user":
                users.add(key.name)
                # One that it no longer has is looked at, too.
                users.update(
                    found for it in (old, new) if it and (found := it.body.get("certificate"))
                )
            elif key.kind == "role":
                roles.add(key.name)
            elif key.kind == "stream":
                streams.add(key.name)
            else:
                for document in (old, new):
                    roles.update(document.body.get("roles", ()) if document else ())
                roles.update(self._naming("view", {key.name}))
        if streams:
            roles.update(self._naming("stream", streams))
            views = [view for view in self.views.values() if view.stream in streams]
            roles.update(role for view in views for role in view.roles)
            roles.update(self._naming("view", {view.name for view in views}))
        for name in self.users_of(roles):
            users.update(principals_of(name, self.users[name].certificate))
        return users

    def _naming(self, word: str, names: set[str]) -> Iterator[str]:
        for role in self.roles.values():
            if any(getattr(item, word) in names for item in role.permissions):
                yield role.name

    def giving(self, topic: str, action: str) -> dict[str, TopicAccess]:
        """Return the roles that by themselves allow something with a topic, and by which access."""
        found: dict[str, TopicAccess] = {}
        for role in sorted(self.roles.keys() | self._by_view.keys()):
            for access in sorted(self.own_access(role), key=str):
                if access.covers(topic, action):
                    found.setdefault(role, access)
        return found

    def reading_roles(self, view: View) -> set[str]:
        """Return the roles that may read a view, also those that include one of them."""
        giving = set(self.giving(view.topic, "read"))
        including = {it for it in self.roles if giving & set(self.graph.closure([it]))}
        return giving | including

    def roles_named(self, name: str) -> set[str]:
        """Return the roles of a user by name; none of one who is unknown or blocked."""
        user = self.users.get(name)
        return set() if user is None or user.blocked else set(self.roles_of(user))

    def explain(self, name: str, topic: str, action: str, *, login: str) -> Explanation:
        """Say whether Kafka lets a user read or write a topic, and by which role.

        `login` is what `user_status` says. Other super users and ACLs that Penstock does not
        manage are not known here.
        """
        giving = self.giving(topic, action)
        user = self.users.get(name)
        held = () if user is None else tuple(sorted(self.graph.closure(self.roles_of(user))))
        considered = [Considered(f"role {it}", _say_role(giving.get(it))) for it in held]
        considered += [
            Considered(f"role {it}", f"{access}, and {name} does not have it")
            for it, access in giving.items()
            if it not in held
        ]
        shown, more = list_considered(considered)
        deciding = next((it for it in held if it in giving), None)
        if user is None:
            said = (f"no user {quote(name)}", "Kafka has no login of that name from us", Part.USERS)
        elif user.blocked:
            said = (f"user {name}", "the user is blocked", Part.USERS)
        elif deciding is None:
            said = (f"user {name}", f"none of the user's roles may {action} {topic}", Part.POLICIES)
        elif login == "none":
            said = (f"user {name}", "the user has no password at Kafka yet", Part.USERS)
        else:
            rule, reason = f"role {deciding}", f"it may {giving[deciding]}"
            return Explanation(allowed=True, rule=rule, reason=reason, considered=shown, more=more)
        rule, reason, part = said
        return Explanation(
            allowed=False, rule=rule, reason=reason, considered=shown, more=more, part=part
        )


def _say_role(access: TopicAccess | None) -> str:
    return "says nothing of it" if access is None else f"may {access}"


def _change_who(before: Mapping[Key, Document], after: Mapping[Key, Document]) -> bool:
    """Tell whether a change may give or take activated roles from users it does not name."""
    if not any(key.kind == ActivationRule.kind for key in (*before, *after)):
        return False
    return any(
        before.get(key) is not after.get(key) and before.get(key) != after.get(key)
        for key in before.keys() | after.keys()
        if key.kind in _WHO
    )


@dataclass(frozen=True, slots=True)
class UserStatus:
    """A user: roles, all roles with those included, what they allow, and the state at Kafka."""

    name: str
    roles: tuple[str, ...]
    all_roles: tuple[str, ...]
    permissions: tuple[str, ...]
    blocked: bool
    login: str  # ready, pending, certificate, or none: no password was set
    pending: bool
    certificate: str | None = None

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RoleStatus:
    """A role: what it allows, by itself and by inclusion, and who has it."""

    name: str
    permissions: tuple[str, ...]
    includes: tuple[str, ...]
    excludes: tuple[str, ...]
    inherited: tuple[str, ...]
    users: tuple[str, ...]

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)


def user_status(
    access: WantedAccess, name: str, row: KafkaUser | None, *, behind: bool
) -> UserStatus:
    """Return what a user is and may."""
    user = access.users[name]
    roles = access.roles_of(user)
    allowed = access.access_of_roles(roles)
    login = "none" if user.certificate is None else "certificate"
    if row is not None and row.credential is not None:
        login = "pending" if row.is_pending else "ready"
    return UserStatus(
        name=name,
        roles=user.roles,
        all_roles=tuple(sorted(access.graph.closure(roles))),
        permissions=() if user.blocked else tuple(map(str, sorted(allowed, key=str))),
        blocked=user.blocked,
        login=login,
        pending=behind or login == "pending",
        certificate=user.certificate,
    )


def role_status(access: WantedAccess, name: str) -> RoleStatus:
    """Return what a role is and allows."""
    role = access.roles[name]
    own = access.own_access(name)
    return RoleStatus(
        name=name,
        permissions=tuple(str(item) for item in sorted(own, key=str)),
        includes=role.includes,
        excludes=role.excludes,
        inherited=tuple(
            str(item) for item in sorted(access.access_of_roles([name]) - own, key=str)
        ),
        users=tuple(sorted(access.users_of([name]))),
    )


def list_view_cells(
    definitions: DefinitionSet, subjects: Sequence[str] = (), streams: Sequence[str] = ()
) -> Iterator[Cell]:
    """Yield what those see of views who may read them at Kafka."""
    access = WantedAccess(definitions)
    # What a view takes from a transformation is in the definitions, not in what Kafka is told.
    for name, view in definitions.of(View).items():
        if streams and view.stream not in streams:
            continue
        left = look_at_view(definitions, view)
        for user in subjects or list_subjects(definitions):
            # Whether a password is set already is no matter of the definitions.
            decision = access.explain(user, view.topic, "read", login="ready")
            for attribute, degree, by in left:
                yield Cell(
                    user,
                    view.stream,
                    f"view {name}",
                    None,
                    ORDINARY,
                    attribute,
                    degree if decision.allowed else "none",
                    by if decision.allowed and by else decision.rule,
                )
