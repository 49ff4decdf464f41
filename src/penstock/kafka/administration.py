"""Users, roles and permissions: the commands of a data officer, each stored and carried out.

Rules that hold here:
- A command is one change of definitions, checked as a whole, with history and audit; a
  password goes with it in the same transaction. Then the audit log records which command
  it was, and the cluster is brought to it.
- A command that returns is done, at the cluster too. One that raises `PendingError` is
  stored, and the cluster gets it later; any other error means that nothing was stored.
- What already is as wanted is no error, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from sqlalchemy import Connection

from penstock.config.brokers import KafkaSettings
from penstock.errors import PenstockError, UnavailableError, UsageError, quote
from penstock.kafka.acls import RoleStatus, UserStatus, WantedAccess, role_status, user_status
from penstock.kafka.credentials import CredentialVault, derive
from penstock.kafka.drift import AccessAudit
from penstock.kafka.reconciler import Reconciler, ReconcileResult, open_reconciler
from penstock.model.document import Document, Key
from penstock.model.kinds.roles import TARGETS, Permission
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions, Wanted
from penstock.store.definitions.documents import Snapshot
from penstock.store.definitions.history import Change
from penstock.store.kafka_users import KafkaUsers


class PendingError(UnavailableError):
    """A change is stored, and the cluster does not have it yet."""

    @classmethod
    def of(cls, epoch: int, error: PenstockError) -> Self:
        """Say why the cluster does not have an epoch."""
        return cls(
            f"stored as epoch {epoch}, but Kafka does not have it yet: {error.message}",
            fix=f"{error.fix or 'see its log'}; then `penstock rbac repair`, or let "
            "`penstock rbac watch` retry",
        )


class Administration:
    """What a data officer does with users and roles. `actor` stands in history and audit."""

    def __init__(
        self,
        definitions: CheckedDefinitions,
        users: KafkaUsers,
        reconciler: Reconciler,
        vault: CredentialVault,
        *,
        actor: str,
        own: Iterable[str],
        mechanism: str = "SCRAM-SHA-512",
        iterations: int = 8192,
        audit: AccessAudit | None = None,
    ) -> None:
        self._definitions = definitions
        self._users = users
        self.reconciler = reconciler
        self._vault = vault
        self._actor = actor
        self._own = frozenset(own)
        self._mechanism = mechanism
        self._iterations = iterations
        self._audit = audit

    def add_user(
        self,
        name: str,
        password: str | None,
        roles: Iterable[str] = (),
        *,
        certificate: str | None = None,
    ) -> ReconcileResult:
        """Add a user with a password, a certificate or both."""
        if name in self._own:
            raise UsageError(
                f"{quote(name)} is Penstock's own user at Kafka", fix="choose another name"
            )
        sealed = None
        if password is not None:
            sealed = self._vault.seal(name, derive(password, self._mechanism, self._iterations))
        key = Key("user", name)
        body: dict[str, Any] = {"roles": list(roles)}
        if certificate is not None:
            body["certificate"] = certificate

        def then(connection: Connection, change: Change) -> None:
            if key not in change.created:
                raise UsageError(f"there is a user {quote(name)} already", fix="choose another")
            if sealed is not None:
                self._users.put_within(connection, name, sealed)

        change = self._definitions.apply(
            [Document("user", name, body)],
            actor=self._actor,
            reason=f"add user {name}",
            then=then,
        )
        return self._bring(change, "add-user", user=name)

    def delete_user(self, name: str) -> ReconcileResult:
        """Delete a user: first the ACLs, then the login."""
        change = self._definitions.delete(
            [Key("user", name)], actor=self._actor, reason=f"delete user {name}"
        )
        return self._bring(change, "delete-user", user=name)

    def set_password(self, name: str, password: str) -> ReconcileResult:
        """Give a user another password."""
        snapshot = self._definitions.definitions.snapshot()
        self._require(snapshot, Key("user", name))
        sealed = self._vault.seal(name, derive(password, self._mechanism, self._iterations))
        if self._audit is None:
            self._users.put(name, sealed)
        else:
            with self._audit.noting("set-password", snapshot.epoch, user=name) as connection:
                self._users.put_within(connection, name, sealed)
        try:
            return self.reconciler.follow_up()
        except PenstockError as error:
            raise PendingError.of(snapshot.epoch, error) from error

    def add_role(
        self,
        name: str,
        permissions: Iterable[str] = (),
        *,
        includes: Iterable[str] = (),
        excludes: Iterable[str] = (),
    ) -> ReconcileResult:
        """Add a role with permissions; see `parse_permission` for their notation."""
        words = list(permissions)

        def want(now: Snapshot) -> Wanted:
            key = Key("role", name)
            if key in now.documents:
                raise UsageError(f"there is a role {quote(name)} already", fix="choose another")
            wanted = self._access(now)
            body = {
                "permissions": [_as_data(parse_permission(word, wanted)) for word in words],
                "includes": list(includes),
                "excludes": list(excludes),
            }
            return {key: Document("role", name, {k: v for k, v in body.items() if v})}

        return self._edit(want, f"add role {name}", "add-role", role=name)

    def delete_role(self, name: str) -> ReconcileResult:
        """Delete a role, and take it from all users; a role that includes it keeps it."""

        def want(now: Snapshot) -> Wanted:
            key = Key("role", name)
            self._require(now, key)
            wanted: dict[Key, Document | None] = {key: None}
            for held in now.documents.values():
                if held.kind == "user" and name in held.body.get("roles", ()):
                    wanted[held.key] = _with_list(held, "roles", without=name)
            return wanted

        return self._edit(want, f"delete role {name}", "delete-role", role=name)

    def add_permission(self, role: str, permission: str, *, allow: str = "read") -> ReconcileResult:
        """Add a permission to a role."""

        def want(now: Snapshot) -> Wanted:
            held = self._require(now, Key("role", role))
            new = _as_data(parse_permission(permission, self._access(now), allow=allow))
            have = [dict(item) for item in held.body.get("permissions", ())]
            if new in have:
                return {}
            return {held.key: _with(held, "permissions", [*have, new])}

        return self._edit(
            want,
            f"add permission {permission} to role {role}",
            "add-permission",
            role=role,
        )

    def remove_permission(
        self, role: str, permission: str, *, allow: str = "read"
    ) -> ReconcileResult:
        """Remove a permission from a role, also where a view names the role."""

        def want(now: Snapshot) -> Wanted:
            held = self._require(now, Key("role", role))
            access = self._access(now)
            removed = access.resolve(parse_permission(permission, access, allow=allow))
            wanted: dict[Key, Document | None] = {}
            have = [Permission.model_validate(item) for item in held.body.get("permissions", ())]
            left = [item for item in have if access.resolve(item) != removed]
            if len(left) != len(have):
                wanted[held.key] = _with(held, "permissions", [_as_data(item) for item in left])
            for view in access.views.values():
                if role in view.roles and (view.topic, "read") == (removed.name, removed.allow):
                    wanted[view.key] = _with_list(now.documents[view.key], "roles", without=role)
            if not wanted and removed in access.access_of_roles([role]):
                included = sorted(access.graph.closure([role]) - {role})
                sources = [name for name in included if removed in access.own_access(name)]
                raise UsageError(
                    f"{quote(role)} has {quote(str(removed))} by including {', '.join(sources)}",
                    fix="remove it there, or stop including that role",
                )
            if not wanted:
                raise UsageError(
                    f"the role {quote(role)} has no permission {quote(str(removed))}",
                    fix=f"`penstock role show {role}` lists what it has",
                )
            return wanted

        return self._edit(
            want,
            f"remove permission {permission} from role {role}",
            "remove-permission",
            role=role,
        )

    def assign_role(self, user: str, role: str) -> ReconcileResult:
        """Give a role to a user."""

        def want(now: Snapshot) -> Wanted:
            held = self._require(now, Key("user", user))
            self._require(now, Key("role", role))
            return {held.key: _with_list(held, "roles", also=role)}

        return self._edit(want, f"assign role {role} to {user}", "assign-role", user, role)

    def block_user(self, name: str, *, blocked: bool = True) -> ReconcileResult:
        """Keep a user out of gateways and Kafka, or let them in again."""

        def want(now: Snapshot) -> Wanted:
            held = self._require(now, Key("user", name))
            return {held.key: _with(held, "blocked", blocked or ())}

        word = "block" if blocked else "unblock"
        return self._edit(want, f"{word} user {name}", f"{word}-user", user=name)

    def remove_role(self, user: str, role: str) -> ReconcileResult:
        """Take a role from a user."""

        def want(now: Snapshot) -> Wanted:
            held = self._require(now, Key("user", user))
            if role not in held.body.get("roles", ()):
                raise UsageError(
                    f"{quote(user)} does not have the role {quote(role)}",
                    fix=f"`penstock user show {user}` lists those it has",
                )
            return {held.key: _with_list(held, "roles", without=role)}

        return self._edit(want, f"remove role {role} from {user}", "remove-role", user, role)

    def user_status(self, name: str) -> UserStatus:
        """Return the roles and permissions of a user, and whether Kafka has them."""
        snapshot = self._definitions.definitions.snapshot()
        self._require(snapshot, Key("user", name))
        behind = self._users.progress().epoch != snapshot.epoch
        return user_status(self._access(snapshot), name, self._users.user(name), behind=behind)

    def role_status(self, name: str) -> RoleStatus:
        """Return the permissions of a role and the users who have it."""
        snapshot = self._definitions.definitions.snapshot()
        self._require(snapshot, Key("role", name))
        return role_status(self._access(snapshot), name)

    def roles(self) -> list[RoleStatus]:
        """Return all roles."""
        access = self._access(self._definitions.definitions.snapshot())
        return [role_status(access, name) for name in sorted(access.roles)]

    def users(self) -> list[UserStatus]:
        """Return all users."""
        snapshot = self._definitions.definitions.snapshot()
        behind = self._users.progress().epoch != snapshot.epoch
        access, rows = self._access(snapshot), self._users.users()
        return [
            user_status(access, name, rows.get(name), behind=behind)
            for name in sorted(access.users)
        ]

    def _edit(
        self,
        want: Callable[[Snapshot], Wanted],
        reason: str,
        operation: str,
        user: str | None = None,
        role: str | None = None,
    ) -> ReconcileResult:
        change = self._definitions.edit(want, actor=self._actor, reason=reason)
        return self._bring(change, operation, user, role)

    def _bring(
        self, change: Change, operation: str, user: str | None = None, role: str | None = None
    ) -> ReconcileResult:
        """Record a command that is stored, and bring the cluster to it."""
        try:
            if self._audit is not None and not change.is_empty:
                rule = None if role is None else f"role {role}"
                self._audit.note_command(operation, change.epoch, user=user, rule=rule)
            return self.reconciler.follow_up()
        except PenstockError as error:
            raise PendingError.of(change.epoch, error) from error

    def _access(self, snapshot: Snapshot) -> WantedAccess:
        return WantedAccess(self._definitions.meaning(snapshot))

    @staticmethod
    def _require(now: Snapshot, key: Key) -> Document:
        held = now.documents.get(key)
        if held is None:
            raise UsageError(
                f"there is no {key.kind} {quote(key.name)}", fix=f"`penstock {key.kind} list`"
            )
        return held


def open_administration(
    settings: KafkaSettings,
    database: Database,
    definitions: CheckedDefinitions,
    *,
    actor: str,
    audit: AccessAudit | None = None,
) -> Administration:
    """Return what a data officer works with."""
    return Administration(
        definitions,
        KafkaUsers(database),
        open_reconciler(settings, database, definitions, audit=audit),
        CredentialVault.open(settings.key),
        actor=actor,
        own=[settings.user],
        mechanism=settings.scram,
        iterations=settings.iterations,
        audit=audit,
    )


def parse_permission(text: str, access: WantedAccess, *, allow: str = "read") -> Permission:
    """Read a permission: `view:NAME`, `stream:NAME`, `topic:NAME`, `prefix:TEXT`, or one name.

    One name alone is that of a view, of a stream, or of the topic of one of them. Topics
    of nobody must be said to be so: a misspelt name would otherwise wait for a topic that
    is made one day.
    """
    word, colon, name = text.partition(":")
    if colon and word in TARGETS:
        found = {word: name}
    else:
        topics = {view.topic: ("view", view.name) for view in access.views.values()}
        topics |= {stream.topic: ("stream", stream.name) for stream in access.streams.values()}
        views = {view: ("view", view) for view in access.views}
        known = {**views, **topics}
        if text not in known:
            raise UsageError(
                f"{quote(text)} is not a view, a stream or a topic of one",
                fix=f"define it first, or write topic:{text} or prefix:{text}",
            )
        kind, name = known[text]
        found = {kind: name}
    try:
        return Permission.model_validate({**found, "allow": allow})
    except ValueError as error:
        raise UsageError(
            f"{quote(text)} is not a permission: {str(error).splitlines()[-1].strip()}",
            fix="write view:NAME, stream:NAME, topic:NAME or prefix:TEXT",
        ) from None


def _as_data(permission: Permission) -> dict[str, Any]:
    return permission.model_dump(exclude_defaults=True)


def _with(held: Document, name: str, value: Any) -> Document:
    body: Mapping[str, Any] = {**held.body, name: value}
    return Document(held.kind, held.name, {k: v for k, v in body.items() if v not in ([], ())})


def _with_list(
    held: Document, name: str, *, also: str | None = None, without: str | None = None
) -> Document:
    items = [item for item in held.body.get(name, ()) if item != without]
    if also is not None and also not in items:
        items.append(also)
    return _with(held, name, items)
