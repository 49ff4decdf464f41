"""`penstock rbac`: reconcile Kafka's users and ACLs with the roles; a prompt for all of it."""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.kafka.administration import open_officer, show_done
from penstock.cli.output import console, json_option, show
from penstock.cli.session import configuration

if TYPE_CHECKING:
    from penstock.kafka import Drift, ReconcileResult

LIST_LIMIT = 200


@click.group("rbac", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Reconcile Kafka's users and ACLs with the roles.

    Without a command: a prompt for users, roles and permissions; `help` lists what it
    takes. It also reads commands from standard input, one a line.
    """
    if ctx.invoked_subcommand is not None:
        return
    from penstock.cli.kafka.prompt import Prompt

    with open_officer() as officer:
        code = Prompt(officer, console(), console(errors=True)).run(sys.stdin)
    # Click takes no code from a group that has commands.
    ctx.exit(code)


@command.command("diff")
@json_option
@click.pass_context
def diff(ctx: click.Context, as_json: bool) -> None:
    """Show how Kafka differs from the roles; exit with 1 if it does."""
    with open_officer() as officer:
        found = officer.reconciler.compare()
        progress = officer.reconciler.progress()

    def render(target: Console) -> None:
        _render(target, found)
        if progress.trouble:
            target.print(
                f"pending since {progress.since:%Y-%m-%d %H:%M:%S} UTC, tried "
                f"{progress.attempts} times: {progress.trouble}",
                style="yellow",
            )

    show(as_json, {**found.as_data(), "trouble": progress.trouble}, render)
    if not found.is_empty:
        ctx.exit(1)


@command.command("repair")
@click.option("--prune", is_flag=True, help="Remove ACLs that nobody declared, too.")
@json_option
def repair(prune: bool, as_json: bool) -> None:
    """Bring Kafka's users and ACLs to what the roles say."""
    with open_officer() as officer:
        done = officer.reconciler.repair(prune=prune or configuration().kafka.prune)
    show_done(as_json, done, "Kafka has what the roles say")


@command.command("watch")
@json_option
def watch(as_json: bool) -> None:
    """Repair at first, then follow every change of the roles, until Ctrl-C or SIGTERM.

    The part `rbac` of `penstock up` is this. It answers /metrics, /healthz and /readyz at
    `kafka.monitor_port`.
    """
    from penstock.kafka import run_watch

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def report(done: ReconcileResult) -> None:
        show_done(as_json, done, "Kafka has what the roles say")
        sys.stdout.flush()

    with open_officer(service="rbac") as officer:
        run_watch(configuration(), officer.reconciler, stop, report)


def _render(target: Console, found: Drift) -> None:
    rows = [
        *(("+", "green", f"{user}: {acl}") for user, acl in found.missing),
        *(("-", "red", f"{user}: {acl}") for user, acl in found.extra),
        *(("+", "green", f"user {user}") for user in found.users_to_put),
        *(("-", "red", f"user {user}") for user in found.users_to_remove),
        *(("?", "yellow", f"nobody declared: {who}: {acl}") for who, acl in found.foreign),
        *(("?", "yellow", f"nobody declared: user {user}") for user in found.foreign_users),
        *(("!", "yellow", f"{user} has no password yet") for user in found.without_password),
        *(("!", "red", f"{user} is Penstock's own name at Kafka") for user in found.refused),
        *(
            ("!", "yellow", f"view {view} names the role {role}, which nobody declared")
            for view, role in found.undeclared
        ),
    ]
    for sign, colour, text in rows[:LIST_LIMIT]:
        target.print(Text.assemble((f"{sign} ", colour), text), soft_wrap=True)
    if len(rows) > LIST_LIMIT:
        target.print(f"… and {len(rows) - LIST_LIMIT} more")
    if found.is_empty:
        target.print("Kafka has what the roles say")
    else:
        target.print("`penstock rbac repair` removes the differences", style="dim")
