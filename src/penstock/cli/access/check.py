"""`penstock check`: whether a subject may read or write a topic, and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.access.decision_context import (
    KnownSituations,
    choose_subject,
    data_subject_options,
    explain_access,
    find_topic,
    kafka_options,
    know_choices,
    know_situations,
    open_questions,
    refuse_others,
    render_consent,
    render_seen,
    situation_option,
    tell_consent,
    tell_seen,
)
from penstock.cli.output import json_option, show, table
from penstock.cli.session import configuration, read_home
from penstock.errors import UsageError, quote
from penstock.json_text import read_object

if TYPE_CHECKING:
    from penstock.definitions import DefinitionSet
    from penstock.definitions.authorizer import RoleContext
    from penstock.policy.access.emergencies import RecordedSituations
    from penstock.policy.decision import Explanation
    from penstock.policy.purposes.rights import DeclaredPurposes
    from penstock.store.definitions.checked import CheckedDefinitions
    from penstock.store.definitions.documents import Snapshot


def parse_values(given: tuple[str, ...], option: str) -> dict[str, Any]:
    """Read `name=value` options; the value is JSON, or text where it is not JSON."""
    values: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(
                f"{option} {quote(text)} names no value", fix=f"write {option} NAME=VALUE"
            )
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values


@click.command("check")
@click.option("--topic", help="The MQTT topic of the message.")
@kafka_options
@click.option("--purpose", help="The access purpose of the subscription.")
@click.option("--subject", "user", metavar="USER", help="The user who asks.")
@click.option("--client", metavar="ID", help="The MQTT client identifier.")
@click.option("--action", type=click.Choice(["read", "write"]), default="read", show_default=True)
@click.option(
    "--attribute", "-a", multiple=True, metavar="NAME=JSON", help="An attribute of the subject, s."
)
@click.option(
    "--object",
    "-o",
    "about",
    multiple=True,
    metavar="NAME=JSON",
    help="An attribute of the object, o.",
)
@click.option(
    "--environment",
    "-e",
    multiple=True,
    metavar="NAME=JSON",
    help="An attribute of the environment, e.",
)
@click.option("--publisher", metavar="USER", help="The user who published what is read.")
@click.option(
    "--role",
    "roles",
    multiple=True,
    metavar="NAME",
    help="Activate only this role in the session; default: all that can be activated.",
)
@situation_option
@data_subject_options
@click.option("--payload", default="{}", metavar="JSON", help="The payload of the message.")
@click.option("--epoch", type=int, help="Ask under the definitions of an earlier epoch.")
@json_option
def command(
    *,
    topic: str | None,
    view: str | None,
    kafka_topic: str | None,
    purpose: str | None,
    user: str | None,
    client: str | None,
    action: str,
    attribute: tuple[str, ...],
    about: tuple[str, ...],
    environment: tuple[str, ...],
    publisher: str | None,
    roles: tuple[str, ...],
    situation: tuple[str, ...],
    data_subject: str | None,
    asker: str | None,
    password_file: Path | None,
    payload: str,
    epoch: int | None,
    as_json: bool,
) -> int:
    """Ask whether a subject may read or write a topic or a view, and why.

    The subject may be real or hypothetical: attributes given with -a and -o override those that
    are defined for the subject and the object. Emergencies are those that hold now, as the gateway
    that detects them knows; --situation supposes others. Opt-outs count if --data-subject says
    whom the message is about. At Kafka (--view, --kafka-topic) the roles of the user decide. The
    exit code is 0 if access is allowed, 1 if it is denied.
    """
    choose_subject(topic, view, kafka_topic)
    if topic is None:
        given = {
            "--purpose": purpose, "--client": client, "--attribute": attribute, "--object": about,
            "--environment": environment, "--publisher": publisher, "--role": roles,
            "--situation": situation, "--data-subject": data_subject,
        }  # fmt: skip
        refuse_others(given)
        return _check_kafka(view, kafka_topic, user, action, epoch, as_json=as_json)
    from penstock.definitions.authorizer import authorizer_of
    from penstock.policy.access.emergencies import RecordedSituations
    from penstock.policy.access.requests import make_request

    request = make_request(
        topic,
        action="write" if action == "write" else "read",
        purpose=purpose,
        user=user,
        client=client,
        attributes=parse_values(attribute, "--attribute"),
        about=parse_values(about, "--object"),
        environment=_environment() | parse_values(environment, "--environment"),
        payload=_parse_payload(payload),
        publisher=publisher,
        data_subject=data_subject,
    )
    choices = know_choices(data_subject, asker, password_file)
    with open_questions() as (checked, database):
        snapshot, meaning = _read_definitions(checked, epoch)
        known = know_situations(situation, meaning, database)
    chosen = _choose(request.environment, roles)
    config = configuration()
    authorizer = authorizer_of(
        config.gateway, meaning, choices.opt_outs, chosen, home=read_home(config)
    )
    consent = tell_consent(choices, authorizer.consent.subjects, topic)
    _check_declared(purpose, authorizer.declared)
    witness = RecordedSituations(known.situations)
    decision = authorizer.explain(request._replace(situations=witness))
    data = {
        **decision.as_dict(),
        "epoch": snapshot.epoch,
        "situations": tell_seen(known, witness),
        "consent": consent,
    }

    def render(console: Console) -> None:
        _render(console, decision, snapshot.epoch, known, witness)
        render_consent(console, consent)

    show(as_json, data, render)
    return 0 if decision.allowed else 1


def _read_definitions(
    checked: CheckedDefinitions, epoch: int | None
) -> tuple[Snapshot, DefinitionSet]:
    if epoch is None:
        return checked.current()
    snapshot = checked.definitions.snapshot_at(epoch)
    return snapshot, checked.meaning(snapshot)


def _check_kafka(
    view: str | None,
    kafka_topic: str | None,
    user: str | None,
    action: str,
    epoch: int | None,
    *,
    as_json: bool,
) -> int:
    from penstock.kafka import WantedAccess

    if user is None:
        raise UsageError("no subject is named", fix="add --subject USER")
    with open_questions() as (checked, database):
        snapshot, meaning = _read_definitions(checked, epoch)
        access = WantedAccess(meaning)
        asked = find_topic(access, view, kafka_topic)
        decision = explain_access(access, database, user, asked, action)
    data = {**decision.as_dict(), "kafka_topic": asked, "epoch": snapshot.epoch}
    show(as_json, data, lambda console: _render(console, decision, snapshot.epoch))
    return 0 if decision.allowed else 1


def _render(
    console: Console,
    decision: Explanation,
    epoch: int,
    known: KnownSituations | None = None,
    witness: RecordedSituations | None = None,
) -> None:
    """Draw a decision: the outcome, the deciding rule, every rule and situation considered."""
    word = ("allowed", "bold green") if decision.allowed else ("denied", "bold red")
    console.print(Text.assemble(word, f" by {decision.rule}: {decision.reason}"))
    if known is not None and witness is not None:
        render_seen(console, known, witness)
    if decision.considered:
        shown = table("rule considered", "what it says")
        for item in decision.considered:
            shown.add_row(Text(item.rule), Text(item.effect))
        console.print(shown)
    if decision.more:
        console.print("… and further rules")
    console.print(f"decided under epoch {epoch}", style="dim")


def _environment() -> dict[str, Any]:
    """Return what the gateway of these settings would know of its environment."""
    place = configuration().gateway.place
    known: dict[str, Any] = {"time": datetime.now(UTC)}
    return known if place is None else {**known, "place": place}


def _choose(environment: Mapping[str, Any], roles: tuple[str, ...]) -> RoleContext:
    """Return the circumstances of a session: the time and place asked about, roles chosen."""
    from penstock.definitions.authorizer import RoleContext
    from penstock.lang.scalars import read_timestamp

    moment, place = environment.get("time"), environment.get("place")
    if isinstance(moment, str):
        moment = read_timestamp(moment)
    return RoleContext(
        int(moment.timestamp() * 1000) if isinstance(moment, datetime) else None,
        place if isinstance(place, str) else None,
        frozenset(roles) if roles else None,
    )


def _check_declared(purpose: str | None, declared: DeclaredPurposes) -> None:
    """Refuse a purpose that is not declared, once some are: it is a typing error."""
    if purpose is not None and not declared.admits(purpose):
        near = declared.nearest(purpose)
        raise UsageError(
            f"there is no purpose {quote(purpose)}",
            fix=f"did you mean {near!r}?" if near else "`penstock get purpose` lists them",
        )


def _parse_payload(text: str) -> Mapping[str, Any]:
    """Read a payload as the gateway does: what it would not look into is refused here."""
    payload = read_object(text.encode("utf-8", "surrogateescape"))
    if payload is None:
        raise UsageError(
            f"the payload {quote(text)} is not a JSON object, or a name occurs twice in it",
            fix="""write --payload '{"pulse": 80}'""",
        )
    return payload
