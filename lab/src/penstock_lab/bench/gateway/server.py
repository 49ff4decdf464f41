"""A gateway as a process of its own, in front of a given broker, with given definitions.

Rules that hold here:
- The process is what an operator runs, `penstock gateway`, with a configuration file.
- Definitions are in the store before the gateway starts, so that no measurement contains
  the making of its rules.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.components import processes
from penstock.errors import UnavailableError
from penstock.model.document import Document
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from penstock_lab.bench.load.generator import raise_descriptor_limit

_RUN = "import sys; from penstock.cli import main; main(sys.argv[1:])"
DESCRIPTORS = 65_536


class GatewayServer(processes.Server):
    """A gateway that lives as long as the `with` block."""

    def __init__(
        self,
        folder: Path,
        broker_port: int,
        *,
        documents: Sequence[Document] = (),
        store_url: str | None = None,
        keys: Path | None = None,
        lanes: int | None = None,
    ) -> None:
        """Prepare a gateway; those that share a store share the keys of its audit log too."""
        self.folder = folder
        self._keys = keys or folder / "keys"
        self.port = processes.free_port()
        self._broker_port = broker_port
        self._lanes = {} if lanes is None else {"lanes": lanes}
        self._documents = documents
        self._store_url = store_url or f"sqlite:///{folder / 'penstock.db'}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the running gateway."""
        if self._process is None:
            raise UnavailableError("the gateway is not running", fix="call start() first")
        return self._process.pid

    def start(self) -> None:
        """Store the definitions, start the gateway, and wait until it accepts clients."""
        raise_descriptor_limit(DESCRIPTORS)
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._documents:
            with Database.open(self._store_url) as database:
                checked = CheckedDefinitions(Definitions(database))
                checked.apply(self._documents, actor="bench", reason="rules of a measurement")
        configuration = self.folder / "penstock.yaml"
        configuration.write_text(json.dumps(self._settings()))
        self._process = processes.start(
            [sys.executable, "-c", _RUN, "--config", str(configuration), "gateway"],
            log=self.folder / "gateway.log",
            ready=lambda: processes.accepts(self.port),
        )

    def stop(self) -> None:
        """Stop the gateway in order."""
        if self._process:
            processes.stop(self._process)
            self._process = None

    def _settings(self) -> dict[str, Any]:
        return {
            "data": str(self.folder),
            "log": {"level": "warning"},
            "monitor": {"enabled": False},
            "store": {"url": self._store_url},
            "audit": {
                "signing_key": str(self._keys / "audit-signing.key"),
                "pseudonym_key": str(self._keys / "pseudonym.key"),
            },
            "consent": {"key": str(self._keys / "consent.key")},
            "broker": {"mode": "external", "host": "127.0.0.1", "port": self._broker_port},
            "gateway": {
                "open_mode": True,
                **self._lanes,
                "listeners": {"mqtt": {"port": self.port}},
                "authentication": {"anonymous": True},
                "limits": {
                    "connections": DESCRIPTORS,
                    "connections_per_address": DESCRIPTORS,
                    "unauthenticated": DESCRIPTORS,
                    "unauthenticated_per_address": DESCRIPTORS,
                    "connect_timeout": "60s",
                },
            },
        }
