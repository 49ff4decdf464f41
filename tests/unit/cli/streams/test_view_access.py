"""Who may read a view by our commands, and what the audit log has of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import run_command

DEFINITIONS = """
kind: stream
name: patients
fields: [{name: pid, type: int}]
---
kind: view
name: ward
stream: patients
format: topic
roles: [nurse]
---
kind: view
name: open
stream: patients
format: topic
---
kind: role
name: nurse
---
kind: role
name: head-nurse
includes: [nurse]
---
kind: role
name: cook
---
kind: user
name: nina
roles: [nurse]
---
kind: user
name: helga
roles: [head-nurse]
---
kind: user
name: carl
roles: [cook]
---
kind: user
name: berta
roles: [nurse]
blocked: true
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "penstock.yaml").write_text(
        "gateway: {authentication: {passwords: users.txt}}\n", encoding="utf-8"
    )
    (tmp_path / "all.yaml").write_text(DEFINITIONS, encoding="utf-8")
    done = run_command(tmp_path, "apply", "-f", "all.yaml")
    assert done.returncode == 0, done.stderr
    for user in ("nina", "helga", "carl", "berta"):
        done = run_command(tmp_path, "password", user, text=f"secret {user}\n")
        assert done.returncode == 0, done.stderr
        secret = tmp_path / f"{user}.txt"
        secret.write_text(f"secret {user}", encoding="utf-8")
        secret.chmod(0o600)
    return tmp_path


def audited(folder: Path, kind: str) -> list[tuple[str, str | None]]:
    done = run_command(folder, "audit", "tail", "--json")
    entries = [json.loads(line) for line in done.stdout.splitlines()]
    found = [it for it in entries if it["kind"] == kind]
    assert all(it["actor"] for it in found), "who did it is on record"
    return [(it["outcome"], it["details"].get("reason")) for it in found]


def test_roles_of_a_view_are_enforced_and_every_attempt_is_recorded(folder: Path) -> None:
    def read(*words: str) -> str:
        done = run_command(folder, "views", "read", *words)
        assert (done.returncode == 1) == bool(done.stderr), done
        return done.stderr or done.stdout

    def by(user: str, file: str | None = None) -> tuple[str, ...]:
        return ("ward", "--as", user, "--password-file", f"{file or user}.txt")

    assert "nobody said who reads" in read("ward")
    assert "wrong user name or password" in read(*by("nina", file="carl"))
    for user in ("carl", "berta"):
        assert f"{user!r} has no role of the view 'ward'" in read(*by(user))
    for user in ("nina", "helga"):
        assert "nothing is published yet" in read(*by(user))
    assert "nothing is published yet" in read("open")
    assert audited(folder, "view.read") == [
        ("denied", "role"),
        ("denied", "password"),
        ("denied", "role"),
        ("denied", "role"),
        *[("allowed", None)] * 3,
    ]


def test_feeding_is_recorded(folder: Path) -> None:
    (folder / "p.csv").write_text("pid\n1\n")
    assert run_command(folder, "views", "feed", "patients", "p.csv").returncode == 0
    refused = run_command(folder, "views", "feed", "patients", "p.csv")
    assert refused.returncode == 2
    assert "already, with 1 record" in refused.stderr
    assert audited(folder, "stream.fed") == [("done", None)]
