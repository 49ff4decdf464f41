"""Whom a question is about: opt-outs in `check` and `explain`, for those who may know.

Rules that hold here:
- What somebody opted out of is told to nobody without the right to administer consent, proved by
  a password; every such question is in the audit log, the person by pseudonym.
- Without `--data-subject` the choices of people are left out of the answer, and it says so: an
  answer must not tell by a topic what its person chose.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import Function
from penstock.cli.session import asking_consent, open_consent, prove
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.policy.consent.data_subjects import DataSubjects
    from penstock.policy.consent.opt_outs import OptOutIndex

LEFT_OUT = "what people opted out of is not looked at: name one of them with --data-subject"


@dataclass(frozen=True, slots=True)
class KnownChoices:
    """What the answer may go by."""

    data_subject: str | None
    opt_outs: OptOutIndex
    prohibited: list[str] = field(default_factory=list)
    """The purposes that the person opted out of."""


def data_subject_options(function: Function) -> Function:
    """Add the options that say whom the question is about, and who asks."""
    named = click.option(
        "--data-subject",
        metavar="PERSON",
        help="Whom messages are about, as streams name them: what they opted out of counts. "
        "Needs --as.",
    )
    return named(asking_consent("asker", required=False)(function))


def know_choices(
    data_subject: str | None, user: str | None, password_file: Path | None
) -> KnownChoices:
    """Return what the answer may go by; refuse who may not know it."""
    from penstock.policy.consent.opt_outs import NOBODY
    from penstock.store.consent import Choice

    if data_subject is None:
        return KnownChoices(None, NOBODY)
    if user is None:
        raise UsageError(
            "what a person opted out of is not told to everybody",
            fix="say who asks: --as USER, with the right to administer",
        )
    with open_consent() as administration:
        prove(administration, user, password_file)
        standings = administration.show(user, data_subject)
        opt_outs = administration.book.opt_outs().make_index()
    chosen = {it.purpose for it in standings if it.choice is Choice.OPT_OUT and it.purpose}
    return KnownChoices(data_subject, opt_outs, sorted(chosen))


def tell_consent(known: KnownChoices, subjects: DataSubjects, topic: str) -> dict[str, Any]:
    """Say whether opt-outs were looked at, as JSON data; refuse a person the topic contradicts."""
    keys = subjects.of(topic)
    told = {it.fixed for it in keys if it.fixed is not None}
    if known.data_subject is not None and told - {known.data_subject}:
        raise UsageError(
            "the topic tells that its messages are about somebody else",
            fix="let --topic and --data-subject name the same person",
        )
    return {"looked_at": known.data_subject is not None, "found_in": [it.place for it in keys]}


def render_consent(console: Console, consent: dict[str, Any]) -> None:
    """Print what the answer leaves open."""
    if not consent["looked_at"] and consent["found_in"]:
        console.print(Text(LEFT_OUT, "yellow"))
    elif consent["looked_at"] and not consent["found_in"]:
        text = "no stream with a subject reads this topic: no opt-out reaches its messages"
        console.print(Text(text, "yellow"))
