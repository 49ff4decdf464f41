"""`penstock requests`: what people chose and asked for, and whether every service did its part.

Rules that hold here:
- Whoever hands in, answers or looks proves who they are with the password that the gateway knows
  them by. Publishers and services act for themselves; to look at requests takes the right to
  administer.
- People are named on the way in only: nothing that is shown says whom a request is about.
"""

from __future__ import annotations

import signal
import threading
import uuid
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import json_option, show, table
from penstock.cli.privacy.consent import asking
from penstock.cli.privacy.reports import (
    as_data,
    open_office,
    open_store,
    print_evidence,
    receipt,
    report,
    verify_receipt,
)
from penstock.cli.session import configuration
from penstock.errors import UsageError, quote

_COLOURS = {"COMPLETED": "green", "FAILED": "red", "SENDFAILED": "red", "SOMEFAILED": "red"}


@click.group("requests")
def command() -> None:
    """Accept privacy requests, notify every service concerned, and follow up.

    A publisher submits what people choose or ask for; `control`, `control-publisher` and
    `control-subscriber` definitions say who may do so, and which services are notified.
    `requests work` notifies them.
    """


@command.command()
@click.argument("publisher")
@click.argument("control")
@click.argument("action")
@click.argument("subject")
@click.option("--category", "categories", multiple=True, help="Only this category; repeatable.")
@click.option("--key", help="An idempotency key: the same key is the same request.")
@asking
@json_option
def submit(  # noqa: PLR0917 - a verb's options
    publisher: str,
    control: str,
    action: str,
    subject: str,
    categories: tuple[str, ...],
    key: str | None,
    user: str,
    password_file: Path | None,
    as_json: bool,
) -> None:
    """Submit ACTION (opt-in, opt-out, delete, export) on CONTROL for SUBJECT, as PUBLISHER.

    An opt-out is in force when the command ends: its purposes are prohibited for the person.
    """
    from penstock.rights.broker import Submission

    with open_office(user, password_file) as office:
        given = Submission(publisher, key or uuid.uuid4().hex, control, action, subject, categories)
        (made,) = office.broker.submit(user, [given])
    data = {"request": made.id, "status": made.status.value, "repeated": made.repeated}

    def render(target: Console) -> None:
        again = " already, under the same key" if made.repeated else ""
        target.print(Text.assemble("accepted", again, ": ", (made.id, "bold"), f" {made.status}"))

    show(as_json, data, render)


@command.command()
@click.argument("publisher")
@click.argument("subject")
@click.option("--email", help="The person's e-mail address.")
@click.option("--mobile", help="The person's mobile number, such as +4791234567.")
@asking
def contact(
    publisher: str,
    subject: str,
    email: str | None,
    mobile: str | None,
    user: str,
    password_file: Path | None,
) -> None:
    """Store, encrypted, where SUBJECT is told of completed requests, as PUBLISHER.

    Without --email and --mobile, the contact is deleted.
    """
    found = {"email": email, "mobile": mobile}
    with open_office(user, password_file) as office:
        given = {name: address for name, address in found.items() if address}
        office.broker.set_contact(user, publisher, subject, given)
    print("kept" if given else "forgotten")


@command.command()
@click.argument("request")
@click.argument("subscriber")
@click.argument("what", type=click.Choice(["acknowledge", "complete"]))
@asking
@json_option
def answer(
    request: str, subscriber: str, what: str, user: str, password_file: Path | None, as_json: bool
) -> None:
    """Acknowledge or complete REQUEST on behalf of the service SUBSCRIBER."""
    with open_office(user, password_file) as office:
        said = office.broker.complete if what == "complete" else office.broker.acknowledge
        status = said(user, request, subscriber)
    data = {"request": request, "subscriber": subscriber, "status": status.value}
    show(as_json, data, lambda target: target.print(f"{subscriber}: {status}"))


