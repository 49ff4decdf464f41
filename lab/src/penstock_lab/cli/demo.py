"""`penstock demo`: demonstrations on this machine, each of which checks itself."""

from __future__ import annotations

import importlib
import time

import click

from penstock.cli.output import console, json_option, print_json
from penstock_lab.demo.story import Story

# Name → module and what it shows; in the order in which they are run.
DEMOS = {
    "first-steps": ("first_steps", "a broker, definitions, and decisions that explain themselves"),
    "car-sharing": ("car_sharing", "drivers decide what the data of their cars is used for"),
    "nursing-home": (
        "nursing_home.story",
        "an emergency opens data to those who can help, and closes it again",
    ),
    "homecare": (
        "homecare",
        "what a doctor prescribes: who gets it, and as what; where patients are, and how exactly",
    ),
    "police": (
        "police",
        "three organisations at one broker that none trusts: each reads what it may",
    ),
    "media": ("media", "an opt-out by category, and an account deleted across four services"),
    "hospital": ("hospital", "one stream of patients, four audiences, each with its view"),
}

LIVE = "live"
"""The running system alone."""


@click.command("demo")
@click.argument("name", required=False, type=click.Choice([*DEMOS, LIVE]))
@click.option("--once", is_flag=True, help="End after the last step.")
@click.option(
    "--log",
    type=click.Choice(["files", "kafka"]),
    default="files",
    help="Where the hospital keeps its events: in files, or at a Kafka broker with four readers.",
)
@json_option
def command(name: str | None, once: bool, log: str, as_json: bool) -> None:
    """Run a demonstration: the one named, or all, and then a system with live data and a console.

    The system runs until Ctrl-C; `live` runs it alone. Its console is opened by the link that is
    printed, which makes an account.

    Everything runs on this machine, in temporary folders. The exit code is 0 if the
    demonstration did what it says, else 1.
    """
    started = time.monotonic()
    target = console(errors=as_json)
    checked = 0
    chosen = [] if name == LIVE else [name] if name else list(DEMOS)
    for key in chosen:
        module, about = DEMOS[key]
        if key == "hospital" and log == "kafka":
            module = "hospital_kafka"
        target.print(f"\n{key}: {about}", style="bold")
        story = Story(target)
        importlib.import_module(f"penstock_lab.demo.{module}").run(story)
        checked += story.checked
    seconds = round(time.monotonic() - started, 1)
    if as_json:
        print_json({"demos": chosen, "checked": checked, "seconds": seconds})
    elif chosen:
        target.print(f"\nall {checked} expectations held, {seconds} s", style="bold green")
    if name == LIVE or not (once or name or as_json):
        from penstock_lab.demo import playground

        playground.run(target)
