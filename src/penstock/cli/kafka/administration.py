"""What the commands on users and roles share: the open store, passwords, and what was done."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import show, table
from penstock.cli.session import actor, configuration, open_database
from penstock.errors import UsageError

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


def ask_password() -> str:
    """Ask for a password at the terminal, or read a line of standard input."""
    if sys.stdin.isatty():
        password = str(click.prompt("Password", hide_input=True, confirmation_prompt=True))
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise UsageError(
            "the password is empty", fix="type it, pipe it to standard input, or use --generate"
        )
    return password


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
    except PendingError:
        aside.replace(file)
        raise
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
