"""`penstock tokens`: what services prove to the server with, in place of a password.

Rules that hold here:
- Whoever asks proves who they are with the password that the gateway knows them by. Users have
  to do with their own tokens; with those of others only who may administer.
- A token is printed once, on standard output, and is nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import json_option, show, table
from penstock.cli.privacy.consent import asking
from penstock.cli.session import (
    authenticate,
    open_audited,
)

if TYPE_CHECKING:
    from penstock.store.access_tokens import AccessToken, TokenAdministration

_COLOURS = {"valid": "green", "expired": "yellow", "revoked": "red"}


@click.group("tokens")
def command() -> None:
    """Make, list and revoke access tokens for `penstock server`."""


@command.command()
@click.argument("owner", required=False)
@click.option("--days", default=90, show_default=True, help="For how many days it is valid.")
@click.option("--note", default="", help="What it is for.")
@asking
@json_option
def make(
    owner: str | None,
    days: int,
    note: str,
    user: str,
    password_file: Path | None,
    as_json: bool,
) -> None:
    """Make a token for OWNER, by default for USER, and print it: it is shown only once."""
    with _open_administration(user, password_file) as administration:
        token, made = administration.make(user, owner or user, days=days, note=note)
    data = {"token": token, **_describe(made, "valid")}
    show(as_json, data, lambda target: target.print(token, highlight=False, soft_wrap=True))


@command.command("list")
@click.argument("owner", required=False)
@asking
@json_option
def list_tokens(owner: str | None, user: str, password_file: Path | None, as_json: bool) -> None:
    """Show the tokens of OWNER; without one, all that USER may see."""
    with _open_administration(user, password_file) as administration:
        now = administration.book.clock()
        rows = [_describe(it, it.status(now)) for it in administration.tokens(user, owner)]

    def render(target: Console) -> None:
        if not rows:
            target.print("no tokens yet")
            return
        shown = table("token", "user", "status", "made", "expires", "note")
        for row in rows:
            status = Text(row["status"], _COLOURS[row["status"]])
            shown.add_row(
                row["id"], row["user"], status, row["made"], row["expires"], Text(row["note"])
            )
        target.print(shown)

    show(as_json, rows, render)


@command.command()
@click.argument("token")
@asking
@json_option
def revoke(token: str, user: str, password_file: Path | None, as_json: bool) -> None:
    """Revoke TOKEN, named by its identifier in the list, at once."""
    with _open_administration(user, password_file) as administration:
        ended = administration.revoke(user, token)
    show(
        as_json,
        _describe(ended, "revoked"),
        lambda target: target.print(f"revoked {ended.id} of {ended.user}", highlight=False),
    )


@contextmanager
def _open_administration(user: str, password_file: Path | None) -> Iterator[TokenAdministration]:
    from penstock.store.access_tokens import TokenAdministration, TokenBook

    with open_audited() as it:
        book = TokenBook(it.database)
        administration = TokenAdministration(book, it.log, it.people, it.definitions, it.epoch)
        if not authenticate(it.config, user, password_file):
            raise administration.deny(user, "wrong user name or password")
        yield administration


def _describe(token: AccessToken, status: str) -> dict[str, Any]:
    return {
        "id": token.id,
        "user": token.user,
        "note": token.note,
        "made": token.made.isoformat(timespec="seconds"),
        "expires": token.expires.isoformat(timespec="seconds"),
        "status": status,
    }
