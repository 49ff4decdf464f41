"""Who looks at a page, and what the definitions in force let them see.

    administer ─▶ every room, and changes
    monitor: [$console/audit] ─▶ that room; [$console/#] ─▶ every room, to look at

Rules that hold here:
- Who is blocked, or not defined where users have to be, sees nothing.
- Rights are looked up under the definitions of the change feed. Where these may be stale, nothing
  is shown. Roles come and go with time: what was found is used for a few seconds.
- A right to monitor the broker's own topics is not one to see the console, but by its name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.definitions import DefinitionSet
from penstock.definitions.access import find_subjects, list_privileges
from penstock.errors import DeniedError, UnavailableError
from penstock.model import kinds
from penstock.model.topics import matches

_SECONDS: Final = 3.0
_MOST: Final = 1_000


@dataclass(frozen=True, slots=True)
class ConsoleRights:
    """What one user may see and do at the console."""

    known: bool = False
    administers: bool = False
    monitors: tuple[str, ...] = ()
    break_glass: frozenset[str] = frozenset()
    """Scenarios whose situations they may set by hand."""
    detokenize: frozenset[str] = frozenset()
    subjects: frozenset[str] = frozenset()
    """What definitions may call them: their name, groups and roles."""

    def sees(self, room: str) -> bool:
        """Say whether they may see a room."""
        topic = f"$console/{room}"
        return self.known and (self.administers or any(matches(it, topic) for it in self.monitors))


def find_rights(definitions: DefinitionSet, user: str, *, defined_users: bool) -> ConsoleRights:
    """Return what definitions give a user."""
    subjects = find_subjects(definitions, user)
    if not subjects or (defined_users and definitions.get(kinds.User, user) is None):
        return ConsoleRights()
    held = [it for _, who, it in list_privileges(definitions) if not subjects.isdisjoint(who)]
    return ConsoleRights(
        known=True,
        administers=any(it.administer for it in held),
        monitors=tuple(filter_ for it in held for filter_ in it.monitor),
        break_glass=frozenset(name for it in held for name in it.break_glass),
        detokenize=frozenset(name for it in held for name in it.detokenize),
        subjects=subjects,
    )


class RightsCache:
    """What users were found to have, for a few seconds and one epoch."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[str, tuple[str, float, ConsoleRights]] = {}

    def find(self, mark: str, user: str, find: Callable[[], ConsoleRights]) -> ConsoleRights:
        """Return what a user has; `find` looks where it is not known for now."""
        now = self._clock()
        with self._lock:
            held = self._held.get(user)
        if held is not None and held[0] == mark and now - held[1] < _SECONDS:
            return held[2]
        found = find()
        with self._lock:
            if len(self._held) >= _MOST:
                self._held.clear()
            self._held[user] = (mark, now, found)
        return found


class HiddenError(DeniedError):
    """Something that is not for this person."""


class MissingError(DeniedError):
    """Something that is not there, or not for this person: nobody learns which."""


class NobodyError(UnavailableError):
    """Nobody is signed in."""
