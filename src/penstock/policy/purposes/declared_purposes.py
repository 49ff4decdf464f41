"""The purposes that are declared: an access purpose that is none of them is a mistake.

Rules that hold here:
- As long as no purpose is declared, every purpose may be used. From the first declaration
  on a subscription is made for a declared one, or for none.
- That holds for what clients have subscribed to before, too: a purpose that nobody has
  declared, or that is no longer declared, lets nothing pass.
"""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterable

from penstock.errors import quote
from penstock.model.document import Key
from penstock.model.kinds import Purpose

RULE = "declared purposes"
_COMPARED = 1_000


class DeclaredPurposes:
    """The names of the purposes of the present epoch."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        # A dict, because it keeps its order: the first ones are those compared.
        self._names: dict[str, None] = {}

    def take(self, documents: Container[Key], changed: Iterable[Key]) -> None:
        """Take over a set of definitions of which these may differ from what was known."""
        for key in changed:
            if key.kind != Purpose.kind:
                continue
            if key in documents:
                self._names[key.name] = None
            else:
                self._names.pop(key.name, None)

    def admits(self, purpose: str | None) -> bool:
        """Tell whether an access purpose may be used."""
        return purpose is None or not self._names or purpose in self._names

    def object_to(self, purpose: str | None) -> str:
        """Say what is wrong with an access purpose; nothing where it may be used."""
        if purpose is None or self.admits(purpose):
            return ""
        near = self.nearest(purpose)
        fix = f"did you mean {near!r}?" if near else "declare it, or use one that is declared"
        return f"there is no purpose {quote(purpose)} → {fix}"

    def nearest(self, purpose: str) -> str | None:
        """Return the declared purpose that a misspelt one may mean."""
        # Comparing takes long for many names, and anybody may ask.
        some = [name for name, _ in zip(self._names, range(_COMPARED), strict=False)]
        return next(iter(difflib.get_close_matches(purpose, some, n=1)), None)
