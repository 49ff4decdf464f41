"""Proof of who asks: the password that the gateway knows a user by.

The login name of the machine proves nothing; where it matters who somebody is, commands
take `--as USER` and check the password.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.errors import UnavailableError, UsageError, quote

if TYPE_CHECKING:
    from penstock.config import Config


def prove(config: Config, user: str, password_file: Path | None) -> bool:
    """Tell whether the user is who they say they are."""
    from penstock.config.secrets import SecretFile
    from penstock.gateway.connection.authentication import PASSWORD_LIMIT, PasswordFile, check_name

    check_name(user)
    passwords = config.gateway.authentication.passwords
    if passwords is None:
        raise UnavailableError(
            "no file of passwords is named, so that nobody can prove who they are",
            fix="set gateway.authentication.passwords in penstock.yaml",
        )
    if password_file is not None:
        password = SecretFile(password_file).read_text()
    elif sys.stdin.isatty():
        password = str(click.prompt(f"Password of {user}", hide_input=True, err=True))
    else:
        raise UsageError(
            f"the password of {quote(user)} cannot be asked for without a terminal",
            fix="give --password-file",
        )
    file = PasswordFile(passwords)
    file.load()
    given = password.encode()
    return len(given) <= PASSWORD_LIMIT and file.verify(user, given)
