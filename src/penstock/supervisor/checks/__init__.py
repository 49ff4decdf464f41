"""Whether this machine has what an installation needs: the findings of `penstock doctor`.

Each module looks at one thing and yields findings. None of them changes anything: no
file is made, no table is upgraded, no port stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.config import Config
from penstock.supervisor.checks import access, clock, folders, network, programs, secrets, store
from penstock.supervisor.checks.finding import Finding, Verdict
from penstock.supervisor.part import Part

Look = Callable[[Config, list[Part]], Iterator[Finding]]

LOOKS: tuple[Look, ...] = (
    programs.look,
    folders.look,
    secrets.look,
    store.look,
    network.look,
    access.look,
    clock.look,
)


def examine(config: Config, parts: list[Part]) -> list[Finding]:
    """Look at everything; return the findings in the order in which to mend them."""
    return [finding for look in LOOKS for finding in look(config, parts)]


__all__ = ["LOOKS", "Finding", "Look", "Verdict", "examine"]
