"""`penstock simulate`: a made-up house whose days pass, in process or through a gateway."""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from penstock.cli.output import json_option, show
from penstock.cli.session import parse_address
from penstock.errors import UsageError, quote
from penstock_lab.simulation.report import follow, render, render_remote

if TYPE_CHECKING:
    from penstock_lab.generate.nursing_home import House

MOST_SEED = 2**63 - 1
MOST_CLIENTS = 2000
FASTEST = 1_000_000.0
IN_PROCESS_EVERY = 60.0


def parse_speed(ctx: click.Context, param: click.Parameter, value: str) -> float | None:
    """Return how many times as fast as the clock; None for `max`, which never waits."""
    if value == "max":
        return None
    try:
        factor = float(value)
    except ValueError:
        factor = 0.0
    if not 0 < factor <= FASTEST:
        raise click.BadParameter(
            f"{value[:40]!r} is neither `max` nor a number up to {FASTEST:.0f}", ctx, param
        )
    return factor


@click.group("simulate")
def command() -> None:
    """Simulate days of made-up people, the same for the same seed."""


@command.command("nursing-home")
@click.option("--patients", type=click.IntRange(10, 100_000), default=300, show_default=True)
@click.option("--days", type=click.IntRange(1, 3650), default=30, show_default=True)
@click.option("--seed", type=click.IntRange(0, MOST_SEED), default=0, show_default=True)
@click.option(
    "--speed", callback=parse_speed, default="max", show_default=True,
    help="max, or how many times as fast as the clock: 1 is real time.",
)  # fmt: skip
@click.option(
    "--rooms-every", type=click.FloatRange(1, 3600), metavar="SECONDS",
    help="How often the sensors of a room report who is there, in seconds of the house. "
    "Else 60 in process and 1 through a gateway.",
)  # fmt: skip
@click.option("--to", metavar="mqtt://HOST:PORT", help="Publish through this gateway.")
@click.option(
    "--password-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The file with the password of all made-up users; --prepare writes it.",
)  # fmt: skip
@click.option(
    "--prepare", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
    help="Only write what a gateway needs for this simulation: definitions and passwords.",
)  # fmt: skip
@json_option
def nursing_home(
    *,
    patients: int,
    days: int,
    seed: int,
    speed: float | None,
    rooms_every: float | None,
    to: str | None,
    password_file: Path | None,
    prepare: Path | None,
    as_json: bool,
) -> int:
    """Simulate a nursing home: vital signs, rooms, tests, emergencies.

    In process, detection and decisions work on the clock of the house: a month passes as
    quickly as it can be worked through. A gateway has its own clock: give --prepare and the
    run the same --speed, so that windows of days are as much shorter.

    The exit code is 1 if some transition of the plans was not taken though there were
    days enough for it (ten for all of them), and if the gateway refused a message.
    """
    from penstock_lab.generate.nursing_home import House

    remote = to is not None or prepare is not None
    every = rooms_every or (1.0 if remote else IN_PROCESS_EVERY)
    house = House(patients, days, seed, rooms_every=round(every * 1000))
    if prepare is not None:
        _prepare(house, prepare, speed or 1.0, as_json=as_json)
        return 0
    if to is not None:
        return _run_remotely(house, to, password_file, speed, as_json=as_json)
    return _run_here(house, speed, as_json=as_json)


def _run_here(house: House, speed: float | None, *, as_json: bool) -> int:
    from penstock_lab.demo.nursing_home.definitions import make_documents, read_rules, set_pace
    from penstock_lab.simulation.in_process import InProcess
    from penstock_lab.simulation.nursing_home import Simulation

    people = make_documents(house.people.documents())
    documents = set_pace([*read_rules(), *people], rooms_every=house.rooms_every)
    simulation = Simulation(house, InProcess(documents))
    started = time.monotonic()
    behind = follow(house, lambda progress: simulation.run(progress, speed))
    tally = simulation.tally
    missing = tally.missing(house.days)
    head = _head(house, time.monotonic() - started, behind)
    data = {
        **head,
        **tally.as_dict(),
        "missing": len(missing),
        "not_yet": len(tally.not_yet(house.days)),
        "active_at_the_end": sum(1 for _ in simulation.carrier.engine.situations()),
    }
    show(as_json, data, lambda out: render(out, house, tally, data))
    return 1 if missing else 0


def _run_remotely(
    house: House, to: str, password_file: Path | None, speed: float | None, *, as_json: bool
) -> int:
    from penstock.config.secrets import SecretFile
    from penstock_lab.demo.nursing_home.clients import Clients
    from penstock_lab.simulation.through_gateway import GatewaySimulation

    host, port = parse_address(to)
    if len(house.people.publishers()) > MOST_CLIENTS:
        raise UsageError(
            f"{len(house.people.publishers())} people and devices are too many clients for one "
            "process",
            fix="take fewer --patients",
        )
    password = SecretFile(password_file).read_text().strip() if password_file else None
    started = time.monotonic()
    with Clients(host, port, lambda _: password) as clients:
        simulation = GatewaySimulation(house, clients)
        behind = follow(house, lambda progress: simulation.run(progress, speed))
    data = {**_head(house, time.monotonic() - started, behind), **simulation.as_dict()}
    show(as_json, data, lambda out: render_remote(out, simulation, data))
    return 1 if simulation.refused else 0


def _head(house: House, seconds: float, behind: float) -> dict[str, Any]:
    return {
        "patients": len(house.people.patients),
        "days": house.days,
        "seconds": round(seconds, 1),
        "behind_seconds": round(behind, 1),
    }


def _prepare(house: House, folder: Path, speed: float, *, as_json: bool) -> None:
    """Write definitions for this pace, and passwords of the made-up users."""
    from argon2 import PasswordHasher

    from penstock.components.kafka import write_private
    from penstock_lab.demo.nursing_home.definitions import (
        make_documents,
        read_forecasts,
        read_rules,
        set_pace,
    )

    people = make_documents(house.people.documents())
    rules = [*read_rules(), *read_forecasts(), *people]
    documents = set_pace(rules, speed=speed, rooms_every=house.rooms_every)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = [folder / name for name in ("definitions.json", "passwords", "password")]
    for file in files:
        if file.exists():
            raise UsageError(f"{quote(file)} is there already", fix="name a new folder")
    password = secrets.token_urlsafe(24)
    # One hash for all, and a cheap one: the password is random, and the users are made up.
    hashed = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1).hash(password)
    others = [*house.people.specialists, *house.people.relatives, "forecaster"]
    write_private(files[0], json.dumps([it.fields() for it in documents], indent=1))
    write_private(
        files[1], "".join(f"{user}:{hashed}\n" for user in [*house.people.publishers(), *others])
    )
    write_private(files[2], password)
    data = {"definitions": str(files[0]), "passwords": str(files[1]), "password": str(files[2])}

    def render(out: Console) -> None:
        out.print("1. name the file of passwords in penstock.yaml:", style="bold")
        out.print(f"   gateway: {{authentication: {{passwords: {files[1].resolve()}}}}}")
        out.print("2. apply the definitions and start:", style="bold")
        out.print(f"   penstock apply -f {files[0]} && penstock up", soft_wrap=True)
        out.print("3. let the days pass, with the same options:", style="bold")
        out.print(
            f"   penstock simulate nursing-home … --to mqtt://127.0.0.1:1883 "
            f"--password-file {files[2]}",
            soft_wrap=True,
        )

    show(as_json, data, render)
