"""What a command line loads: in a fresh process, by the names of modules, never by the clock."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_lab.bench.startup import COMMANDS, DEFINITIONS
from tests.support.commands import run_command

LARGE = frozenset({
    "alembic", "argon2", "confluent_kafka", "deltalake", "fastavro", "matplotlib", "numpy",
    "opendp", "paho", "pandas", "psycopg", "pyarrow", "pyspark", "starlette", "uvicorn", "uvloop",
    "websockets",
})  # fmt: skip
"""What no command needs that only asks the store."""
LIBRARIES = LARGE | {
    "cryptography", "prometheus_client", "pydantic", "re2", "sqlalchemy", "structlog", "yaml",
}  # fmt: skip
"""What the help of a verb does without."""
OURS = frozenset({
    "cep", "config", "definitions", "eventlog", "gateway", "kafka", "lang", "masks", "model",
    "mqtt", "pipeline", "policy", "rights", "server", "supervisor", "telemetry",
})  # fmt: skip

# Prints after each command line which packages it was the first to load.
LOADED = """
import contextlib, io, json, sys
from penstock.cli import main
known = set()
for words in json.loads(sys.argv[1]):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main(words)
    found = {".".join(name.split(".")[: 2 if name.startswith("penstock.") else 1])
             for name in list(sys.modules)}
    print(json.dumps([words, sorted(found - known)]))
    known |= found
"""


def load(folder: Path, *command_lines: tuple[str, ...]) -> dict[tuple[str, ...], set[str]]:
    """Run command lines one after another in one process, and return what each one loaded."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, json.dumps(command_lines)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {tuple(words): set(found) for words, found in lines}


def find_verbs() -> list[tuple[str, ...]]:
    """Return every verb, and every verb of a group of verbs."""
    import click  # noqa: PLC0415

    from penstock.cli.entry import VERBS, penstock  # noqa: PLC0415

    context = click.Context(penstock)
    found: list[tuple[str, ...]] = [()]
    for name in VERBS:
        command = penstock.get_command(context, name)
        found.append((name,))
        if isinstance(command, click.Group):
            found += [(name, below) for below in command.list_commands(context)]
    return found


def test_help_loads_no_library_but_that_of_the_command_line(tmp_path: Path) -> None:
    loaded = load(tmp_path, *((*verb, "--help") for verb in find_verbs()))
    heavy = LIBRARIES | {f"penstock.{name}" for name in OURS}
    assert {words: found & heavy for words, found in loaded.items() if found & heavy} == {}


# The audit log signs and logs what `apply` changed; masks of views encrypt.
NEEDS_NOT: dict[str, set[str]] = {
    "check": {"prometheus_client", "structlog", "penstock.gateway"},
    "get": {"cryptography", "penstock.definitions", "penstock.lang", "prometheus_client"},
    "apply": {"penstock.gateway", "penstock.pipeline"},
    "status": {"cryptography", "penstock.definitions", "penstock.model", "prometheus_client"},
    "views list": {"prometheus_client", "structlog", "penstock.gateway"},
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_loads_what_it_needs(name: str, tmp_path: Path) -> None:
    (tmp_path / "definitions.yaml").write_text(DEFINITIONS)
    assert run_command(tmp_path, "apply", "-f", "definitions.yaml").returncode == 0
    (found,) = load(tmp_path, COMMANDS[name]).values()
    assert found & (LARGE | NEEDS_NOT[name]) == set()


def test_without_views_and_events_nothing_of_theirs_is_loaded(tmp_path: Path) -> None:
    purposes = "kind: purpose\nname: care\n"
    (tmp_path / "definitions.yaml").write_text(purposes)
    (found,) = load(tmp_path, ("apply", "-f", "definitions.yaml")).values()
    assert found & {"penstock.masks", "penstock.cep", "penstock.eventlog"} == set()
