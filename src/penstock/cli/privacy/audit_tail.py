"""`penstock audit tail`: the last entries of the audit log, and new ones as they come.

Rules that hold here:
- People and rules are shown as pseudonyms. The name of a rule is found by computing, with the
  key, the pseudonyms of all that was defined at the epoch of an entry, and just before it. What
  never was defined, such as the filter of a refused subscription, stays a pseudonym; and so do
  people.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from penstock.cli.output import console, json_option, print_json
from penstock.cli.session import configuration, open_database
from penstock.errors import UsageError, quote
from penstock.store.audit.entry import CODE, Outcome

if TYPE_CHECKING:
    from penstock.definitions import DefinitionSet
    from penstock.store.audit.pseudonyms import Pseudonyms
    from penstock.store.audit.reader import Filter, Recorded
    from penstock.store.database import Database

EPOCHS_LIMIT = 100
POLL_SECONDS = 0.25
TAIL_LIMIT = 10_000


@click.command()
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0, TAIL_LIMIT),
    default=20,
    show_default=True,
    help="How many of the last entries to show.",
)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new entries.")
@click.option("--kind", "kinds", multiple=True, help="Only events of this kind; repeatable.")
@click.option(
    "--outcome",
    "outcomes",
    multiple=True,
    type=click.Choice([one.value for one in Outcome]),
    help="Only events with this outcome; repeatable.",
)
@click.option("--person", "name", help="Only entries about or by this person; needs the key.")
@click.option("--names", is_flag=True, help="Show the names of rules; needs the key.")
@json_option
def tail(
    *,
    lines: int,
    follow: bool,
    kinds: tuple[str, ...],
    outcomes: tuple[str, ...],
    name: str | None,
    names: bool,
    as_json: bool,
) -> None:
    """Show the last entries. With --json, each is one line.

    People and the names of rules appear as pseudonyms. With --person NAME, the pseudonyms of the
    name are computed with the pseudonym key, and only entries with one of them are shown. With
    --names, the rules that were defined when an entry was made are shown by their names; this
    needs the key, too.
    """
    from penstock.store.audit.pseudonyms import Pseudonyms
    from penstock.store.audit.reader import Filter, read_last

    for kind in kinds:
        if not CODE.fullmatch(kind):
            raise UsageError(
                f"{quote(kind)} is not a kind of event", fix="write like decision.read"
            )
    settings = configuration()
    key = Pseudonyms.load(settings.audit.pseudonym_key) if names or name is not None else None
    people = () if key is None or name is None else key.all_of(name)
    only = Filter(kinds, [Outcome(one) for one in outcomes], people)
    with open_database(settings) as database:
        with database.read() as connection:
            newest = read_last(connection, 1)
            found = read_last(connection, lines, only) if lines else []
        if not as_json:
            _announce(expected=bool(found) or follow, any_at_all=bool(newest))
        shown = _Shown(database, key if names else None, as_json=as_json)
        shown.print(found)
        if follow:
            _follow(shown, newest[0].seq if newest else -1, only)


def _follow(shown: _Shown, seq: int, only: Filter) -> None:
    from penstock.store.audit.reader import read_after, read_last

    database = shown.database
    while True:
        with database.read() as connection:
            newest = read_last(connection, 1)
            found = read_after(connection, seq, only=only)
        shown.print(found)
        if found:
            seq = found[-1].seq
        elif newest:
            # Nothing of what we look for up to here: the next look begins behind it.
            seq = max(seq, newest[0].seq)
        time.sleep(POLL_SECONDS)


class _Shown:
    """Prints entries, with the names of rules where a key is given."""

    def __init__(self, database: Database, key: Pseudonyms | None, *, as_json: bool) -> None:
        self.database = database
        self._key = key
        self._as_json = as_json

    def print(self, found: list[Recorded]) -> None:
        """Print entries, one on a line."""
        from penstock.store.audit.signatures import TamperedError

        names = {} if self._key is None else find_names(self.database, self._key, found)
        target = console()
        for one in found:
            try:
                rule = names.get(one.entry.rule or "", one.entry.rule)
                line = _document(one, rule) if self._as_json else _line(one, rule)
            except (ValueError, TypeError, OverflowError):
                raise TamperedError(
                    f"entry {one.seq} is unreadable", fix="run `penstock audit verify`"
                ) from None
            if self._as_json:
                print_json(line)
            else:
                target.print(line, soft_wrap=True)
        sys.stdout.flush()


_COLOURS = {"allowed": "green", "denied": "red", "failed": "bold red"}
_HEADER = f"{'entry':>8}  {'time':<24}  {'outcome':<7}  event"


def _announce(*, expected: bool, any_at_all: bool) -> None:
    """Say what the columns are, or that there is nothing to show."""
    if expected:
        console().print(Text(_HEADER, "bold dim"))
    else:
        console().print("no entries that fit" if any_at_all else "no entries yet")


def _document(one: Recorded, rule: str | None) -> dict[str, Any]:
    """Return an entry for machines; proofs keep the number that was signed."""
    return one.as_document() | {"time": _moment(one.entry.time, "microseconds"), "rule": rule}


def _line(one: Recorded, rule: str | None) -> Text:
    entry = one.entry
    parts = [
        Text(f"{one.seq:>8}", "dim"),
        Text(_moment(entry.time)),
        Text(f"{entry.outcome:<7}", _COLOURS.get(entry.outcome, "")),
        Text(entry.kind),
    ]
    named = {"actor": entry.actor, "subject": entry.subject, "rule": rule}
    named |= {"epoch": entry.epoch} | json.loads(entry.details)
    parts += [Text(f"{name}={value}", "dim") for name, value in named.items() if value is not None]
    line = Text("  ").join(parts)
    if not line.plain.isprintable():
        # Nothing that was appended holds control characters; what was put in later may.
        raise ValueError
    return line


def _moment(microseconds: int, precision: str = "milliseconds") -> str:
    # Whole numbers throughout: seconds as a float would blur the last digit.
    moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=microseconds)
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


def find_names(
    database: Database, people: Pseudonyms, entries: Iterable[Recorded]
) -> dict[str, str]:
    """Return the rules of these entries, of their newest epochs, by how the log names them."""
    from penstock.store.definitions.checked import CheckedDefinitions
    from penstock.store.definitions.history import Definitions

    history = CheckedDefinitions(Definitions(database))
    newest = history.definitions.snapshot().epoch
    told = {it.entry.epoch for it in entries if it.entry.rule is not None and it.entry.epoch}
    epochs = {epoch for it in told for epoch in (it - 1, it) if 0 <= epoch <= newest}
    names: dict[str, str] = {}
    for epoch in sorted(epochs)[-EPOCHS_LIMIT:]:
        for text in _texts(history.meaning(history.definitions.snapshot_at(epoch))):
            if text.isprintable():
                names[people.rule(text) or text] = text
    return names


def _texts(definitions: DefinitionSet) -> Iterator[str]:
    from penstock.definitions.access import RULE_KINDS, name_rule
    from penstock.kafka.acls import WantedAccess
    from penstock.model.kinds import Concern, Reservation, Right, Role, Stream, kinds_of
    from penstock.policy.parts import OTHER_TYPE
    from penstock.policy.purposes.explanations import name_reservation

    named = RULE_KINDS | kinds_of(Concern.INTERACTION) | {"authorisation-rule"}
    yield from (name_rule(key) for key in definitions.definitions if key.kind in named)
    yield from (OTHER_TYPE + name for name in definitions.of(Stream))
    yield from (f"right/{name}" for name in definitions.of(Right))
    yield from (f"role {name}" for name in definitions.of(Role))
    for name, held in definitions.of(Reservation).items():
        yield name_reservation(name, held.purposes)
    wanted = WantedAccess(definitions)
    for user in wanted.users:
        yield from (str(acl) for acl in wanted.acls(user))
