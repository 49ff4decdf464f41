"""`penstock password`: add, change or remove a user in the file of passwords."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import click

from penstock.cli.output import json_option, show
from penstock.cli.session import configuration
from penstock.errors import UsageError, quote


@click.command("password")
@click.argument("user")
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file; else gateway.authentication.passwords of penstock.yaml.",
)
@click.option("--client-ids", default="", metavar="ID,ID*", help="Further client identifiers.")
@click.option("--remove", is_flag=True, help="Remove the user.")
@json_option
def command(user: str, path: Path | None, client_ids: str, remove: bool, as_json: bool) -> None:
    """Set the password of USER; it is asked for, or read from standard input."""
    from argon2 import PasswordHasher

    from penstock.gateway.connection.authentication import check_name

    check_name(user)
    file = path or configuration().gateway.authentication.passwords
    if file is None:
        raise UsageError(
            "no file of passwords is named",
            fix="set gateway.authentication.passwords in penstock.yaml, or use --file",
        )
    lines = file.read_text().splitlines() if file.exists() else []
    kept = [line for line in lines if line.partition(":")[0] != user]
    if remove and len(kept) == len(lines):
        raise UsageError(f"there is no user {quote(user)} in {quote(file)}", fix="check the name")
    if not remove:
        password = _ask()
        rest = f":{client_ids}" if client_ids else ""
        kept.append(f"{user}:{PasswordHasher().hash(password)}{rest}")
    _replace(file, "".join(f"{line}\n" for line in kept))
    action = "removed" if remove else "set"
    show(
        as_json,
        {"user": user, "file": str(file), "action": action},
        lambda out: out.print(f"{action} the password of {user} in {file}", highlight=False),
    )


def _ask() -> str:
    if sys.stdin.isatty():
        password = str(click.prompt("Password", hide_input=True, confirmation_prompt=True))
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise UsageError("the password is empty", fix="type it, or pipe it to standard input")
    return password


def _replace(file: Path, content: str) -> None:
    """Put the new content in place at once, readable by its owner alone."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    with os.fdopen(descriptor, "w") as new:
        os.fchmod(descriptor, 0o600)
        new.write(content)
        new.flush()
        os.fsync(descriptor)
    Path(name).replace(file)
