"""Gateways that note how long their decisions take, as processes of a measurement.

Rules that hold here:
- Definitions are in the store before a gateway starts, so that no measurement contains the
  making of its rules.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from penstock.components import processes
from penstock.model.document import Document
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions


def store_definitions(folder: Path, documents: Iterable[Document]) -> None:
    """Store what the gateways of a folder go by."""
    folder.mkdir(parents=True, exist_ok=True)
    with Database.open(_url(folder)) as database:
        checked = CheckedDefinitions(Definitions(database))
        checked.apply(list(documents), actor="bench", reason="rules of a measurement")


def _url(folder: Path) -> str:
    return f"sqlite:///{folder / 'penstock.db'}"


class TimedGateway:
    """The gateway of `timed_gateway`, for as long as the `with` block lasts.

    Gateways that have the folder of the store in common are gateways of one home.
    """

    def __init__(self, folder: Path, broker_port: int, common: Path) -> None:
        self.port = processes.free_port()
        self._folder = folder
        self._report = folder / "report.json"
        folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "data": str(folder),
            "log": {"level": "warning"},
            "monitor": {"enabled": False},
            "store": {"url": _url(common)},
            "audit": {
                "signing_key": str(common / "signing.key"),
                "pseudonym_key": str(common / "pseudonym.key"),
            },
            "broker": {"mode": "external", "host": "127.0.0.1", "port": broker_port},
            "gateway": {
                "listeners": {"mqtt": {"port": self.port}},
                "authentication": {"relay": True},
                "limits": {"connect_timeout": "60s"},
            },
        }
        (folder / "penstock.yaml").write_text(json.dumps(settings))

    def __enter__(self) -> Self:
        module = "penstock_lab.bench.emergencies.timed_gateway"
        self._process = processes.start(
            [sys.executable, "-m", module, str(self._folder / "penstock.yaml"), str(self._report)],
            log=self._folder / "gateway.log",
            ready=lambda: processes.accepts(self.port),
        )
        return self

    def __exit__(self, *_: object) -> None:
        processes.stop(self._process)

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process.pid

    def toggle_profile(self) -> None:
        """Let it begin, or end, to look where its CPU time goes."""
        os.kill(self.pid, signal.SIGRTMIN)

    async def begin(self) -> None:
        """Let the gateway forget what it noted; return when it has."""
        os.kill(self.pid, signal.SIGUSR1)
        await self.report()

    async def report(self) -> dict[str, Any]:
        """Return what the gateway noted since `begin`."""
        self._report.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR2)
        while not self._report.exists():  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.02)
        found: dict[str, Any] = json.loads(self._report.read_text())
        return found
