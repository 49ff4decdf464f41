"""The prompt of `penstock rbac`: users, roles and permissions by short commands.

    addUser alice                       addRole nurse view:nurse,stream:patients
    assignRole alice nurse              addPermission nurse prefix:ward-
    userStatus userName alice           roleStatus --roleName nurse

Parameters come in their order, or after their names, with or without hyphens.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from rich.console import Console

from penstock.cli.kafka.administration import (
    made_password,
    render_role,
    render_roles,
    render_user,
    render_users,
)
from penstock.cli.output import table
from penstock.errors import PenstockError, UsageError, quote

if TYPE_CHECKING:
    from penstock.kafka import Administration, ReconcileResult

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
