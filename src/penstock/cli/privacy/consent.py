"""`penstock consent`: what people have opted out of.

Rules that hold here:
- Who enters or looks at choices of a person proves who they are with the password that the
  gateway knows them by, and needs the right to.
- A choice holds when the command has ended: gateways have confirmed it, and running views ask
  before each batch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import json_option, show, table
from penstock.cli.session import asking_consent, open_consent, prove
from penstock.errors import UsageError

LONGEST_INPUT = 16 * 1024 * 1024
LINES = "-"

asking = asking_consent("user", required=True)


@click.group("consent")
def command() -> None:
    """Record people's opt-outs from purposes, and show their effect.

    If a person opts out of a purpose, gateways deliver no message about them to subscriptions for
    that purpose, for purposes below or above it, or without a purpose; views that serve the
    purpose leave the person out. USER needs a `right` with `administer: true`; every
    choice is recorded in the audit log. The store keeps no names.
    """


def _make_verb(name: str, about: str) -> None:
    @command.command(name, help=about)
    @click.argument("subject")
    @click.argument("purpose")
    @asking
    @json_option
    def choose(
        subject: str, purpose: str, user: str, password_file: Path | None, as_json: bool
    ) -> None:
        from penstock.store.consent import Choice

        people = _read_people() if subject == LINES else [subject]
        with open_consent() as administration:
            prove(administration, user, password_file)
            changed = administration.enter(user, Choice(name), people, purpose)
            views, unable = administration.views_of(purpose)
        data = {
            "choice": name,
            "purpose": purpose,
            "people": len(set(people)),
            "changed": len(changed),
            "views": views,
            "views_without_subject": unable,
        }
        show(as_json, data, lambda target: _render_choice(target, data))


for _name, _about in {
    "opt-out": "Opt SUBJECT out of PURPOSE, from now on.\n\nSUBJECT is the person as the subject "
    "field of streams names them; with -, one per line is read from standard input.",
    "opt-in": "Withdraw the opt-out of SUBJECT from PURPOSE.\n\nOnly this choice is withdrawn, "
    "none for purposes above or below. With -, one SUBJECT per line is read from standard input.",
}.items():
    _make_verb(_name, _about)


@command.command("show")
@click.argument("subject")
@asking
@json_option
def show_subject(subject: str, user: str, password_file: Path | None, as_json: bool) -> None:
    """Show what SUBJECT chose, and which views leave them out."""
    from penstock.store.consent import Choice

    with open_consent() as administration:
        prove(administration, user, password_file)
        rows: list[dict[str, Any]] = [
            {
                "purpose": it.purpose,
                "choice": it.choice.value,
                "since": it.at.isoformat(timespec="seconds"),
                "views": administration.views_of(it.purpose)[0]
                if it.choice is Choice.OPT_OUT
                else [],
            }
            for it in administration.show(user, subject)
        ]

    def render(target: Console) -> None:
        if not rows:
            target.print("this person has made no choices: all views contain their records")
            return
        shown = table("purpose", "choice", "since", "left out of")
        for row in rows:
            shown.add_row(
                Text(row["purpose"], "bold"),
                _render_word(row["choice"]),
                row["since"],
                Text(", ".join(row["views"]) or "no view"),
            )
        target.print(shown)

    show(as_json, rows, render)


@command.command("history")
@click.argument("subject")
@asking
@json_option
def show_history(subject: str, user: str, password_file: Path | None, as_json: bool) -> None:
    """Show every choice of SUBJECT, oldest first: of purposes, and of controls."""
    with open_consent() as administration:
        prove(administration, user, password_file)
        rows: list[dict[str, Any]] = [
            {
                "at": it.at.isoformat(timespec="seconds"),
                "choice": it.choice.value,
                "purposes": list(it.purposes),
                "control": it.control or None,
                "categories": list(it.categories),
                "publisher": it.origin or None,
                "version": it.version,
            }
            for it in administration.history(user, subject)
        ]

    def render(target: Console) -> None:
        if not rows:
            target.print("this person has made no choices")
            return
        shown = table("at", "choice", "purposes", "control", "taken in by")
        for row in rows:
            control = ", ".join((row["control"] or "", *row["categories"]))
            shown.add_row(
                row["at"],
                _render_word(row["choice"]),
                Text(", ".join(row["purposes"]) or "none"),
                Text(control),
                Text(row["publisher"] or "command line"),
            )
        target.print(shown)

    show(as_json, rows, render)


@command.command("list")
@json_option
def list_purposes(as_json: bool) -> None:
    """Show the purposes that people opted out of, how many did, and what leaves them out."""
    with open_consent() as administration:
        found = administration.book.opt_outs()
        rows: list[dict[str, Any]] = [
            {"purpose": purpose, "people": len(who), "views": administration.views_of(purpose)[0]}
            for purpose, who in sorted(found.by_purpose.items())
        ]

    def render(target: Console) -> None:
        if not rows:
            target.print("nobody has opted out of anything")
            return
        shown = table("purpose", "people", "left out of")
        shown.columns[1].justify = "right"
        for row in rows:
            views = ", ".join(row["views"]) or "no view"
            shown.add_row(Text(row["purpose"], "bold"), f"{row['people']:,}", Text(views))
        target.print(shown)

    show(as_json, rows, render)


def _read_people() -> list[str]:
    """Read one person per line from standard input."""
    text = sys.stdin.read(LONGEST_INPUT + 1)
    if len(text) > LONGEST_INPUT:
        raise UsageError("there are too many people", fix="give fewer at a time")
    return [line.strip() for line in text.splitlines() if line.strip()]


def _render_word(choice: str) -> Text:
    return Text(choice, "red" if choice == "opt-out" else "green")


def _render_choice(target: Console, data: dict[str, Any]) -> None:
    changed, people = data["changed"], data["people"]
    did = "opted out of" if data["choice"] == "opt-out" else "opted in again to"
    noun = "person" if changed == 1 else "people"
    words = Text.assemble(f"{changed:,} {noun} {did} ", (data["purpose"], "bold"))
    if people > changed:
        words.append(f"; for {people - changed:,} nothing changed")
    target.print(words)
    views = ", ".join(data["views"])
    told = f"it holds at all gateways, and from the next batch on in {views or 'no view as yet'}"
    target.print(Text(told, "dim"))
    if data["views_without_subject"]:
        blind = ", ".join(data["views_without_subject"])
        target.print(
            Text(f"the streams of these views do not say whom records are about: {blind}", "yellow")
        )
