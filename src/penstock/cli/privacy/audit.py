"""`penstock audit`: read, verify and prove the audit log.

Rules that hold here:
- Nothing here needs the private key; the public keys next to it, or given ones, suffice.
- Which keys to believe never comes from what is checked.
- Exit codes: 0 fine, 1 not as it was signed, 2 wrong usage, 3 something is unavailable.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import console, json_option, print_json, show
from penstock.cli.privacy.rule_names import find_names
from penstock.cli.session import configuration, open_database
from penstock.config import Config
from penstock.errors import UsageError, quote
from penstock.store.audit.entry import CODE, Outcome
from penstock.store.audit.errors import TamperedError
from penstock.store.audit.proofs import (
    check_proof,
    embedded_keys,
    prove_consistency,
    prove_inclusion,
)
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.reader import Filter, Recorded, newest_head, read_after, read_last
from penstock.store.audit.signatures import Head, PublicKeys, anchor_path, load_head, public_path
from penstock.store.audit.verification import AuditVerdict, verify
from penstock.store.database import Database

POLL_SECONDS = 0.25
TAIL_LIMIT = 10_000
PROOF_LIMIT = 1_000_000

public_keys_option = click.option(
    "--public-keys",
    "keys_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The public keys to trust; else those next to the signing key of this installation.",
)


@click.group("audit")
def command() -> None:
    """Read, verify and prove the audit log."""


@contextmanager
def _opened(keys_file: Path | None) -> Iterator[tuple[Config, Database, PublicKeys]]:
    settings = configuration()
    with open_database(settings) as database:
        if keys_file is None and newest_head(database) is None:
            yield settings, database, PublicKeys()
        else:
            yield settings, database, PublicKeys.load(keys_file or _own_keys(settings))


def _own_keys(settings: Config) -> Path:
    return public_path(settings.audit.signing_key.path)


# --- reading ---------------------------------------------------------------------------------


@command.command()
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0, TAIL_LIMIT),
    default=20,
    show_default=True,
    help="How many of the last entries to show.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on with new entries as they come.")
@click.option("--kind", "kinds", multiple=True, help="Only events of this kind; repeatable.")
@click.option(
    "--outcome",
    "outcomes",
    multiple=True,
    type=click.Choice([one.value for one in Outcome]),
    help="Only events that ended so; repeatable.",
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

    People and the names of rules appear as pseudonyms. With --person NAME the pseudonyms of the
    name are computed with the pseudonym key, and only entries that hold one of them are shown.
    With --names those of all rules that were defined when an entry was made are computed, and
    the rules are shown by their names.
    """
    for kind in kinds:
        if not CODE.fullmatch(kind):
            raise UsageError(f"{quote(kind)} is no kind of event", fix="write like decision.read")
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


# --- verifying -------------------------------------------------------------------------------


@command.command("verify")
@click.option(
    "--head",
    "head_files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A head that was kept elsewhere: the log has to extend it; repeatable.",
)
@public_keys_option
@json_option
@click.pass_context
def verify_log(
    ctx: click.Context, head_files: tuple[Path, ...], keys_file: Path | None, as_json: bool
) -> None:
    """Compute every hash anew and compare with the signed heads.

    Finds any entry that was changed, removed, inserted or reordered, a cut-off end and a
    forged head, and names the first bad entry. Whoever holds the database can set the whole
    log back to an older signed state; to find that, pass a head that was kept elsewhere.
    """
    with _opened(keys_file) as (settings, database, keys):
        kept = [load_head(path) for path in head_files]
        anchor = anchor_path(settings.audit.signing_key.path)
        if anchor.exists():
            kept.append(load_head(anchor))
        verdict = verify(database, keys, kept=kept)
    data = {
        "ok": verdict.ok,
        "size": verdict.size,
        "root": verdict.root.hex(),
        "heads": verdict.heads,
        "first_bad": verdict.first_bad,
        "findings": [
            {"message": one.message, "entry": one.entry, "until": one.until}
            for one in verdict.findings
        ],
    }
    show(as_json, data, lambda target: _draw(target, verdict))
    if not verdict.ok:
        ctx.exit(TamperedError.exit_code)


