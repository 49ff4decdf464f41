"""`penstock explain`: who can see a topic, and why."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import json_option, show, table
from penstock.cli.session import open_definitions
from penstock.definitions.decisions import Decider
from penstock.model.kinds import PurposeSettings
from penstock.model.topics import check_topic
from penstock.policy.attributes import ACTIONS


@click.command("explain")
@click.argument("topic")
@json_option
def command(topic: str, as_json: bool) -> None:
    """Say which rules apply to TOPIC: who can see it, for which purposes, and why."""
    check_topic(topic)
    with open_definitions() as checked:
        snapshot, meaning = checked.current()
    decider = Decider(meaning)
    settings = meaning.get(PurposeSettings, "default") or PurposeSettings()
    effective = decider.reservations.effective(topic)
    reservations = sorted(decider.reservations.affected(topic))
    rules = [(action, it) for action in ACTIONS for it in decider.access.considered(action, topic)]
    policies = [
        {
            "policy": rule.name.partition(" ")[2],
            "action": action,
            "subject": rule.subject,
            "when": rule.condition.text,
            "emergency": str(rule.emergency) if rule.emergency else None,
        }
        for action, rule in rules
    ]
    preferences = [
        {
            "preference": it.name.partition(" ")[2],
            "publisher": it.subject,
            "when": it.condition.text,
        }
        for it in decider.access.preferences(topic)
    ]
    place = decider.access.place(topic)
    about = {name: f"the topic's level {value}" for name, value in place.levels.items()}
    about |= {name: f"the payload's {'.'.join(path)}" for name, path in place.paths}
    data: dict[str, Any] = {
        "topic": topic,
        "epoch": snapshot.epoch,
        "reserved": effective is not None,
        "allow": sorted(effective.aip) if effective else [],
        "prohibit": sorted(effective.pip) if effective else [],
        "open_without_reservation": settings.allow_without_reservation,
        "reservations": [{"filter": name, "purposes": str(held)} for name, held in reservations],
        "object": about,
        "policies_required": decider.policies_required,
        "policies": policies,
        "preferences": preferences,
    }
    show(as_json, data, lambda console: _render(console, data))


def _render(console: Console, data: dict[str, Any]) -> None:
    console.print(Text.assemble("topic ", (data["topic"], "bold")))
    console.print(Text(_say_purposes(data)))
    if data["reservations"]:
        shown = table("reservation", "purposes")
        for item in data["reservations"]:
            shown.add_row(Text(item["filter"]), Text(item["purposes"]))
        console.print(shown)
    for name, found in data["object"].items():
        console.print(Text(f"o.{name} is {found}"))
    if not data["policies_required"]:
        console.print("policies are not required: nobody is refused for who they are")
    elif not data["policies"]:
        console.print("policies are required and none is about this topic: nobody may use it")
    else:
        shown = table("policy", "grants", "to", "when", "in emergencies")
        for item in data["policies"]:
            texts = (item["subject"], item["when"], item["emergency"] or "")
            shown.add_row(item["policy"], item["action"], *map(Text, texts))
        console.print(shown)
    if data["preferences"]:
        shown = table("preference", "on what is published for", "readers need")
        for item in data["preferences"]:
            shown.add_row(item["preference"], Text(item["publisher"]), Text(item["when"]))
        console.print(shown)
    console.print(f"under epoch {data['epoch']}", style="dim")


def _say_purposes(data: dict[str, Any]) -> str:
    if not data["reserved"]:
        if data["open_without_reservation"]:
            return "not reserved: subscriptions may read it with any purpose, or none"
        return "not reserved, and unreserved topics are closed: nobody may read it"
    if not data["allow"]:
        return "reserved for nobody"
    text = f"reserved: may be read for {', '.join(data['allow'])} and what is below"
    if data["prohibit"]:
        text += f", never for {', '.join(data['prohibit'])} or what is below"
    return text
