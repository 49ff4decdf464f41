"""Where demonstrations play: a broker, and the gateway as a process in front of it.

Rules that hold here:
- Everything lives in a temporary folder on this machine, and is gone with the `with` block.
- Users have passwords: drawn for this one time, and known to the demonstration alone.
"""

from __future__ import annotations

import json
import secrets
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argon2 import PasswordHasher

from penstock.components import MosquittoServer, processes
from penstock.config import load
from penstock.model.document import Document
from penstock.store.audit.signatures import Signer
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from penstock.telemetry import configure

_RUN = "import sys; from penstock.cli import main; main(sys.argv[1:])"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the demonstration runs."""

    port: int
    store_url: str
    passwords: dict[str, str]
    configuration: Path


@contextmanager
def set_up(
    users: Iterable[str],
    documents: Sequence[Document],
    sections: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[Place]:
    """Run a broker and a gateway with these users and definitions, and further settings."""
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as name, ExitStack() as stack:
        folder = Path(name)
        broker = stack.enter_context(MosquittoServer(folder / "broker", persistent=False))
        store_url = f"sqlite:///{folder / 'penstock.db'}"
        passwords = {user: secrets.token_urlsafe(12) for user in users}
        write_passwords(folder / "passwords", passwords)
        port = processes.free_port()
        configuration = _configure(folder, broker, port, sections or {})
        signer = None
        if any(it.kind == "appointment" for it in documents):
            configure(level="error")  # the key is new, and nobody has to keep it
            signer = Signer.open(load(configuration, {}).audit.signing_key)
        with Database.open(store_url) as database:
            checked = CheckedDefinitions(Definitions(database), signer=signer)
            checked.apply(documents, actor="demo", reason="a demonstration")
        start_gateway(stack, configuration, port)
        yield Place(port, store_url, passwords, configuration)


def start_gateway(stack: ExitStack, configuration: Path, port: int) -> None:
    """Run a gateway until the stack ends; return when it accepts connections."""
    process = processes.start(
        [sys.executable, "-c", _RUN, "--config", str(configuration), "gateway"],
        log=configuration.with_name("gateway.log"),
        ready=lambda: processes.accepts(port),
    )
    stack.callback(processes.stop, process)


def write_passwords(path: Path, passwords: dict[str, str]) -> None:
    """Write the file of passwords of a gateway."""
    # Cheap hashes: the passwords are random and live as long as the demonstration.
    hasher = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
    path.touch(mode=0o600)
    path.write_text("".join(f"{user}:{hasher.hash(word)}\n" for user, word in passwords.items()))


def _configure(
    folder: Path, broker: MosquittoServer, port: int, sections: Mapping[str, Mapping[str, Any]]
) -> Path:
    settings = {
        "data": str(folder),
        "log": {"level": "warning"},
        "monitor": {"enabled": False},
        "store": {"url": f"sqlite:///{folder / 'penstock.db'}"},
        "broker": {"mode": "external", "host": "127.0.0.1", "port": broker.port},
        "gateway": {
            "listeners": {"mqtt": {"port": port}},
            "authentication": {"passwords": str(folder / "passwords")},
        },
        **sections,
    }
    path = folder / "penstock.yaml"
    path.write_text(json.dumps(settings))
    return path
