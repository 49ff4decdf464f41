"""`penstock situation`: which emergencies hold, how they came about, what they open.

Rules that hold here:
- Reading changes nothing. What is set by hand is a request with a reason, recorded in the
  audit log before anything happens; the gateway that detects carries it out.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.access.situation_requests import approve, end, requests, start, withdraw
from penstock.cli.access.situation_session import Desk, open_desk
from penstock.cli.output import console, json_option, print_json, show, table
from penstock.errors import UnavailableError, quote

if TYPE_CHECKING:
    from penstock.definitions.authorizer import Grant
    from penstock.model.kinds import Plan
    from penstock.model.kinds.events import Evolution
    from penstock.store.detection.tables import Standing, Transition

NOTHING = "⊥"
MOST_NAMES = 12
_CAUSES = {
    "detected": "detected",
    "manual": "by hand",
    "time": "the time is over that it was held for",
    "duration": "its longest duration is over",
    "limit": "too many others are in a situation",
    "definitions": "its definition has changed",
}


@click.group("situation")
def command() -> None:
    """See which emergencies hold, why, and what they open; start and end them by hand."""


for _verb in (start, end, approve, withdraw, requests):
    command.add_command(_verb)


@command.command("list")
@click.option("--scenario", help="Only this scenario.")
@click.option("--subject", help="Only this subject.")
@json_option
def list_(scenario: str | None, subject: str | None, as_json: bool) -> None:
    """List the situations that hold now."""
    with open_desk() as desk:
        if scenario is not None:
            desk.scenario(scenario)
        standing = desk.situations.current(scenario, subject)
        trouble = _find_trouble(desk)
        levels = _list_levels(desk)
    data = [_standing_data(it, levels) for it in standing]

    def render(out: Console) -> None:
        shown = table(
            "scenario", "subject", "situation", "level", "since (UTC)", "for", "held until (UTC)"
        )
        shown.columns[3].justify = "right"
        now = datetime.now(UTC)
        for it in standing:
            level = levels.get((it.scenario, it.situation))
            shown.add_row(
                Text(it.scenario),
                Text(it.subject),
                Text(it.situation, "bold"),
                "" if level is None else str(level),
                f"{it.since:%Y-%m-%d %H:%M:%S}",
                _tell_age((now - it.since).total_seconds()),
                f"{it.held_until:%Y-%m-%d %H:%M:%S}" if it.held_until else "",
            )
        if standing:
            out.print(shown)
        else:
            out.print("no emergency holds")
        if trouble:
            out.print(Text(trouble, "yellow"))

    show(as_json, {"situations": data, "trouble": trouble}, render)


@command.command()
@click.option("--scenario", help="Only this scenario.")
@click.option("--subject", help="Only this subject.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option(
    "--before", type=click.IntRange(1), metavar="NUMBER", help="Only those before this one."
)
@json_option
def history(
    scenario: str | None, subject: str | None, limit: int, before: int | None, as_json: bool
) -> None:
    """Show how situations came about, newest first."""
    with open_desk() as desk:
        if scenario is not None:
            desk.scenario(scenario)
        steps = desk.situations.history(scenario, subject, before=before, limit=limit)

    def render(out: Console) -> None:
        shown = table("number", "at (UTC)", "scenario", "subject", "from", "to", "why")
        for it in steps:
            shown.add_row(
                str(it.number),
                f"{it.at:%Y-%m-%d %H:%M:%S}",
                Text(it.scenario),
                Text(it.subject),
                Text(it.source or NOTHING),
                Text(it.target or NOTHING),
                Text(_tell_cause(it)),
            )
        if steps:
            out.print(shown)
        else:
            out.print("nothing has happened yet")

    show(as_json, [_transition_data(it) for it in steps], render)


@command.command()
@click.argument("scenario")
@click.argument("subject")
@json_option
def explain(scenario: str, subject: str, as_json: bool) -> None:
    """Say why SUBJECT is in its situation, and what that opens to whom."""
    from penstock.definitions.authorizer import list_grants, list_involved

    with open_desk() as desk:
        held, plan = desk.scenario(scenario)
        standing = next(iter(desk.situations.current(scenario, subject)), None)
        last = next(iter(desk.situations.history(scenario, subject, limit=1)), None)
        trouble = _find_trouble(desk)
        grants = (
            list_grants(desk.definitions, scenario, subject, standing.situation) if standing else []
        )
        levels = _list_levels(desk)
        involved = list_involved(desk.definitions, scenario, subject)
    situation = standing.situation if standing else None
    onward = [it for it in plan.evolutions if it.source == situation]
    data = {
        "scenario": scenario,
        "plan": held.plan,
        "subject": subject,
        "situation": _standing_data(standing, levels) if standing else None,
        "because": _transition_data(last) if last else None,
        "evolution": _find_evolution(plan, last),
        "next": [_onward_data(it, standing) for it in onward],
        "subject_filter": held.subject_filter,
        "involved": involved,
        "policies": [_grant_data(it) for it in grants],
        "trouble": trouble,
    }

    def render(out: Console) -> None:
        words = Text.assemble((subject, "bold"), " is in ")
        words.append(situation or "no situation", "bold red" if situation else "bold green")
        words.append(f" of the scenario {scenario}, plan {held.plan}")
        if standing:
            words.append(f", since {standing.since:%Y-%m-%d %H:%M:%S} UTC")
            if standing.held_until:
                words.append(f", held until {standing.held_until:%Y-%m-%d %H:%M:%S} UTC")
        out.print(words)
        if last:
            out.print(
                Text(
                    f"it came from {last.source or NOTHING} at {last.at:%Y-%m-%d %H:%M:%S} UTC: "
                    f"{_tell_cause(last)}"
                )
            )
        if onward:
            ways = ", ".join(f"{it.cause} → {it.target or NOTHING}" for it in onward)
            out.print(Text(f"from here: {ways}", "dim"))
        if involved is not None:
            out.print(Text(f"it involves {_tell_names(involved)}: {held.subject_filter}"))
        _render_grants(out, grants, situation)
        if trouble:
            out.print(Text(trouble, "yellow"))

    show(as_json, data, render)


@command.command()
@click.argument("plan")
@click.option(
    "--output", required=True, type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help="The SVG file to write; - is standard output.",
)  # fmt: skip
@click.option("--current", is_flag=True, help="Mark the situations that hold, with numbers.")
@json_option
def diagram(plan: str, output: Path, current: bool, as_json: bool) -> None:
    """Draw PLAN as a state diagram."""
    from penstock.definitions.events.plan_diagram import draw_plan

    occupied: dict[str, int] = {}
    with open_desk() as desk:
        found = desk.plan(plan)
        if current:
            from penstock.model.kinds import Scenario

            for name, scenario in desk.definitions.of(Scenario).items():
                if scenario.plan == plan:
                    for it in desk.situations.current(name):
                        occupied[it.situation] = occupied.get(it.situation, 0) + 1
    text = draw_plan(found, occupied)
    if str(output) == "-":
        print(text, end="")
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UnavailableError(
            f"{quote(output)} cannot be written: {error.strerror}", fix="name another file"
        ) from None
    if as_json:
        print_json({"file": str(output), "situations": len(found.situations)})
    else:
        console(errors=True).print(f"{plan} is drawn in {output}")


def _find_trouble(desk: Desk) -> str | None:
    """Say where what is shown may be out of date: nobody detects."""
    from penstock.model.kinds import Scenario
    from penstock.store.detection.journal import find_leader
    from penstock.store.detection.situations import find_trouble

    if not desk.definitions.of(Scenario):
        return "no scenario is defined"
    return find_trouble(find_leader(desk.database), datetime.now(UTC)) or None


def _list_levels(desk: Desk) -> dict[tuple[str, str], int]:
    from penstock.model.kinds import Plan, Scenario

    plans = desk.definitions.of(Plan)
    return {
        (name, situation.id): situation.level
        for name, scenario in desk.definitions.of(Scenario).items()
        for situation in plans[scenario.plan].situations
    }


def _tell_age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{max(0, seconds):.0f} s"


def _tell_cause(step: Transition) -> str:
    if step.request is not None:
        approved = f", approved by {step.approver}" if step.approver else ""
        until = step.held_until
        held = f" (held until {until:%Y-%m-%d %H:%M:%S})" if until else ""
        return f"by hand of {step.actor}{approved}: {step.reason}{held}"
    if step.event is not None:
        return f"event {step.event}"
    return _CAUSES[step.cause.value]


def _onward_data(it: Evolution, standing: Standing | None) -> dict[str, Any]:
    data: dict[str, Any] = {"event": it.event, "to": it.target}
    if it.after is not None and standing is not None:
        data["after"] = it.after // 1000
        due = standing.since + timedelta(milliseconds=it.after)
        data["at"] = None if standing.held_until else due.isoformat()
    return data


def _find_evolution(plan: Plan, step: Transition | None) -> dict[str, Any] | None:
    if step is None or step.cause.value not in {"detected", "duration"}:
        return None
    for number, it in enumerate(plan.evolutions):
        if (it.source, it.event, it.target) == (step.source, step.event, step.target):
            return {"number": number, "actions": list(it.actions), "priority": it.priority}
    return None


def _tell_names(names: list[str]) -> str:
    shown = ", ".join(names[:MOST_NAMES]) or "nobody now"
    return shown if len(names) <= MOST_NAMES else f"{shown} and {len(names) - MOST_NAMES} more"


def _render_grants(out: Console, grants: list[Grant], situation: str | None) -> None:
    if not grants:
        if situation:
            out.print("no emergency policy applies in it")
        return
    shown = table("emergency policy", "opens", "to")
    for it in grants:
        people = _tell_names(it.people)
        if it.subject == "anyone" and it.people:
            people = f"anyone, such as {people}"
        if it.undecided:
            people += f"; depends on the message for {len(it.undecided)} more"
        shown.add_row(Text(it.policy), Text(f"{it.action} {it.filter}"), Text(people))
    out.print(shown)


def _standing_data(it: Standing, levels: dict[tuple[str, str], int]) -> dict[str, Any]:
    return {
        "scenario": it.scenario,
        "subject": it.subject,
        "situation": it.situation,
        "level": levels.get((it.scenario, it.situation)),
        "since": it.since.isoformat(),
        "held_until": it.held_until.isoformat() if it.held_until else None,
    }


def _transition_data(it: Transition) -> dict[str, Any]:
    return {
        "number": it.number,
        "at": it.at.isoformat(),
        "scenario": it.scenario,
        "subject": it.subject,
        "from": it.source,
        "to": it.target,
        "event": it.event,
        "cause": it.cause.value,
        "request": it.request,
        "actor": it.actor,
        "approver": it.approver,
        "reason": it.reason,
        "held_until": it.held_until.isoformat() if it.held_until else None,
    }


def _grant_data(it: Grant) -> dict[str, Any]:
    return {
        "policy": it.policy,
        "subject": it.subject,
        "allow": it.action,
        "filter": it.filter,
        "when": it.when,
        "exclusive": it.exclusive,
        "people": it.people,
        "depends_on_the_message": it.undecided,
    }
