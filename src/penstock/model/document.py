"""A document: one definition as a person wrote it, before any model gives it meaning.

Rules that hold here:
- `kind` and `name` together name a definition; a set holds each such pair once.
- The body is JSON data. Two documents are the same when their canonical JSON is the
  same: key order and notation (YAML or JSON) never matter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple

KIND: Final = attrgetter("kind")
"""Returns the kind of a key or a document."""


class Key(NamedTuple):
    """What names a definition."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


@dataclass(frozen=True, slots=True)
class Document:
    """A definition as data: kind, name, and the rest of its fields."""

    kind: str
    name: str
    body: Mapping[str, Any]

    @property
    def key(self) -> Key:
        """What names this definition."""
        return Key(self.kind, self.name)

    def canonical(self) -> str:
        """Return the body as canonical JSON: the form that is stored and compared."""
        return json.dumps(self.body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def fields(self) -> dict[str, Any]:
        """Return all fields in the order a reader expects: kind, name, the rest."""
        return {"kind": self.kind, "name": self.name, **self.body}
