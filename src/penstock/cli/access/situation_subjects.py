"""Whom a situation is started for: somebody whose name is known, or a slip of the pen.

Rules that hold here:
- A scenario that is followed for everyone takes any name. So a name that stands nowhere in the
  definitions and never had a case is asked about before it is put into a situation: who
  mistook it would believe that somebody's data is open now.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from penstock.errors import UsageError, quote

if TYPE_CHECKING:
    from penstock.cli.access.situation_session import Desk
    from penstock.definitions import DefinitionSet


def confirm_subject(desk: Desk, subject: str) -> None:
    """Ask about a subject whom nobody knows; refuse it where nobody can be asked."""
    if _is_known(desk, subject):
        return
    told = f"{quote(subject)} stands in no definition and never was in a situation"
    if not sys.stdin.isatty():
        raise UsageError(told, fix="mend the name, or say that it is right with --yes")
    if not click.confirm(f"{told}. Is the name right?", err=True):
        raise UsageError(f"{quote(subject)} was not meant", fix="mend the name")


def _is_known(desk: Desk, subject: str) -> bool:
    return (
        subject in _list_names(desk.definitions)
        or bool(desk.situations.current(subject=subject))
        or bool(desk.situations.history(subject=subject, limit=1))
    )


def _list_names(definitions: DefinitionSet) -> Iterator[str]:
    """Yield all names of people and things that definitions speak of."""
    from penstock.model.kinds import Attributes, Group, Scenario, User

    yield from definitions.of(User)
    for scenario in definitions.of(Scenario).values():
        yield from scenario.subjects or ()
    for group in definitions.of(Group).values():
        yield from (member.partition(":")[2] for member in group.members)
    for name, attributes in definitions.of(Attributes).items():
        yield name.partition(":")[2]
        yield from _list_texts(attributes.on_behalf_of)
        yield from _list_texts(list(attributes.values.values()))


def _list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for it in value:
            yield from _list_texts(it)
