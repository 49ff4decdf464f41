"""Who may read the files of a view by our commands, and the record of who used streams and views.

    views read ──▶ does the view name roles? ──no──▶ recorded, shown
                        │ yes
                        └▶ --as USER, proved ──▶ one of these roles? ──▶ recorded, shown
                                │ no                    │ no
                                └── refused, recorded ──┘

Rules that hold here:
- A role of the view, or one that includes it, or one with a permission to read the view, as at
  Kafka. A view without any is for everybody who may run the command.
- Records are printed only after the audit log has who reads them.
- Who is allowed to read the folder by the operating system can read the files without us.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.output import Function
from penstock.cli.session import actor, authenticate, open_audited
from penstock.errors import DeniedError, quote

if TYPE_CHECKING:
    from penstock.cli.session import AuditedStore


def asking_reader(function: Function) -> Function:
    """Add the options that say who reads."""
    named = click.option(
        "--as", "user", metavar="USER", help="Who reads: a user with a role of the view."
    )
    proved = click.option(
        "--password-file",
        type=click.Path(path_type=Path),
        help="A file of mode 0600 that holds the user's password; default: ask for it.",
    )
    return named(proved(function))


def admit_reader(view: str, user: str | None, password_file: Path | None) -> None:
    """Record who reads a view; refuse who has none of its roles."""
    from penstock.kafka.acls import WantedAccess
    from penstock.model.kinds import View

    with open_audited() as store:
        wanted = WantedAccess(store.definitions)
        roles = wanted.reading_roles(store.definitions.of(View)[view])
        if user is not None and not authenticate(store.config, user, password_file):
            raise _deny(
                store, view, user, "password", "wrong user name or password",
                "`penstock password` sets one",
            )  # fmt: skip
        if roles:
            told = ", ".join(sorted(roles))
            fix = f"read it with --as USER, a user with one of these roles: {told}"
            if user is None:
                message = f"the view {quote(view)} is for certain roles, and nobody said who reads"
                raise _deny(store, view, actor(), "role", message, fix)
            if not roles & wanted.roles_named(user):
                message = f"{quote(user)} has no role of the view {quote(view)}"
                raise _deny(store, view, user, "role", message, f"its roles are {told}")
        _note(store, "view.read", user or actor(), {"view": view})


def note_use(
    kind: str, *, view: str | None = None, stream: str | None = None, count: int | None = None
) -> None:
    """Record that whoever runs this command used a stream or a view."""
    details = {"view": view, "stream": stream, "count": count}
    with open_audited() as store:
        _note(store, kind, actor(), {name: it for name, it in details.items() if it is not None})


def _note(store: AuditedStore, kind: str, user: str, details: dict[str, Any]) -> None:
    from penstock.store.audit.entry import Entry, Outcome

    entry = Entry.make(
        kind,
        Outcome.ALLOWED if kind == "view.read" else Outcome.DONE,
        actor=store.people.person(user),
        epoch=store.epoch,
        **details,
    )
    store.log.append([entry])


def _deny(
    store: AuditedStore, view: str, user: str, code: str, message: str, fix: str
) -> DeniedError:
    from penstock.store.audit.entry import Entry, Outcome

    entry = Entry.make(
        "view.read",
        Outcome.DENIED,
        actor=store.people.person(user),
        epoch=store.epoch,
        view=view,
        reason=code,
    )
    store.log.append([entry])
    return DeniedError(message, fix=fix)
