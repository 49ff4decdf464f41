"""`penstock explain`: who can see a topic, and why."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.access.decision_context import (
    Held,
    KnownSituations,
    choose_subject,
    data_subject_options,
    find_topic,
    kafka_options,
    know_choices,
    know_situations,
    open_questions,
    refuse_others,
    render_consent,
    show_readers,
    situation_option,
    tell_consent,
)
from penstock.cli.output import json_option, show, table
from penstock.cli.session import configuration, read_home

if TYPE_CHECKING:
    from penstock.model.purposes import PurposeSet
    from penstock.policy.access.emergencies import Emergency
    from penstock.policy.access.requests import ObjectLayout
    from penstock.policy.authorizer import Authorizer
    from penstock.policy.interaction import Rule

MOST_NAMES = 12


@click.command("explain")
@click.argument("topic", required=False)
@kafka_options
@situation_option
@data_subject_options
@json_option
def command(
    *,
    topic: str | None,
    view: str | None,
    kafka_topic: str | None,
    situation: tuple[str, ...],
    data_subject: str | None,
    asker: str | None,
    password_file: Path | None,
    as_json: bool,
) -> None:
    """Say which rules apply to TOPIC: who can see it, for which purposes, and why.

    For emergency policies it shows which of the situations that they need hold now, for a person
    which purposes are prohibited for messages about them, and for a view or a topic at Kafka
    (--view, --kafka-topic) which roles and users may read and write it.
    """
    from penstock.definitions.authorizer import authorizer_of
    from penstock.model.topics import check_topic
    from penstock.policy.access.principals import ACTIONS

    choose_subject(topic, view, kafka_topic)
    if topic is None:
        refuse_others({"--situation": situation, "--data-subject": data_subject})
        _explain_kafka(view, kafka_topic, as_json=as_json)
        return
    check_topic(topic)
    choices = know_choices(data_subject, asker, password_file)
    with open_questions() as (checked, database):
        snapshot, meaning = checked.current()
        known = know_situations(situation, meaning, database)
    config = configuration()
    authorizer = authorizer_of(config.gateway, meaning, home=read_home(config))
    purposes, access = authorizer.purposes, authorizer.access
    effective = purposes.effective(topic)
    reservations = sorted(purposes.affected(topic))
    rules = [(action, it) for action in ACTIONS for it in access.considered(action, topic)]
    place = access.layout(topic)
    policies = [
        {
            "policy": rule.name.partition(" ")[2],
            "action": action,
            "subject": rule.meant,
            "when": rule.condition.text,
            "emergency": str(rule.emergency) if rule.emergency else None,
            "applies": [it.as_dict() for it in _find_applying(rule.emergency, known, topic, place)],
        }
        for action, rule in rules
    ]
    preferences = [
        {
            "preference": it.name.partition(" ")[2],
            "publisher": it.subject,
            "when": it.condition.text,
            "readers": sorted(it.readers),
        }
        for it in access.preferences(topic)
    ]
    about = {name: f"the topic's level {value}" for name, value in place.levels.items()}
    about |= {name: f"the payload's {'.'.join(path)}" for name, path in place.paths}
    data: dict[str, Any] = {
        "topic": topic,
        "epoch": snapshot.epoch,
        "reserved": effective is not None,
        "allow": sorted(effective.aip) if effective else [],
        "prohibit": sorted(effective.pip) if effective else [],
        "open_without_reservation": purposes.settings.allow_without_reservation,
        "claims_need_right": purposes.settings.claims_need_right,
        "claims": _list_claims(authorizer, effective),
        "reservations": [{"filter": name, "purposes": str(held)} for name, held in reservations],
        "object": about,
        "policies_required": access.settings.required,
        "policies": policies,
        "preferences": preferences,
        "interaction": [
            {
                "rule": it.name,
                "at": it.at,
                "subject": it.subject,
                "exempt": [who if known is None else known.text for who, known in it.exempt],
                "when": it.condition.text,
                "effect": _tell_effect(it),
            }
            for action in ACTIONS
            for it in authorizer.interaction.rules(action, topic)
        ],
        "foreign_types": _list_foreign(authorizer, topic),
        "consent": {
            **tell_consent(choices, authorizer.consent.subjects, topic),
            "prohibited": choices.prohibited,
        },
        "situations": {"source": known.source, "trouble": known.trouble or None},
    }
    show(as_json, data, lambda console: _render(console, data))


def _explain_kafka(view: str | None, kafka_topic: str | None, *, as_json: bool) -> None:
    from penstock.kafka import WantedAccess

    with open_questions() as (checked, _):
        snapshot, meaning = checked.current()
    access = WantedAccess(meaning)
    show_readers(access, find_topic(access, view, kafka_topic), snapshot.epoch, as_json=as_json)


def _tell_effect(rule: Rule) -> str:
    """Say what a restriction or a transformation does where its condition holds."""
    if not rule.transforms:
        return "denies" if rule.forbids else "permits"
    return f"{'converts' if rule.converts else 'changes'}, order {rule.order}"


def _list_claims(authorizer: Authorizer, effective: PurposeSet | None) -> list[dict[str, str]]:
    """Say who may claim the purposes of a topic, where a right is asked for."""
    if effective is None or not authorizer.purposes.settings.claims_need_right:
        return []
    return [
        {"rule": it.rule, "subject": it.subject, "purpose": it.purpose}
        for it in authorizer.claims.covering(effective.aip)
    ]


def _find_applying(
    emergency: Emergency | None, known: KnownSituations, topic: str, place: ObjectLayout
) -> list[Held]:
    """Return the situations in which an emergency policy applies to messages of the topic.

    Where the topic does not tell whose situation counts, they are those of everybody.
    """
    from penstock.store.detection.tables import as_stored

    if emergency is None:
        return []
    subject = None
    if emergency.about is not None:
        outcome = emergency.about.evaluate(s={}, o=place.levels, e={}, t={"topic": topic})
        subject = None if outcome.missing else as_stored(outcome.value)
    scenarios = {it.name: it for it in emergency.scenarios}
    return [
        it
        for it in known.held
        if it.scenario in scenarios
        and subject in {None, it.subject}
        and emergency.may_cover(scenarios[it.scenario], it.subject, it.situation)
    ]


def _tell_applying(held: list[dict[str, Any]]) -> str:
    shown = [f"{it['situation']} of {it['subject']}" for it in held[:MOST_NAMES]]
    if len(held) > MOST_NAMES:
        shown.append(f"{len(held) - MOST_NAMES} more")
    return ", ".join(shown)


def _render(console: Console, data: dict[str, Any]) -> None:
    console.print(Text.assemble("topic ", (data["topic"], "bold")))
    console.print(Text(_say_purposes(data)))
    if data["reservations"]:
        shown = table("reservation", "purposes")
        for item in data["reservations"]:
            shown.add_row(Text(item["filter"]), Text(item["purposes"]))
        console.print(shown)
    _render_claims(console, data)
    _render_choices(console, data["consent"])
    for name, found in data["object"].items():
        console.print(Text(f"o.{name} is {found}"))
    if not data["policies_required"]:
        console.print("policies are not required: nobody is refused for who they are")
    elif not data["policies"]:
        console.print("policies are required and none is about this topic: nobody may use it")
    else:
        when = "now" if data["situations"]["source"] == "live" else "as supposed"
        shown = table("policy", "grants", "to", "when", "in emergencies", when)
        for item in data["policies"]:
            told = _tell_applying(item["applies"])
            if item["emergency"] and not told:
                told = "unknown" if data["situations"]["trouble"] else "none"
            texts = (item["subject"], item["when"], item["emergency"] or "", told)
            shown.add_row(item["policy"], item["action"], *map(Text, texts))
        console.print(shown)
    if data["preferences"]:
        shown = table("preference", "on what is published for", "readers need")
        for item in data["preferences"]:
            shown.add_row(item["preference"], Text(item["publisher"]), Text(item["when"]))
        console.print(shown)
    _render_interaction(console, data["interaction"])
    _render_foreign(console, data["foreign_types"])
    if data["situations"]["trouble"]:
        trouble = f"the current situations are unknown: {data['situations']['trouble']}"
        console.print(Text(trouble, "yellow"))
    console.print(f"under epoch {data['epoch']}", style="dim")


def _render_interaction(console: Console, rules: list[dict[str, Any]]) -> None:
    if not rules:
        return
    shown = table("interaction rule", "at", "for", "but not for", "when", "effect")
    for item in rules:
        texts = (item["at"], item["subject"], ", ".join(item["exempt"]), item["when"])
        shown.add_row(item["rule"], *map(Text, texts), item["effect"])
    console.print(shown)


def _list_foreign(authorizer: Authorizer, topic: str) -> list[dict[str, Any]]:
    """Return the types of other domains on a topic, and what their owners let our users do."""
    now = datetime.now(UTC).timestamp()
    book = authorizer.capabilities
    return [
        {
            "stream": event_type.name,
            "label": foreign.label,
            "owner": foreign.issuer,
            "capabilities": [
                {
                    "capability": it.name,
                    "user": it.user,
                    "grants": [str(grant) for grant in it.grants],
                    "reason": it.object_to(now),
                }
                for it in book.about(foreign)
            ],
        }
        for event_type, foreign in book.types_of(topic)
    ]


def _render_foreign(console: Console, types: list[dict[str, Any]]) -> None:
    for it in types:
        owner = f"{it['owner'][:16]}…"
        said = f"{it['label']} is the type of another domain ({owner}): its owner has to let them"
        console.print(Text(said))
        shown = table("capability", "user", "grants", "holds")
        for held in it["capabilities"]:
            texts = (held["user"], "; ".join(held["grants"]), held["reason"] or "yes")
            shown.add_row(held["capability"], *map(Text, texts))
        console.print(shown if it["capabilities"] else "nobody has a capability for it")


def _render_choices(console: Console, consent: dict[str, Any]) -> None:
    for place in consent["found_in"]:
        console.print(Text(f"whom its messages are about is told by {place}"))
    if consent["prohibited"]:
        told = ", ".join(consent["prohibited"])
        console.print(Text(f"prohibited for this person: {told}, what is below and above", "red"))
    render_consent(console, consent)


def _render_claims(console: Console, data: dict[str, Any]) -> None:
    if data["claims"]:
        shown = table("who may claim", "purpose and what is below", "by")
        for item in data["claims"]:
            shown.add_row(Text(item["subject"]), Text(item["purpose"]), Text(item["rule"]))
        console.print(shown)
    elif data["claims_need_right"] and data["allow"]:
        console.print("nobody has the right to claim these purposes")


def _say_purposes(data: dict[str, Any]) -> str:
    if not data["reserved"]:
        if data["open_without_reservation"]:
            return "not reserved: subscriptions may read it with any purpose they have, or none"
        return "not reserved, and unreserved topics are closed: nobody may read it"
    if not data["allow"]:
        return "reserved for nobody"
    text = f"reserved: may be read for {', '.join(data['allow'])} and what is below"
    if data["prohibit"]:
        text += f", never for {', '.join(data['prohibit'])} or what is below"
    return text
