"""The prompt takes the parameters in their order or by their names."""

from __future__ import annotations

import pytest

from penstock.cli.access.rbac import COMMANDS, parse
from penstock.errors import UsageError


@pytest.mark.parametrize(
    ("line", "verb", "given"),
    [
        ("addUser alice", "addUser", ["alice"]),
        ("adduser userName alice", "addUser", ["alice"]),
        ("addUser --userName alice", "addUser", ["alice"]),
        ("addRole r", "addRole", ["r"]),
        ("addRole -roleName r -permissions a,b", "addRole", ["r", "a,b"]),
        ("assignRole roleName r userName u", "assignRole", ["u", "r"]),
        ("assignRole roleName r u", "assignRole", ["u", "r"]),
        ("removePermission 'r' topic:t  # why", "removePermission", ["r", "topic:t"]),
        ("users", "users", []),
        ("  # a comment", "", []),
        ("\n", "", []),
    ],
)
def test_commands_are_read(line: str, verb: str, given: list[str]) -> None:
    assert parse(line) == (verb, given)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("addUsr x", "did you mean 'addUser'"),
        ("frobnicate", "`help` lists"),
        ("addUser", "needs userName"),
        ("assignRole u", "needs roleName"),
        ("users all", "takes no 'all'"),
        ("addUser 'a", "close the quotes"),
    ],
)
def test_mistakes_are_told(line: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line)
    assert said in str(caught.value)


def test_all_commands_are_there() -> None:
    assert set(COMMANDS) == {
        "addUser", "deleteUser", "addRole", "deleteRole", "addPermission", "removePermission",
        "assignRole", "removeRole", "userStatus", "roleStatus", "roles", "users", "exit", "help",
    }  # fmt: skip
