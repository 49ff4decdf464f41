"""`penstock user` and `role`: who is at Kafka, and what the roles of users may read and write.

Rules that hold here:
- A change is done when Kafka has it; what is still pending there is told.
- A password is never an argument: it is asked for, read from standard input, or made up and
  written to a file that exists if and only if the password was stored.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import json_option, show, table
from penstock.cli.session import actor, ask_new_password, configuration, open_database

if TYPE_CHECKING:
    from penstock.kafka import Administration, ReconcileResult, RoleStatus, UserStatus


@contextmanager
def open_officer(*, service: str | None = None) -> Iterator[Administration]:
    """Open users and roles, to look at them and to change them with a record.

    `service` works by itself, and stands in the audit log instead of who started it.
    """
    from penstock.kafka import AccessAudit, open_administration
    from penstock.store.audit.log import AuditLog
    from penstock.store.audit.pruning import keep_pruned
    from penstock.store.audit.pseudonyms import Pseudonyms
    from penstock.store.definitions.checked import CheckedDefinitions, recorder
    from penstock.store.definitions.history import Definitions
    from penstock.telemetry import configure

    settings = configuration()
    configure(level=settings.log.level, style=settings.log.format if service else "console")
    with open_database(settings) as database, ExitStack() as stack:
        log = AuditLog.open(database, settings.audit.signing_key)
        people = Pseudonyms.open(settings.audit.pseudonym_key)
        if service:
            stack.enter_context(keep_pruned(log, settings.audit))
        who = people.service(service) if service else people.person(actor())
        try:
            record = recorder(log, people)
            definitions = CheckedDefinitions(Definitions(database), record, signer=log.signer)
            yield open_administration(
                settings.kafka,
                database,
                definitions,
                actor=actor(),
                audit=AccessAudit(log, people, who),
            )
        finally:
            log.close()


@contextmanager
def made_password(user: str) -> Iterator[tuple[str, Path]]:
    """Make up a password for what the block stores, with the file (mode 0600) it will be in.

    The file appears if and only if the block stored the password.
    """
    from penstock.config.secrets import SecretFile
    from penstock.kafka import PendingError

    folder = configuration().kafka.passwords
    # A name may have slashes; a file must not.
    file = folder / user.replace("/", "%")
    password = secrets.token_urlsafe(24)
    aside = folder / f".{secrets.token_hex(8)}"
    SecretFile(aside).create(f"{password}\n".encode())
    try:
        yield password, file
    except PendingError as error:
        aside.replace(file)
        message = f"{error.message}; the password is in {file}"
        raise PendingError(message, fix=error.fix) from error
    except BaseException:
        aside.unlink()
        raise
    aside.replace(file)


def show_done(
    as_json: bool, done: ReconcileResult, said: str, *, more: dict[str, Any] | None = None
) -> None:
    """Say what a command did."""
    data = {
        "epoch": done.epoch,
        "acls_put": done.put,
        "acls_removed": done.removed,
        "users_put": done.users_put,
        "users_removed": done.users_removed,
        **(more or {}),
    }

    def render(target: Console) -> None:
        target.print(said, highlight=False)
        target.print(
            f"epoch {done.epoch}, also at Kafka: {done.put} ACLs put, {done.removed} removed",
            style="dim",
        )
        for name, value in (more or {}).items():
            target.print(f"{name}: {value}", soft_wrap=True)

    show(as_json, data, render)


def render_users(target: Console, found: list[UserStatus]) -> None:
    """Draw users as a table."""
    shown = table("user", "roles", "login", "")
    for user in found:
        pending = Text("pending", style="yellow") if user.pending else Text("")
        shown.add_row(user.name, ", ".join(user.roles) or "none", user.login, pending)
    target.print(shown if found else "no users yet; `penstock user add NAME` adds one")


def render_roles(target: Console, found: list[RoleStatus]) -> None:
    """Draw roles as a table."""
    shown = table("role", "allows", "includes", "users")
    for role in found:
        allows = ", ".join((*role.permissions, *role.inherited)) or "nothing"
        shown.add_row(role.name, allows, ", ".join(role.includes), str(len(role.users)))
    target.print(shown if found else "no roles yet; `penstock role add NAME` adds one")


def render_user(target: Console, user: UserStatus) -> None:
    """Draw one user."""
    included = sorted(set(user.all_roles) - set(user.roles))
    by = f" (and by inclusion {', '.join(included)})" if included else ""
    target.print(f"{user.name}: roles {', '.join(user.roles) or 'none'}{by}", highlight=False)
    target.print(f"login {user.login}{', changes pending at Kafka' if user.pending else ''}")
    if user.certificate:
        target.print(f"certificate {user.certificate}", highlight=False, markup=False)
    if user.blocked:
        target.print("blocked")
    for permission in user.permissions or ("may read and write nothing",):
        target.print(f"  {permission}", highlight=False)


def render_role(target: Console, role: RoleStatus) -> None:
    """Draw one role."""
    target.print(f"{role.name}: includes {', '.join(role.includes) or 'none'}", highlight=False)
    if role.excludes:
        target.print(f"excludes {', '.join(role.excludes)}", highlight=False)
    for permission in role.permissions:
        target.print(f"  {permission}", highlight=False)
    for permission in role.inherited:
        target.print(Text(f"  {permission} (by inclusion)"))
    target.print(f"users: {', '.join(role.users) or 'none'}", highlight=False)


Store = Callable[["Administration", str], "ReconcileResult"]
generate_option = click.option(
    "--generate", is_flag=True, help="Generate a password, and write it to a file of its own."
)
write_option = click.option("--write", is_flag=True, help="Permission to write; default: to read.")


def _change(as_json: bool, said: str, change: Callable[[Administration], ReconcileResult]) -> None:
    with open_officer() as officer:
        done = change(officer)
    show_done(as_json, done, said)


def _with_password(name: str, generate: bool, as_json: bool, said: str, store: Store) -> None:
    more: dict[str, str] = {}
    with open_officer() as officer:
        if generate:
            with made_password(name) as (password, file):
                done = store(officer, password)
            more["password_file"] = str(file)
        else:
            fix = "type it, pipe it to standard input, or use --generate"
            done = store(officer, ask_new_password(fix))
    show_done(as_json, done, said, more=more)


@click.group("user")
def user_command() -> None:
    """Manage users at Kafka: their roles and passwords."""


@user_command.command("add")
@click.argument("name")
@click.option(
    "--role", "roles", multiple=True, metavar="ROLE", help="A role of the user; repeatable."
)
@click.option(
    "--certificate",
    metavar="NAME",
    help="The distinguished name of the user's certificate, instead of a password: CN=anna,O=Ward.",
)
@generate_option
@json_option
def add_user(
    name: str, roles: tuple[str, ...], certificate: str | None, generate: bool, as_json: bool
) -> None:
    """Add a user; the password is asked for, or read from standard input.

    A user with a certificate logs in at Kafka with it, and needs no password.
    """
    said = f"added user {name}"
    if certificate is not None and not generate:
        _change(as_json, said, lambda it: it.add_user(name, None, roles, certificate=certificate))
        return
    _with_password(
        name,
        generate,
        as_json,
        said,
        lambda it, new: it.add_user(name, new, roles, certificate=certificate),
    )


@user_command.command("password")
@click.argument("name")
@generate_option
@json_option
def set_password(name: str, generate: bool, as_json: bool) -> None:
    """Set a new password for a user."""
    said = f"set the password of {name}"
    _with_password(name, generate, as_json, said, lambda it, new: it.set_password(name, new))


@user_command.command("delete")
@click.argument("name")
@json_option
def delete_user(name: str, as_json: bool) -> None:
    """Delete a user: nothing may be read any more, and no login works."""
    _change(as_json, f"deleted user {name}", lambda it: it.delete_user(name))


@user_command.command("block")
@click.argument("name")
@json_option
def block(name: str, as_json: bool) -> None:
    """Block a user: connections to gateways end, and nothing may be read at Kafka."""
    _change(as_json, f"blocked user {name}", lambda it: it.block_user(name))


@user_command.command("unblock")
@click.argument("name")
@json_option
def unblock(name: str, as_json: bool) -> None:
    """Let a user in again, with the roles they have."""
    _change(as_json, f"unblocked user {name}", lambda it: it.block_user(name, blocked=False))


@user_command.command("assign")
@click.argument("name")
@click.argument("role")
@json_option
def assign(name: str, role: str, as_json: bool) -> None:
    """Assign ROLE to a user."""
    _change(as_json, f"{name} has the role {role}", lambda it: it.assign_role(name, role))


@user_command.command("remove")
@click.argument("name")
@click.argument("role")
@json_option
def remove(name: str, role: str, as_json: bool) -> None:
    """Take ROLE from a user; whoever is reading by it is stopped."""
    _change(as_json, f"took the role {role} from {name}", lambda it: it.remove_role(name, role))


@user_command.command("show")
@click.argument("name")
@json_option
def show_user(name: str, as_json: bool) -> None:
    """Show the roles of a user, and what they allow."""
    with open_officer() as officer:
        found = officer.user_status(name)
    show(as_json, found.as_data(), lambda target: render_user(target, found))


@user_command.command("list")
@json_option
def list_users(as_json: bool) -> None:
    """List all users."""
    with open_officer() as officer:
        found = officer.users()
    show(as_json, [user.as_data() for user in found], lambda target: render_users(target, found))


@click.group("role")
def role_command() -> None:
    """Manage roles: what they may read and write at Kafka.

    A PERMISSION is view:NAME, stream:NAME, topic:NAME, prefix:TEXT, or just the name of a
    view, of a stream, or of the topic of one.
    """


@role_command.command("add")
@click.argument("name")
@click.argument("permissions", nargs=-1, metavar="[PERMISSION]...")
@click.option(
    "--include",
    "includes",
    multiple=True,
    metavar="ROLE",
    help="Include the permissions of this role.",
)
@click.option(
    "--exclude", "excludes", multiple=True, metavar="ROLE", help="Nobody may have both roles."
)
@json_option
def add_role(
    name: str,
    permissions: tuple[str, ...],
    includes: tuple[str, ...],
    excludes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Add a role that may read what PERMISSIONS name."""
    _change(
        as_json,
        f"added role {name}",
        lambda it: it.add_role(name, permissions, includes=includes, excludes=excludes),
    )