@command.command("list")
@click.option(
    "--status",
    type=click.Choice(["INIT", "INPROGRESS", "COMPLETED", "SOMEFAILED"]),
    help="Only requests with this status.",
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@asking
@json_option
def list_requests(
    status: str | None, limit: int, user: str, password_file: Path | None, as_json: bool
) -> None:
    """List the newest requests, and how many services have completed them."""
    from penstock.store.rights.tables import RequestStatus

    with open_office(user, password_file) as office:
        office.broker.require_administration(user)
        found = office.broker.book.newest(
            status=RequestStatus(status) if status else None, limit=limit
        )
    rows = [
        {
            "request": row.id,
            "at": row.at.isoformat(timespec="seconds"),
            "publisher": row.publisher,
            "control": row.control,
            "action": row.action,
            "status": row.status,
            "services": services,
            "done": done,
        }
        for row, services, done in found
    ]

    def render(target: Console) -> None:
        if not rows:
            target.print("no requests yet" if status is None else "no requests that fit")
            return
        shown = table("request", "at", "publisher", "control", "action", "status", "done")
        for row in rows:
            shown.add_row(
                row["request"], row["at"], row["publisher"], row["control"], row["action"],
                _coloured(row["status"]), f"{row['done']} of {row['services']}",
            )  # fmt: skip
        target.print(shown)

    show(as_json, rows, render)


@command.command("show")
@click.argument("request")
@asking
@json_option
def show_request(request: str, user: str, password_file: Path | None, as_json: bool) -> None:
    """Show the progress of each service with REQUEST, and the evidence of what was erased."""
    from penstock.store.rights.erasures import ErasureBook

    with open_office(user, password_file) as office:
        office.broker.require_administration(user)
        found = office.broker.book.show(request)
        told = office.broker.book.outbox.of(request)
        proved = ErasureBook(office.database).evidence(request)
    if found is None:
        raise UsageError(f"there is no request {quote(request)}", fix="`penstock requests list`")
    row, progress = found
    services = [
        {
            "subscriber": it.subscriber,
            "status": it.status,
            "deadline": it.deadline.isoformat(timespec="seconds") if it.deadline else None,
            "next": it.next_at.isoformat(timespec="seconds") if it.next_at else None,
            "told_again": it.rounds,
            "trouble": it.trouble,
        }
        for it in progress
    ]
    notices = [
        {
            "kind": it.kind,
            "channel": it.channel,
            "subscriber": it.subscriber or None,
            "status": "sent" if it.sent else "waiting" if it.next_at else "dead",
            "trouble": it.trouble,
        }
        for it in told
    ]
    data = {"request": row.id, "control": row.control, "action": row.action, "status": row.status,
            "publisher": row.publisher, "epoch": row.epoch, "services": services,
            "notices": notices, "evidence": [as_data(it) for it in proved]}  # fmt: skip

    def render(target: Console) -> None:
        target.print(
            Text.assemble(
                f"{row.action} of {row.control} by {row.publisher}: ", _coloured(row.status)
            )
        )
        if not services:
            target.print("no service is concerned")
            return
        shown = table("service", "status", "deadline", "retries", "trouble")
        for it in services:
            shown.add_row(
                str(it["subscriber"]), _coloured(str(it["status"])), str(it["deadline"] or ""),
                str(it["told_again"]), str(it["trouble"]),
            )  # fmt: skip
        target.print(shown)
        for it in notices:
            about = f" of {it['subscriber']}" if it["subscriber"] else ""
            trouble = f" ({it['trouble']})" if it["trouble"] else ""
            target.print(f"{it['kind']}{about} by {it['channel']}: {it['status']}{trouble}")
        for proof in proved:
            print_evidence(target, proof)

    show(as_json, data, render)


@command.command()
@click.argument("request", required=False)
@asking
@json_option
def redrive(request: str | None, user: str, password_file: Path | None, as_json: bool) -> None:
    """Notify the services that failed REQUEST again; without REQUEST, all that failed any."""
    with open_office(user, password_file) as office:
        office.broker.require_administration(user)
        again = office.broker.redrive(user, request)
    noun = "service" if again == 1 else "services"
    show(
        as_json,
        {"redriven": again},
        lambda target: target.print(f"{again} {noun} will be notified again"),
    )


@command.command()
@click.argument("request")
@click.argument("subject")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@asking
def export(request: str, subject: str, file: Path, user: str, password_file: Path | None) -> None:
    """Write the package of REQUEST, an export about SUBJECT, to FILE; it is handed over once.

    For the front end that submitted the request. FILE is readable by its owner only.
    """
    from penstock.rights.export import hand_over

    config = configuration()
    with open_office(user, password_file) as office:
        office.broker.find_own(user, request, subject)
        record = partial(office.broker.note_handed_over, user, request, subject)
        hand_over(config, request, file, record)
    print(f"the package is in {file}")


@command.command()
@click.argument("subscriber")
@asking
def key(subscriber: str, user: str, password_file: Path | None) -> None:
    """Print the key that calls to SUBSCRIBER are signed with, for those who act for it."""
    from penstock.rights.dispatch.message import derive_key

    with open_office(user, password_file) as office:
        office.broker.require_subscriber(user, subscriber)
        print(derive_key(office.secret, subscriber).hex())


@command.command()
@click.option("--once", is_flag=True, help="Exit when nothing is due.")
def work(once: bool) -> None:
    """Notify services of what is due, and follow up what is overdue, until Ctrl-C or SIGTERM.

    Any number of workers may run, on any number of hosts. `penstock up` runs this as the part
    `rights`. It answers /metrics, /healthz and /readyz at `rights.monitor_port`.
    """
    from penstock.model.kinds.controls import ERASURE, EXPORT
    from penstock.rights.dispatch import Channels, open_caller
    from penstock.rights.erasure.service import ErasureService
    from penstock.rights.export import ExportService
    from penstock.rights.notices import NoticeSender
    from penstock.rights.worker import RightsWorker, lease_seconds, run_worker

    stop = threading.Event()
    for number in () if once else (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    config = configuration()
    with open_store() as office:
        channels = Channels.open(config, office.secret)
        sender = NoticeSender.open(config, office.secret, open_caller(config))
        worker = RightsWorker(
            office.broker.book,
            lambda: office.checked.current()[1],
            channels,
            sender,
            lease=lease_seconds(config.rights.timeout),
            built_in={
                ERASURE: ErasureService(config, *office[3:]),
                EXPORT: ExportService(config, *office[3:], office.broker.book.profiles),
            },
        )
        try:
            run_worker(config, office.broker.book, worker, stop, once=once)
        finally:
            channels.close()


def _coloured(status: str) -> Text:
    return Text(status, _COLOURS.get(status, "yellow"))


for _verb in (report, receipt, verify_receipt):
    command.add_command(_verb)
