"""What is reported on privacy requests, and the broker that all verbs on them are opened for.

Rules that hold here:
- Whoever asks proves who they are with the password that the gateway knows them by.
- Figures, records and the evidence of an erasure or an export name services, controls and
  purposes, never a person.
- A receipt is for the front end that took the choice in, which names the person itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import json_option, print_json, show, table
from penstock.cli.privacy.consent import asking
from penstock.cli.session import (
    authenticate,
    configuration,
    open_audited,
    open_definitions,
)
from penstock.errors import UsageError, quote

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.rights.broker import PrivacyBroker
    from penstock.store.audit.log import AuditLog
    from penstock.store.audit.pseudonyms import Pseudonyms
    from penstock.store.database import Database
    from penstock.store.definitions.checked import CheckedDefinitions
    from penstock.store.opt_outs import SubjectMarks
    from penstock.store.rights.erasures import Evidence


def as_data(proof: Evidence) -> dict[str, Any]:
    """Return evidence as JSON, with whether it is what the audit log has a digest of."""
    return {
        "subscriber": proof.subscriber, "at": proof.at.isoformat(timespec="seconds"),
        "digest": proof.digest, "entry": proof.entry, "intact": proof.is_intact, **proof.content,
    }  # fmt: skip


def print_evidence(target: Console, proof: Evidence) -> None:
    """Show what was erased or exported, what the scan found, and what remains where."""
    target.print(f"\nevidence of {proof.subscriber}, {proof.at:%Y-%m-%d %H:%M} UTC")
    exported = "exported" in proof.content
    shown = table("exported" if exported else "erased from", "what")
    for it in proof.content["exported" if exported else "erased"]:
        figures = ", ".join(f"{count} {name}" for name, count in it.items() if name != "place")
        shown.add_row(it["place"], figures)
    target.print(shown)
    scan = proof.content.get("scan")
    if scan is not None:
        target.print(
            f"scan of {scan['files']} files ({scan['bytes']} bytes): "
            f"the name was found {scan['found']} times"
        )
    left = table("missing" if exported else "remains", "why")
    for it in proof.content["remains"]:
        count = f" ({it['count']} times)" if "count" in it else ""
        until = f", gone by {it['until']}" if "until" in it else ""
        left.add_row(it["place"], it["reason"] + count + until)
    target.print(left)
    if proof.audited is None:
        state = "the audit log no longer has that entry"
    else:
        state = "intact" if proof.is_intact else "NOT what the audit log has a digest of"
    target.print(f"digest {proof.digest}, entry {proof.entry} of the audit log: {state}")


class Office(NamedTuple):
    """What the verbs need: the broker, and what it stands on."""

    broker: PrivacyBroker
    checked: CheckedDefinitions
    secret: bytes
    log: AuditLog
    database: Database
    people: Pseudonyms
    marks: SubjectMarks


@contextmanager
def open_office(user: str, password_file: Path | None) -> Iterator[Office]:
    """Open the office for a user who has proved who they are."""
    with open_store() as office:
        if not authenticate(configuration(), user, password_file):
            raise office.broker.deny(user, "wrong user name or password")
        yield office


@contextmanager
def open_store() -> Iterator[Office]:
    """Open the office for a worker, which asks for nobody."""
    from penstock.rights.broker import PrivacyBroker
    from penstock.store.consent import ConsentBook
    from penstock.store.rights.requests import RequestBook
    from penstock.store.rights.tables import Sealer

    with open_audited() as it:
        consent = ConsentBook.open(it.database, it.config.consent.key)
        secret = it.config.consent.key.read()
        book = RequestBook(it.database, consent, Sealer(secret))
        broker = PrivacyBroker(book, it.log, it.people, it.definitions, it.epoch)
        yield Office(broker, it.checked, secret, it.log, it.database, it.people, consent.marks)


RECEIPT_LIMIT = 64 * 1024


@click.command("report")
@click.option(
    "--days", type=click.IntRange(1, 36_500), help="Only requests of this many days; default: all."
)
@asking
@json_option
def report(days: int | None, user: str, password_file: Path | None, as_json: bool) -> None:
    """Show how many requests each service honoured in time, by control and service.

    In time means before the first deadline, whatever deadlines came later.
    """
    from penstock.clock import utc_now

    with open_office(user, password_file) as office:
        office.broker.require_administration(user)
        since = utc_now() - timedelta(days=days) if days else None
        found = office.broker.book.compliance.figures(since)
    rows = [
        {
            "control": it.control,
            "service": it.subscriber,
            "total": it.total,
            "in_time": it.in_time,
            "late": it.late,
            "open": it.open,
            "overdue": it.overdue,
            "failed": it.failed,
            "share_in_time": None if it.share is None else round(it.share, 4),
        }
        for it in found
    ]

    def render(target: Console) -> None:
        if not rows:
            target.print("no requests yet")
            return
        shown = table(
            "control", "service", "total", "in time", "late", "open", "overdue", "failed", "share"
        )
        for it in found:
            share = "" if it.share is None else f"{it.share:.1%}"
            bad = "red" if it.overdue or it.failed else ""
            shown.add_row(
                it.control, it.subscriber, *map(str, (it.total, it.in_time, it.late, it.open)),
                Text(str(it.overdue), bad), Text(str(it.failed), bad), share,
            )  # fmt: skip
        target.print(shown)

    show(as_json, rows, render)


@click.command("receipt")
@click.argument("request")
@click.argument("subject")
@asking
def receipt(request: str, subject: str, user: str, password_file: Path | None) -> None:
    """Print the signed receipt of REQUEST, a choice of SUBJECT, as JSON.

    USER acts for the publisher that submitted the request.
    """
    from penstock.rights.accountability import make_receipt

    with open_office(user, password_file) as office:
        row = office.broker.find_own(user, request, subject)
        definitions = office.checked
        then = definitions.meaning(definitions.definitions.snapshot_at(row.epoch))
        print_json(make_receipt(row, subject, then, office.log.signer))


@click.command("verify-receipt")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--public-keys",
    "keys_file",
    type=click.Path(path_type=Path),
    help="The public keys to trust; default: those next to the signing key of this installation.",
)
@click.pass_context
def verify_receipt(ctx: click.Context, file: Path, keys_file: Path | None) -> None:
    """Verify the signature of the receipt in FILE; exit with 1 if it is not valid."""
    from penstock.config.secrets import SecretFile
    from penstock.json_text import read_object
    from penstock.rights.accountability import verify_receipt as is_genuine
    from penstock.store.audit.signatures import PublicKeys, public_path

    key = configuration().audit.signing_key
    if keys_file is None and not isinstance(key, SecretFile):
        raise UsageError(
            "the signing key is not a file, so that no public keys are next to it",
            fix="pass --public-keys with what `penstock audit keys` printed",
        )
    keys = PublicKeys.load(keys_file or public_path(key.path))
    try:
        with file.open("rb") as opened:
            content = opened.read(RECEIPT_LIMIT)
    except OSError as error:
        raise UsageError(
            f"the receipt {quote(file)} cannot be read: {error.strerror}", fix="name its file"
        ) from None
    found = read_object(content)
    genuine = found is not None and is_genuine(found, keys)
    print("the receipt is genuine" if genuine else "the receipt is not genuine")
    if not genuine:
        ctx.exit(1)


@click.command("processing-record")
@click.option(
    "--format",
    "form",
    type=click.Choice(["markdown", "json", "csv"]),
    default="markdown",
    show_default=True,
)
def processing_record(form: str) -> None:
    """Print the record of processing activities, from the definitions.

    For each purpose: the data, the views and who may read them, what people can choose, and the
    services that are told. What nobody declared is marked as such.
    """
    from penstock.rights.accountability import as_csv, as_data, as_markdown, list_activities

    with open_definitions() as checked:
        snapshot, definitions = checked.current()
    found = list_activities(definitions)
    if form == "json":
        print_json({"epoch": snapshot.epoch, "activities": as_data(found)})
    else:
        print(as_csv(found) if form == "csv" else as_markdown(found, snapshot.epoch), end="")
