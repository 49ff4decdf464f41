"""Checks of a set of definitions, by what they look at.

Rules that hold here:
- A check yields every problem that it finds, each with its place and its fix; none stops
  at the first.
- Nothing here reads files or keeps state: what is given is all that is looked at.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.model.definition import Steps
from penstock.model.document import Key

Locate = Callable[[Key, Steps], str]
"""Tells where the value at a path of a definition stands."""


def locate_by_key(key: Key, path: Steps) -> str:
    """Return the place of a value whose file is not known: the definition and the path."""
    return ".".join([str(key), *map(str, path)])
