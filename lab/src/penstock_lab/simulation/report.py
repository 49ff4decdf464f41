"""What `penstock simulate` tells while it runs, and at its end.

Rules that hold here:
- That a house cannot keep its pace is told at once, and again at the end, by how much.
- An evolution that nobody went along is a fault, unless there were too few days for it: then
  the table says how many it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from penstock.cli.output import console, table

if TYPE_CHECKING:
    from penstock_lab.generate.nursing_home import House
    from penstock_lab.simulation.nursing_home import OnProgress, SimulationTally
    from penstock_lab.simulation.through_gateway import GatewaySimulation

LATE_SECONDS: Final = 1.0
"""From when on it is told that messages come later than the speed wants them."""
TOO_FAST: Final = "messages take longer than they are apart; take a lower --speed"
_DAY: Final = 86_400_000


def follow(house: House, run: Callable[[OnProgress], float]) -> float:
    """Show on standard error how far the house is, and once if it cannot keep its pace."""
    target = console(errors=True)
    columns = (
        TextColumn("day {task.fields[day]} of " + str(house.days)),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[behind]}", style="yellow"),
    )
    with Progress(*columns, console=target, transient=True, disable=not target.is_terminal) as bar:
        task = bar.add_task("", total=house.end - house.start, day=1, behind="")
        warned = False

        def show_progress(at: int, behind: float) -> None:
            nonlocal warned
            passed = at - house.start
            day = min(house.days, passed // _DAY + 1)
            late = f"{behind:.0f} s behind" if behind >= LATE_SECONDS else ""
            bar.update(task, completed=passed, day=day, behind=late)
            if late and not warned:
                warned = True
                target.print(f"on day {day} the house is {late}: {TOO_FAST}", style="yellow")

        return run(show_progress)


def render(out: Console, house: House, tally: SimulationTally, data: dict[str, Any]) -> None:
    """Show what came of days in process."""
    shown = table("scenario", "from", "event", "to", "times")
    shown.columns[-1].justify = "right"
    not_yet = tally.not_yet(house.days)
    for step, times in tally.transitions.items():
        style, told = "" if times else "red", f"{times:,}"
        if step in not_yet:
            style, told = "dim", f"from day {not_yet[step]}"
        cells = (step.scenario, step.source or "⊥", step.event, step.target or "⊥", told)
        shown.add_row(*(Text(cell, style) for cell in cells))
    out.print(shown)
    if not_yet:
        out.print(
            f"\n{len(not_yet)} evolutions cannot be expected with --days {house.days}: illness, "
            "tests and windows of two days take their time. The table says on which day the "
            "script of the first patients leads along each of them."
        )
    if missing := tally.missing(house.days):
        out.print(
            f"\nevolutions that should have been gone along, and were not: {len(missing)}",
            style="red",
        )
    messages = sum(tally.messages.values())
    out.print(
        f"\n{messages:,} messages of {len(house.people.patients):,} patients in {house.days} days; "
        f"{tally.published['warning']:,} warnings, {tally.published['closecontact']:,} notices to "
        f"close contacts, {tally.messages['result']:,} results of tests"
    )
    for who, what, when in (
        ("external specialists", "vital signs", "in Symptomatic or Severe"),
        ("relatives", "bulletins", "with a case"),
    ):
        group = who.split()[-1].removesuffix("s")
        total = tally.shown[group] + tally.hidden[group]
        out.print(
            f"{who} were shown {tally.shown[group]:,} of {total:,} {what}: those of patients "
            f"{when}, at that time"
        )
    out.print(
        f"{data['active_at_the_end']} cases are open at the end; {data['seconds']} s", style="dim"
    )
    _render_pace(out, data)


def _render_pace(out: Console, data: dict[str, Any]) -> None:
    """Say that the house could not keep its pace, if so."""
    behind = data["behind_seconds"]
    if behind >= LATE_SECONDS:
        out.print(f"it ended {behind} s behind: {TOO_FAST}", style="yellow")


def render_remote(out: Console, simulation: GatewaySimulation, data: dict[str, Any]) -> None:
    """Show what came of days through a gateway."""
    shown = table("topic", "published", "refused")
    topics = sorted({*simulation.sent, *simulation.refused})
    for topic in topics:
        shown.add_row(topic, f"{simulation.sent[topic]:,}", f"{simulation.refused[topic]:,}")
    out.print(shown)
    heard = table("who heard what", "times")
    for name, times in sorted(simulation.received.items()):
        heard.add_row(name, f"{times:,}")
    out.print(heard)
    if refused := simulation.refused.total():
        out.print(
            f"the gateway refused {refused:,} of {refused + simulation.sent.total():,} messages: "
            "no one of this house publishes what they may not; `penstock audit tail` says why",
            style="red",
        )
    told = f"{data['seconds']} s; `penstock situation history` tells the transitions"
    out.print(told, style="dim")
    _render_pace(out, data)
