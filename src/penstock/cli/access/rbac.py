"""`penstock rbac`: reconcile Kafka's users and ACLs with the roles; a prompt for all of it.

    addUser alice                       addRole nurse view:nurse,stream:patients
    assignRole alice nurse              addPermission nurse prefix:ward-
    userStatus userName alice           roleStatus --roleName nurse

Parameters come in their order, or after their names, with or without hyphens.
"""

from __future__ import annotations

import difflib
import shlex
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.access.users import (
    made_password,
    open_officer,
    render_role,
    render_roles,
    render_user,
    render_users,
    show_done,
)
from penstock.cli.output import console, json_option, show, table
from penstock.cli.session import configuration
from penstock.errors import PenstockError, UsageError, quote

if TYPE_CHECKING:
    from penstock.kafka import Administration, Drift, ReconcileResult

LIST_LIMIT = 200


@click.group("rbac", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Reconcile Kafka's users and ACLs with the roles.

    Without a command, opens a prompt for users, roles and permissions; `help` lists its commands.
    It also reads commands from standard input, one per line.
    """
    if ctx.invoked_subcommand is not None:
        return

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
@click.option("--prune", is_flag=True, help="Also remove ACLs that nobody declared.")
@json_option
def repair(prune: bool, as_json: bool) -> None:
    """Make Kafka's users and ACLs match the roles."""
    with open_officer() as officer:
        done = officer.reconciler.repair(prune=prune or configuration().kafka.prune)
    show_done(as_json, done, "Kafka has what the roles say")


@command.command("watch")
@json_option
def watch(as_json: bool) -> None:
    """Repair once, then follow every change of the roles, until Ctrl-C or SIGTERM.

    `penstock up` runs this as the part `rbac`. It answers /metrics, /healthz and /readyz at
    `kafka.monitor_port`.
    """
    from penstock.kafka import run_watch

    configuration().require_files("kafka")
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


LINE_LIMIT = 65_536


@dataclass(frozen=True, slots=True)
class PromptCommand:
    """A command of the prompt: its parameters, those that may be left out, what it does."""

    parameters: tuple[str, ...]
    about: str
    optional: int = 0


COMMANDS = {
    "addUser": PromptCommand(
        ("userName",), "Adds a user; the password is made up and written to a file."
    ),
    "deleteUser": PromptCommand(("userName",), "Deletes a user."),
    "addRole": PromptCommand(("roleName", "permissions"), "Adds a role with permissions: A,B,…", 1),
    "deleteRole": PromptCommand(("roleName",), "Deletes a role."),
    "addPermission": PromptCommand(("roleName", "topicName"), "Adds a permission to a role."),
    "removePermission": PromptCommand(
        ("roleName", "topicName"), "Removes a permission from a role."
    ),
    "assignRole": PromptCommand(("userName", "roleName"), "Gives a role to a user."),
    "removeRole": PromptCommand(("userName", "roleName"), "Takes a role from a user."),
    "userStatus": PromptCommand(("userName",), "Prints the roles and permissions of a user."),
    "roleStatus": PromptCommand(("roleName",), "Prints the permissions and users of a role."),
    "roles": PromptCommand((), "Lists all roles."),
    "users": PromptCommand((), "Lists all users."),
    "help": PromptCommand((), "Prints this table."),
    "exit": PromptCommand((), "Ends."),
}


def parse(line: str) -> tuple[str, list[str]]:
    """Return the verb and its parameters in their order."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"{quote(line)} cannot be read: {error}", fix="close the quotes") from None
    if not words:
        return "", []
    named, *rest = words
    verb = next((name for name in COMMANDS if name.lower() == named.lower()), None)
    if verb is None:
        near = difflib.get_close_matches(named, COMMANDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`help` lists the commands"
        raise UsageError(f"there is no command {quote(named)}", fix=hint)
    wanted = COMMANDS[verb].parameters
    found: dict[str, str] = {}
    while rest:
        word = rest.pop(0)
        name = word.lstrip("-")
        if name in wanted and name not in found and rest:
            found[name] = rest.pop(0)
        else:
            free = [item for item in wanted if item not in found]
            if not free:
                raise UsageError(f"{verb} takes no {quote(word)}", fix=_usage(verb))
            found[free[0]] = word
    needed = wanted[: len(wanted) - COMMANDS[verb].optional]
    missing = [name for name in needed if name not in found]
    if missing:
        raise UsageError(f"{verb} needs {missing[0]}", fix=_usage(verb))
    return verb, [found[name] for name in wanted if name in found]


def _usage(verb: str) -> str:
    return " ".join([f"write {verb}", *(f"<{name}>" for name in COMMANDS[verb].parameters)])


class Prompt:
    """Reads commands and carries them out, one after another."""

    def __init__(self, officer: Administration, out: Console, errors: Console) -> None:
        self._officer = officer
        self._out = out
        self._errors = errors
        self._acts: dict[str, Callable[..., ReconcileResult]] = {
            "deleteUser": officer.delete_user,
            "deleteRole": officer.delete_role,
            "addPermission": officer.add_permission,
            "removePermission": officer.remove_permission,
            "assignRole": officer.assign_role,
            "removeRole": officer.remove_role,
        }

    def run(self, source: TextIO) -> int:
        """Carry out commands until the end, and return the exit code.

        A person can correct a mistake; a script ends at the first one.
        """
        interactive = source.isatty()
        while True:
            line = self._read(source, interactive=interactive)
            if not line:
                return 0
            try:
                if not self.carry_out(line):
                    return 0
            except PenstockError as error:
                self._errors.print(f"error: {error}", markup=False, soft_wrap=True)
                if not interactive:
                    return error.exit_code

    def carry_out(self, line: str) -> bool:
        """Carry out one command; return whether to go on."""
        verb, given = parse(line)
        officer, out = self._officer, self._out
        match verb:
            case "" | "help":
                self._help(verb)
            case "exit":
                return False
            case "users":
                render_users(out, officer.users())
            case "roles":
                render_roles(out, officer.roles())
            case "userStatus":
                render_user(out, officer.user_status(*given))
            case "roleStatus":
                render_role(out, officer.role_status(*given))
            case "addUser":
                with made_password(given[0]) as (password, file):
                    done = officer.add_user(given[0], password)
                self._done(done)
                out.print(f"password: {file}", soft_wrap=True)
            case "addRole":
                permissions = [item for text in given[1:] for item in text.split(",") if item]
                self._done(officer.add_role(given[0], permissions))
            case _:
                self._done(self._acts[verb](*given))
        return True

    def _read(self, source: TextIO, *, interactive: bool) -> str:
        if not interactive:
            return source.readline(LINE_LIMIT)
        try:
            return input("rbac> ") + "\n"
        except (EOFError, KeyboardInterrupt):
            return ""

    def _done(self, done: ReconcileResult) -> None:
        self._out.print(
            f"done: epoch {done.epoch}, at Kafka {done.put} ACLs put, {done.removed} removed"
        )

    def _help(self, verb: str) -> None:
        if not verb:
            return
        shown = table("command", "parameters", "")
        for name, found in COMMANDS.items():
            shown.add_row(name, " ".join(f"<{item}>" for item in found.parameters), found.about)
        self._out.print(shown)
