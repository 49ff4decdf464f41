"""What other distributions add to the command line, found through entry points.

Rules that hold here:
- Nothing is imported before it is used: `penstock --help` reads metadata alone.
- A plug-in that is missing or broken is an error when it is asked for, with the fix;
  everything else goes on working.
- A verb of Penstock's own is never replaced (`entry` asks here for the others only).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final, TypeVar

from penstock.errors import UnavailableError, quote

COMMANDS: Final = "penstock.commands"
"""Verbs: the name of the verb, and the click command that carries it out."""
SIMULATIONS: Final = "penstock.simulations"
"""Made-up houses: `forecast train` learns from the one called `nursing-home`."""
LAB: Final = "penstock-lab"

T = TypeVar("T")


def find_plugins(group: str) -> Mapping[str, EntryPoint]:
    """Return the plug-ins of a group by name; of two of one name the first on the path."""
    return {it.name: it for it in reversed(entry_points(group=group))}


def load_plugin(group: str, name: str, kind: type[T]) -> T:
    """Import what a plug-in provides, which is to be of this kind."""
    found = find_plugins(group).get(name)
    if found is None:
        raise UnavailableError(
            f"{quote(name)} is part of {LAB}, which is not installed", fix=f"pip install {LAB}"
        )
    try:
        loaded = found.load()
        if not isinstance(loaded, kind):
            raise TypeError(f"{found.value} is no {kind.__name__}")  # noqa: TRY301
    except Exception as error:
        if os.environ.get("PENSTOCK_DEBUG"):
            raise
        provider = found.dist.name if found.dist else found.module
        raise UnavailableError(
            f"{quote(name)} of {provider} cannot be loaded: {type(error).__name__}: {error}",
            fix=f"pip install --force-reinstall {provider}",
        ) from error
    return loaded
