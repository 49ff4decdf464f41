"""What users and roles come to, for people and machines."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from penstock.kafka.acls import WantedAccess
from penstock.store.kafka_users import KafkaUser


@dataclass(frozen=True, slots=True)
class UserStatus:
    """A user: roles, all roles with those included, what they allow, and the state at Kafka."""

    name: str
    roles: tuple[str, ...]
    all_roles: tuple[str, ...]
    permissions: tuple[str, ...]
    login: str  # ready, pending, or none: no password was set
    pending: bool

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
    roles = access.users[name].roles
    login = "none"
    if row is not None and row.credential is not None:
        login = "pending" if row.is_pending else "ready"
    return UserStatus(
        name=name,
        roles=roles,
        all_roles=tuple(sorted(access.graph.closure(roles))),
        permissions=tuple(str(item) for item in sorted(access.access_of_roles(roles), key=str)),
        login=login,
        pending=behind or login == "pending",
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
