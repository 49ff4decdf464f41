"""`penstock up`, `down`, `status`, `gateway`, `server`: parts of an installation as processes."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import json_option, print_json, show, table
from penstock.cli.session import ANSWER_SECONDS, configuration, open_database, refuse_missing_store
from penstock.errors import PenstockError, UnavailableError

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.supervisor.status import PartStatus, SupervisorStatus

POLL_SECONDS = 0.05
LAST_WORDS = 20
COLOURS = {
    "running": "green",
    "starting": "yellow",
    "waiting": "yellow",
    "stopping": "yellow",
    "backoff": "red",
    "failed": "bold red",
    "stopped": "red",
    "degraded": "bold red",
    "down": "bold red",
}


@click.command("up")
@click.option(
    "-d", "--detach", is_flag=True, help="Return when the parts are running; they keep running."
)
@json_option
@click.pass_context
def up(ctx: click.Context, detach: bool, as_json: bool) -> None:
    """Run the parts named in penstock.yaml.

    They run until Ctrl-C or SIGTERM, then stop in order; a second signal hurries. A part
    that fails is started again, with growing pauses, and given up if it fails too often;
    SIGUSR1 tries given-up parts again. With --json every change is one line.
    """
    from penstock.config import load
    from penstock.supervisor.supervisor import prepare
    from penstock.telemetry import configure, install_hooks

    named = ctx.find_root().obj

    def load_settings(environ: Mapping[str, str]) -> Config:
        return load(Path(named) if named else None, environ)

    config, supervisor = prepare(load_settings, os.environ)
    if detach:
        _detach(config, as_json=as_json)
        return
    configure(level=config.log.level, style=config.log.format)
    install_hooks()
    supervisor.run(print_status if as_json else None)


def print_status(status: SupervisorStatus) -> None:
    """Print one line of JSON for a change."""
    print_json(status_data(status))
    sys.stdout.flush()


def _detach(config: Config, *, as_json: bool) -> None:
    """Start a supervisor that outlives this command, and wait until its parts run."""
    from penstock.supervisor.status import RunFolder

    folder = RunFolder(config.data)
    if folder.is_held():
        raise UnavailableError(
            "a supervisor runs already", fix="see `penstock status`; `penstock down` stops it"
        )
    folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = folder.path / "supervisor.log"
    with log.open("wb") as output:
        log.chmod(0o600)
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "--config", str(config.file), "up"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline = time.monotonic() + config.supervisor.ready_timeout * (1 + len(config.parts))
    status = folder.read()
    while time.monotonic() < deadline and not _settled(status, process.pid):
        if process.poll() is not None:
            lines = log.read_text(errors="replace").splitlines()[-LAST_WORDS:]
            raise UnavailableError(
                "the supervisor ended; its last words:\n" + "\n".join(lines),
                fix=f"see {log}, and `penstock doctor`",
            )
        time.sleep(POLL_SECONDS)
        status = folder.read()
    if status is None:
        raise UnavailableError("the supervisor does not answer", fix=f"see {log}")

    def render(console: Console) -> None:
        render_status(console, status)
        console.print("`penstock down` stops them")

    show(as_json, status_data(status), render)
    if status.state != "running":
        click.get_current_context().exit(UnavailableError.exit_code)


def _settled(status: SupervisorStatus | None, pid: int) -> bool:
    """Whether every part runs or has been given up, or waits for one that has been."""
    if status is None or status.pid != pid:
        return False
    states = {part.state for part in status.parts}
    return states <= {"running", "failed"} or (
        "failed" in states and states <= {"running", "failed", "waiting"}
    )


@click.command("down")
@json_option
def down(as_json: bool) -> None:
    """Stop the parts that `penstock up` runs, and wait until they have ended."""
    from penstock.supervisor.status import RunFolder

    config = configuration()
    folder = RunFolder(config.data)
    status = folder.read()
    if status is None or not folder.is_held():
        show(as_json, {"stopped": False}, lambda console: console.print("nothing runs"))
        return
    os.kill(status.pid, signal.SIGTERM)
    deadline = time.monotonic() + config.supervisor.grace * (len(status.parts) + 1)
    while folder.is_held():
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"the supervisor {status.pid} has not ended in time",
                fix="see `penstock status`; calling this again hurries it",
            )
        time.sleep(POLL_SECONDS)
    stopped = {"stopped": True, "parts": [part.part for part in status.parts]}
    count = len(status.parts)
    said = f"stopped {count} {'part' if count == 1 else 'parts'}"
    show(as_json, stopped, lambda console: console.print(said))


@click.command("status")
@json_option
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """Show the parts that run, and how many sessions are kept.

    The exit code is 0 if all parts run, and 3 if one does not or no supervisor runs.
    """
    from penstock.supervisor.status import RunFolder

    config = configuration()
    status = RunFolder(config.data).read()
    kept = count_kept_sessions(config)

    def render(console: Console) -> None:
        if status is None:
            _render_down(console, config)
        else:
            render_status(console, status)
        render_kept_sessions(console, kept)

    show(as_json, (_down_data(config) if status is None else status_data(status)) | kept, render)
    if status is None or status.state != "running":
        ctx.exit(UnavailableError.exit_code)


def status_data(status: SupervisorStatus) -> dict[str, Any]:
    """Return the status for machines: what the file says, and how long each state lasts."""
    data = status.model_dump(mode="json")
    now = time.time()
    for part in (data, *data["parts"]):
        part["seconds"] = round(max(0.0, now - part["since"]), 1)
    return data


def render_status(console: Console, status: SupervisorStatus) -> None:
    """Draw the table of parts."""
    head = f"supervisor {status.pid}, up {show_seconds(time.time() - status.since)}"
    if status.monitor:
        head += f", {status.monitor}/metrics"
    console.print(Text.assemble(_word(status.state), f"  {head}"))
    made = table("part", "state", "pid", "uptime", "restarts", "last exit", "address")
    for part in status.parts:
        made.add_row(*_row(part))
    console.print(made)
    for part in status.parts:
        # Below, not beside: sentences would squeeze the table on a narrow terminal.
        if part.detail:
            console.print(Text.assemble((f"{part.part}: ", "bold"), part.detail))


def _row(part: PartStatus) -> list[str | Text]:
    running = part.state == "running"
    return [
        part.part,
        _word(part.state),
        str(part.pid or "-"),
        show_seconds(time.time() - part.since) if running else "-",
        str(part.restarts),
        part.last_exit or "-",
        (part.address or "-").replace(", ", "\n"),
    ]


def _word(state: str) -> Text:
    return Text(state, COLOURS[state])


def show_seconds(seconds: float) -> str:
    """Write a length of time in its two largest units: `3h 5m`."""
    left = max(0, int(seconds))
    shown: list[str] = []
    for unit, worth in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, worth)
        if count or (unit == "s" and not shown):
            shown.append(f"{count}{unit}")
    return " ".join(shown[:2])


def _down_data(config: Config) -> dict[str, Any]:
    parts = [{"part": name, "state": "down"} for name in config.parts]
    return {"state": "down", "data": str(config.data), "parts": parts}


def _render_down(console: Console, config: Config) -> None:
    console.print(Text.assemble(_word("down"), f"  no supervisor runs on {config.data}"))
    made = table("part", "state")
    for name in config.parts:
        made.add_row(name, _word("down"))
    console.print(made)
    console.print("→ `penstock up` runs them")


def count_kept_sessions(config: Config) -> dict[str, Any]:
    """Count the sessions of all gateways of the store; nothing where there is no store yet."""
    try:
        refuse_missing_store(config)
    except UnavailableError:
        return {}
    from penstock.clock import utc_now
    from penstock.store.session_tables import count_sessions

    limits = config.gateway.limits
    allowed = {"per_user": limits.sessions_per_user, "per_address": limits.sessions_per_address}
    try:
        with open_database(config) as database, database.read() as connection:
            found = count_sessions(connection, utc_now())
    except PenstockError as error:
        return {"sessions": {"error": error.message, **allowed}}
    counts = {"kept": found.kept, "owners": found.owners, "most": found.most}
    return {"sessions": {**counts, **allowed}}


def render_kept_sessions(console: Console, data: dict[str, Any]) -> None:
    """Write one line, where there is something to say."""
    found = data.get("sessions")
    if found is None:
        return
    if "error" in found:
        said = f"cannot be counted: {found['error']}"
    else:
        said = (
            f"{found['kept']} kept, of {found['owners']} users or addresses, at most "
            f"{found['most']} of one (limits: {found['per_user']} per user, "
            f"{found['per_address']} per address)"
        )
    console.print(Text.assemble(("sessions: ", "bold"), said))


DESCRIPTORS_PER_CLIENT = 2
DESCRIPTORS_BESIDE = 256
_RUN = "import sys; from penstock.cli import main; main(sys.argv[1:])"


@click.command("gateway")
@click.option("--worker", type=click.IntRange(0, 255), hidden=True)
@json_option
@click.pass_context
def gateway(ctx: click.Context, *, worker: int | None, as_json: bool) -> None:
    """Run the MQTT gateway in front of the broker, until Ctrl-C or SIGTERM.

    `penstock up` runs it together with the broker. Where the broker runs elsewhere, name
    its host and port in penstock.yaml. With --json the log is JSON, one entry per line.
    """
    from penstock.gateway.service.process import run_until_told, run_workers
    from penstock.telemetry import configure, install_hooks

    config = configuration()
    configure(level=config.log.level, style="json" if as_json else config.log.format)
    install_hooks()
    config.require_files("gateway", "broker")
    config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    raise_descriptor_limit(config)
    count = config.gateway.workers
    if count > 1 and worker is None:
        named = ctx.find_root().obj
        options = ["--config", named] if named else []
        style = ["--json"] if as_json else []
        run_workers(
            [
                [sys.executable, "-c", _RUN, *options, "gateway", "--worker", str(number), *style]
                for number in range(count)
            ]
        )
        return
    try:
        import uvloop
    except ImportError:
        import asyncio

        asyncio.run(run_until_told(config, worker=worker or 0))
    else:
        uvloop.run(run_until_told(config, worker=worker or 0))


def raise_descriptor_limit(config: Config) -> None:
    """Let the process have as many open files as its clients need, if the system lets it."""
    wanted = config.gateway.limits.connections * DESCRIPTORS_PER_CLIENT + DESCRIPTORS_BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@click.group("console")
def console_command() -> None:
    """Look at the installation and change it with a browser."""


@console_command.command("run")
@json_option
def run_console(as_json: bool) -> None:
    """Run the console until Ctrl-C or SIGTERM.

    While nobody administers, it prints a link to create the first account: valid once, for an
    hour.
    `penstock up` runs it where `parts` names it. With --json the log is JSON, one entry per line.
    """
    from penstock.telemetry import configure, install_hooks

    try:
        from penstock.console.process import run_until_told
    except ImportError as error:
        raise UnavailableError(
            f"the console is not installed: {error.name} is missing",
            fix="pip install 'penstock[console]'",
        ) from None

    config = configuration()
    configure(level=config.log.level, style="json" if as_json else config.log.format)
    install_hooks()
    config.require_files("console")
    config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    _run_loop(run_until_told(config))


@console_command.command("link")
@json_option
def make_console_link(as_json: bool) -> None:
    """Print a link to create the first account: valid once, for an hour, if nobody administers."""
    from penstock.console.desk import Desk
    from penstock.errors import UsageError

    config = configuration()
    refuse_missing_store(config)
    with Desk.open(config) as desk:
        desk.follower.wait_for(0, ANSWER_SECONDS)
        if desk.has_administrator():
            raise UsageError(
                "there is an administrator already",
                fix="sign in, or set a password with `penstock password`",
            )
        link = f"{config.console.address}/first?link={desk.sessions.make_link()}"
    show(as_json, {"link": link}, lambda console: console.print(link, soft_wrap=True))


@click.group("server")
def server() -> None:
    """Serve the API through which front ends submit privacy requests and services answer them."""


@server.command("run")
@json_option
def run_server(as_json: bool) -> None:
    """Run the server until Ctrl-C or SIGTERM.

    `penstock up` runs it where `parts` names it. With --json the log is JSON, one entry per line.
    """
    from penstock.telemetry import configure, install_hooks

    # What gRPC logs by itself names peers.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from penstock.server.process import run_until_told
    except ImportError as error:
        raise UnavailableError(
            f"the server is not installed: {error.name} is missing",
            fix="pip install 'penstock[server]'",
        ) from None

    config = configuration()
    configure(level=config.log.level, style="json" if as_json else config.log.format)
    install_hooks()
    config.require_files("server", "rights")
    config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    _run_loop(run_until_told(config))


def _run_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run a process's work on the fastest loop that is installed."""
    try:
        import uvloop
    except ImportError:
        import asyncio

        asyncio.run(work)
    else:
        uvloop.run(work)