def _draw(target: Console, verdict: AuditVerdict) -> None:
    if verdict.ok:
        words = f"{verdict.size} entries are as they were signed ({verdict.heads} signed heads)"
        target.print(Text.assemble(("ok: ", "bold green"), words))
        return
    target.print(Text("the audit log is not as it was signed", "bold red"))
    for one in verdict.findings:
        target.print(Text.assemble("  ", one.message))
    if verdict.first_bad is not None:
        certain = next(one for one in verdict.findings if one.entry == verdict.first_bad)
        words = "first bad entry" if certain.until is None else "the first bad entry is not before"
        target.print(Text.assemble(f"{words}: ", (str(verdict.first_bad), "bold")))


@command.command()
@json_option
def head(as_json: bool) -> None:
    """Print the newest signed head, to keep it in a place out of the database's reach."""
    with open_database() as database:
        _print_document(_newest(database).as_document(), as_json=as_json)


def _newest(database: Database) -> Head:
    found = newest_head(database)
    if found is None:
        raise UsageError("the audit log is empty", fix="something has to be recorded first")
    return found


def _print_document(document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        print(json.dumps(document, ensure_ascii=False, indent=2))


@command.command()
@json_option
def keys(as_json: bool) -> None:
    """Print the public keys of the log, for auditors; PEM, or with --json also their ids."""
    found = PublicKeys.load(_own_keys(configuration()))
    if as_json:
        print_json([{"key": one, "pem": found.pem(one)} for one in found.ids])
    else:
        print(found.pem(), end="")


# --- proving ---------------------------------------------------------------------------------


@command.command()
@click.argument("seq", metavar="[N]", type=int, required=False)
@click.option(
    "--since",
    type=click.Path(path_type=Path),
    metavar="HEAD",
    help="Prove that the log extends this head that was kept.",
)
@click.option(
    "--until",
    type=click.Path(path_type=Path),
    metavar="HEAD",
    help="With --since: up to this head instead of the newest.",
)
@public_keys_option
@json_option
def prove(
    seq: int | None,
    since: Path | None,
    until: Path | None,
    keys_file: Path | None,
    as_json: bool,
) -> None:
    """Print a proof that entry N is in the log, or that the log extends an older head.

    The proof is a JSON document that stands by itself: `penstock audit check-proof` checks
    it anywhere, without the database.
    """
    if (seq is None) == (since is None) or (until is not None and since is None):
        raise UsageError(
            "what to prove is not clear", fix="give the number of an entry, or --since HEAD"
        )
    with _opened(keys_file) as (_, database, believed):
        if since is None:
            _newest(database)
            proof = prove_inclusion(database, believed, seq or 0)
        else:
            last = load_head(until) if until else None
            proof = prove_consistency(database, believed, load_head(since), last)
    _print_document(proof, as_json=as_json)


@command.command("check-proof")
@click.argument("file", type=click.File("rb"))
@public_keys_option
@click.option("--key-id", help="Believe the key in the proof if it has this id.")
@json_option
def check(file: Any, keys_file: Path | None, key_id: str | None, as_json: bool) -> None:
    """Check a proof, offline; FILE may be - for standard input.

    Which key to believe has to come from elsewhere: from --public-keys, from --key-id, or
    from this installation. The key in the proof alone proves nothing.
    """
    try:
        proof = json.loads(file.read(PROOF_LIMIT))
    except (ValueError, RecursionError):
        raise UsageError(f"{quote(file.name)} is not JSON", fix="pass a proof") from None
    shown = check_proof(proof, _believed(proof, keys_file, key_id))
    show(
        as_json,
        {"ok": True, "proves": shown},
        lambda target: target.print(Text.assemble(("ok: ", "bold green"), shown)),
    )


def _believed(proof: Any, keys_file: Path | None, key_id: str | None) -> PublicKeys:
    if key_id is not None:
        found = embedded_keys(proof)
        if found.ids != [key_id]:
            raise TamperedError(
                f"the proof is signed with {', '.join(found.ids)}, not with {quote(key_id)}"
            )
        return found
    path = keys_file or _own_keys(configuration())
    if keys_file is None and not path.exists():
        raise UsageError("there is no key to believe", fix="pass --public-keys FILE or --key-id ID")
    return PublicKeys.load(path)