@role_command.command("delete")
@click.argument("name")
@json_option
def delete_role(name: str, as_json: bool) -> None:
    """Delete a role, and take it from all users."""
    _change(as_json, f"deleted role {name}", lambda it: it.delete_role(name))


@role_command.command("allow")
@click.argument("name")
@click.argument("permission")
@write_option
@json_option
def allow(name: str, permission: str, write: bool, as_json: bool) -> None:
    """Add PERMISSION to a role."""
    to = "write" if write else "read"
    said = f"role {name} has {permission}"
    _change(as_json, said, lambda it: it.add_permission(name, permission, allow=to))


@role_command.command("revoke")
@click.argument("name")
@click.argument("permission")
@write_option
@json_option
def revoke(name: str, permission: str, write: bool, as_json: bool) -> None:
    """Revoke PERMISSION from a role; whoever is reading by it is stopped."""
    to = "write" if write else "read"
    said = f"revoked {permission} from role {name}"
    _change(as_json, said, lambda it: it.remove_permission(name, permission, allow=to))


@role_command.command("show")
@click.argument("name")
@json_option
def show_role(name: str, as_json: bool) -> None:
    """Show what a role allows, and who has it."""
    with open_officer() as officer:
        found = officer.role_status(name)
    show(as_json, found.as_data(), lambda target: render_role(target, found))


@role_command.command("list")
@json_option
def list_roles(as_json: bool) -> None:
    """List all roles."""
    with open_officer() as officer:
        found = officer.roles()
    show(as_json, [role.as_data() for role in found], lambda target: render_roles(target, found))
