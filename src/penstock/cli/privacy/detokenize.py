"""`penstock detokenize`: turn tokens back into originals, for those with the right.

Rules that hold here:
- Who asks proves it with the password that the gateway knows them by; the login name of the
  machine proves nothing.
- Nothing is printed before the audit log has it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import json_option, show, table
from penstock.cli.session import (
    authenticate,
    configuration,
    open_audited,
    refuse_missing_store,
)
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.store.detokenization import DetokenizedValue

LONGEST_INPUT = 8 * 1024 * 1024


@click.command("detokenize")
@click.argument("view")
@click.argument("field")
@click.argument("tokens", nargs=-1, metavar="[TOKEN]...")
@click.option(
    "--as", "user", required=True, metavar="USER", help="The user who asks; must have the right."
)
@click.option("--reason", required=True, help="The reason; kept with the record of the request.")
@click.option(
    "--password-file",
    type=click.Path(path_type=Path),
    help="A file of mode 0600 that holds the user's password; default: ask for it.",
)
@json_option
def command(
    *,
    view: str,
    field: str,
    tokens: tuple[str, ...],
    user: str,
    reason: str,
    password_file: Path | None,
    as_json: bool,
) -> int:
    """Turn tokens of FIELD of VIEW back into originals; without TOKEN, one per line is read.

    USER needs a `right` whose `detokenize` names the view. Every request, granted or denied,
    is recorded in the audit log first. Tokens of `method: vault` and `method: ff1` can be
    turned back; those of `method: pseudonym` cannot. The original of somebody who opted out of a
    purpose of the view is withheld.
    """
    from penstock.store.consent import ConsentBook
    from penstock.store.detokenization import DetokenizationRequest, Detokenizer

    refuse_missing_store(configuration())
    asked = DetokenizationRequest(user, view, field, tokens or _read_tokens(), reason)
    known = authenticate(configuration(), user, password_file)
    with open_audited() as it:
        detokenizer = Detokenizer(
            it.database,
            it.log,
            it.people,
            it.definitions,
            it.epoch,
            consent=ConsentBook.open(it.database, it.config.consent.key).opt_outs,
        )
        if not known:
            message = "wrong user name or password"
            raise detokenizer.deny(asked, "password", message, "`penstock password` sets one")
        answers = detokenizer.turn_back(asked, it.config.pipeline.key.read)
    data = [
        {"token": it.token, "value": it.value} | ({"withheld": True} if it.withheld else {})
        for it in answers
    ]
    show(as_json, data, lambda target: _render(target, answers))
    return 0


def _render(target: Console, answers: list[DetokenizedValue]) -> None:
    shown = table("token", "original")
    for answer in answers:
        value = "unknown" if answer.value is None else str(answer.value)
        if answer.withheld:
            value = "withheld: the person opted out"
        shown.add_row(Text(answer.token), Text(value))
    target.print(shown)


def _read_tokens() -> tuple[str, ...]:
    """Read one token per line from standard input."""
    text = sys.stdin.read(LONGEST_INPUT + 1)
    if len(text) > LONGEST_INPUT:
        raise UsageError("there are too many tokens", fix="give fewer at a time")
    return tuple(line.strip() for line in text.splitlines() if line.strip())
