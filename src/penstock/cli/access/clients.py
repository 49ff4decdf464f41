"""`penstock clients list|show|kick`: who is connected to the gateways of this store, and with what.

Rules that hold here:
- All gateways of the store are asked, and it is said where one did not answer.
- Who asks works with the store itself, as for `apply`. To end a connection is in the audit log.
- What clients chose (identifiers, filters) is shown without what would move the cursor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import console, json_option, show, table
from penstock.cli.session import actor, open_audited, open_database, refuse_missing_store
from penstock.cli.session import configuration as read_configuration
from penstock.errors import PenstockError, UnavailableError, quote

if TYPE_CHECKING:
    from penstock.store.enforcement_points import ClientAnswers, Verb

WAIT_SECONDS = 5.0


class NoClientError(PenstockError):
    """Nobody is connected under that identifier."""

    exit_code = 1


@click.group("clients")
def command() -> None:
    """Show and end connections of MQTT clients, at all gateways of this store."""


@command.command("list")
@json_option
def list_clients(as_json: bool) -> None:
    """List the clients that are connected now."""
    answers = _ask("list", "")
    found = _clients(answers)
    count = sum(it.get("count", 0) for it in answers.bodies)

    def render(target: Console) -> None:
        made = table("client", "user", "mqtt", "subscriptions", "waiting", "gateway")
        for it in found:
            made.add_row(
                _visible(it["client"]),
                _visible(it["user"] or "(anonymous)"),
                it["mqtt"],
                str(it["subscriptions"]),
                f"{it['waiting_bytes']:,} B",
                it["gateway"],
            )
        if found:
            target.print(made)
        shown = f"{count} connected" if len(found) == count else f"{len(found)} of {count} shown"
        target.print(shown, style="dim")

    _warn(answers)
    show(as_json, {"count": count, "clients": found, **_gateways(answers)}, render)


@command.command("show")
@click.argument("client")
@json_option
def show_client(client: str, as_json: bool) -> None:
    """Show a client: its subscriptions, and what it was denied lately and why."""
    answers = _ask("show", client)
    _warn(answers)
    found = _find(answers, client)
    show(as_json, found, lambda target: _render(target, found))


@command.command("kick")
@click.argument("client")
@json_option
def kick(client: str, as_json: bool) -> None:
    """End the connection of a client; it may come back.

    To keep a user out, apply a `user` definition with `blocked: true`.
    """
    from penstock.store.audit.entry import Entry, Outcome

    with open_audited() as store:
        from penstock.store.enforcement_points import ClientRequests

        requests = ClientRequests(store.database)
        found = _find(requests.ask("show", client, WAIT_SECONDS), client)
        # On record before it is done: an end that nobody recorded must not happen.
        entry = Entry.make(
            "connection.kicked",
            Outcome.DONE,
            actor=store.people.person(actor()),
            subject=store.people.client(client),
            epoch=store.epoch,
        )
        store.log.append([entry])
        answers = requests.ask("kick", client, WAIT_SECONDS)
    _warn(answers)
    told = {"client": client, "ended": True, "gateway": found["gateway"]}
    show(as_json, told, lambda target: target.print(f"ended the connection of {quote(client)}"))


def _ask(verb: Verb, client: str) -> ClientAnswers:
    from penstock.store.enforcement_points import ClientRequests

    config = read_configuration()
    refuse_missing_store(config)
    with open_database(config) as database:
        return ClientRequests(database).ask(verb, client, WAIT_SECONDS)


def _clients(answers: ClientAnswers) -> list[dict[str, Any]]:
    found = [
        {**it, "gateway": body["gateway"]} for body in answers.bodies for it in body["clients"]
    ]
    return sorted(found, key=lambda it: str(it["client"]))


def _gateways(answers: ClientAnswers) -> dict[str, int]:
    return {"gateways": answers.expected, "answered": len(answers.bodies)}


def _find(answers: ClientAnswers, client: str) -> dict[str, Any]:
    found = _clients(answers)
    if not answers.bodies:
        raise UnavailableError("no gateway answered", fix="see `penstock status`")
    if not found:
        raise NoClientError(
            f"no client {quote(client)} is connected", fix="`penstock clients list` shows who is"
        )
    return found[0]


def _warn(answers: ClientAnswers) -> None:
    """Say that gateways did not answer: what they know is missing."""
    missing = answers.expected - len(answers.bodies)
    if missing or not answers.bodies:
        text = f"{missing} of {answers.expected} gateways did not answer"
        console(errors=True).print(text if missing else "no gateway runs", style="yellow")


def _render(target: Console, found: dict[str, Any]) -> None:
    user = found["user"] or "(anonymous)"
    kept = "kept when it leaves" if found["kept"] else "ends with its connection"
    for name, value in (
        ("client", found["client"]),
        ("user", user),
        ("address", found["address"]),
        ("MQTT", found["mqtt"]),
        ("gateway", found["gateway"]),
        ("session", kept),
        ("waiting", f"{found['waiting_bytes']:,} bytes to it"),
        ("unacknowledged", f"{found['unacknowledged']} messages of it"),
    ):
        target.print(Text.assemble((f"{name}: ", "bold"), _visible(str(value))))
    made = table("subscribed to", "for", "")
    for it in found["filters"]:
        notes = ["paused: the rules do not allow it now"] if it["paused"] else []
        notes += ["certain events only"] if it["filtered"] else []
        made.add_row(_visible(it["filter"]), _visible(it["purpose"] or "-"), "; ".join(notes))
    target.print(made if found["filters"] else "subscribed to nothing")
    denied = table("denied", "why", "by")
    for it in found["denied"]:
        denied.add_row(it["what"], it["reason"], _visible(it["rule"] or "-"))
    target.print(denied if found["denied"] else "nothing was denied lately")


def _visible(text: str) -> str:
    return "".join(it if it.isprintable() else "�" for it in text)
