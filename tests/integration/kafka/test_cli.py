"""A data officer at the command line: users, roles, the prompt, what differs and its repair."""

from __future__ import annotations

import json
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.components import KafkaCluster
from penstock.config import load
from penstock.kafka import Acl, Cluster
from penstock.kafka.admin_connection import AdminConnection
from tests.support.commands import run_command

pytestmark = pytest.mark.needs("java", "jars")

DEFINITIONS = """\
kind: stream
name: desk
fields: [{name: pid, type: int}]
---
kind: view
name: front
stream: desk
roles: [clerk]
"""


@pytest.fixture
def folder(kafka: KafkaCluster, tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "penstock.yaml").write_text(
        f"kafka:\n  bootstrap: {kafka.bootstrap}\n  security: sasl_plaintext\n"
        f"  password: {{file: {kafka.admin_password_file}}}\n"
    )
    (tmp_path / "desk.yaml").write_text(DEFINITIONS)
    run(tmp_path, "apply", "-f", "desk.yaml")
    yield tmp_path
    for user in json.loads(run(tmp_path, "user", "list", "--json").stdout):
        run(tmp_path, "user", "delete", user["name"])


def run(
    folder: Path, *words: str, text: str = "", code: int | None = 0
) -> subprocess.CompletedProcess[str]:
    told = {"NO_COLOR": "1", "PENSTOCK_ACTOR": "officer"}
    done = run_command(folder, *words, text=text, env=told)
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done


def ask(folder: Path, *words: str) -> Any:
    return json.loads(run(folder, *words, "--json").stdout)


def acls_of(folder: Path, user: str) -> set[Acl]:
    with Cluster(load(folder / "penstock.yaml").kafka) as cluster:
        return cluster.acls_of([user])[user]


FRONT = {
    Acl("topic", "literal", "desk-front", "read"),
    Acl("group", "prefixed", "carl:", "read"),
}


def test_users_and_roles_by_commands(folder: Path) -> None:
    run(folder, "role", "add", "clerk")
    run(folder, "user", "add", "carl", "--role", "clerk", text="secret\n")
    assert acls_of(folder, "carl") == FRONT
    settings = load(folder / "penstock.yaml").kafka
    AdminConnection.open(settings, "carl", "secret").close()
    with AdminConnection.open(settings) as connection:
        assert connection.find_missing_requests() == []
    run(folder, "role", "add", "boss", "desk", "--include", "clerk")
    run(folder, "user", "assign", "carl", "boss")
    assert ask(folder, "user", "show", "carl") == {
        "name": "carl",
        "roles": ["clerk", "boss"],
        "all_roles": ["boss", "clerk"],
        "permissions": ["read desk", "read desk-front"],
        "blocked": False,
        "login": "ready",
        "pending": False,
        "certificate": None,
    }
    assert ask(folder, "role", "show", "boss")["inherited"] == ["read desk-front"]
    run(folder, "role", "revoke", "boss", "desk")
    run(folder, "user", "remove", "carl", "clerk")
    assert acls_of(folder, "carl") == FRONT
    made = ask(folder, "user", "password", "carl", "--generate")
    file = Path(made["password_file"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    AdminConnection.open(settings, "carl", file.read_text().strip()).close()
    run(folder, "user", "block", "carl")
    assert acls_of(folder, "carl") == set()
    assert ask(folder, "user", "show", "carl")["blocked"]
    run(folder, "user", "unblock", "carl")
    assert acls_of(folder, "carl") == FRONT
    run(folder, "user", "delete", "carl")
    assert acls_of(folder, "carl") == set()
    shown = run(folder, "history").stdout
    assert "officer" in shown
    assert "secret" not in shown


def test_the_prompt_takes_the_commands_of_the_table(folder: Path) -> None:
    script = """\
        addRole roleName clerk
        addUser userName carl
        assignRole userName carl roleName clerk
        addPermission clerk desk
        userStatus carl
        removePermission clerk desk
        roleStatus clerk
        roles
        users
        exit
        deleteUser carl
    """
    said = run(folder, "rbac", text=script).stdout
    assert "carl: roles clerk" in said
    assert "  read desk\n" in said
    assert "users: carl" in said
    assert acls_of(folder, "carl") == FRONT
    wrong = run(folder, "rbac", text="removeRole carl boss\ndeleteUser carl\n", code=2)
    assert "does not have the role 'boss'" in wrong.stderr
    assert acls_of(folder, "carl") == FRONT


def test_differences_are_shown_and_mended(folder: Path) -> None:
    run(folder, "role", "add", "clerk")
    run(folder, "user", "add", "carl", "--role", "clerk", "--generate")
    assert "Kafka has what the roles say" in run(folder, "rbac", "diff").stdout
    with Cluster(load(folder / "penstock.yaml").kafka) as cluster:
        list(cluster.create_acls([("carl", Acl("topic", "literal", "desk", "read"))]))
    found = run(folder, "rbac", "diff", code=1).stdout
    assert "- carl: allow read topic desk" in found
    assert ask(folder, "rbac", "repair")["acls_removed"] == 1
    assert acls_of(folder, "carl") == FRONT


def test_a_cluster_out_of_reach_is_said_so_and_made_good(folder: Path) -> None:
    run(folder, "role", "add", "clerk")
    good = (folder / "penstock.yaml").read_text()
    bad = "\n".join(
        "  bootstrap: 127.0.0.1:1" if "bootstrap" in line else line for line in good.splitlines()
    )
    (folder / "penstock.yaml").write_text(bad)
    failed = run(folder, "user", "add", "carl", "--role", "clerk", "--generate", code=3)
    assert "Kafka does not have it yet" in failed.stderr
    assert (folder / "penstock-data" / "keys" / "kafka-users" / "carl").exists()
    assert ask(folder, "user", "show", "carl")["pending"] is True
    (folder / "penstock.yaml").write_text(good)
    assert "carl" in run(folder, "rbac", "diff", code=1).stdout
    run(folder, "rbac", "repair")
    assert acls_of(folder, "carl") == FRONT
    assert ask(folder, "user", "show", "carl")["pending"] is False


def test_without_a_cluster_there_is_a_next_step(tmp_path: Path) -> None:
    failed = run(tmp_path, "rbac", "diff", code=3)
    assert "no Kafka cluster is named" in failed.stderr
    assert "kafka.bootstrap" in failed.stderr
