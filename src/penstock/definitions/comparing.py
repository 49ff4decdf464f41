"""Compares sets of documents: what would be created, updated, deleted, and how."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from penstock.definitions.writing import write_yaml
from penstock.model.document import Document, Key


@dataclass(frozen=True, slots=True)
class Difference:
    """How one definition differs between two sets."""

    key: Key
    before: Document | None
    after: Document | None

    @property
    def action(self) -> Literal["create", "update", "delete"]:
        """What leads from before to after."""
        if self.before is None:
            return "create"
        return "update" if self.after is not None else "delete"

    def lines(self) -> list[str]:
        """Return the difference as lines that begin with `+`, `-` or a blank."""
        before = write_yaml([self.before]).splitlines() if self.before else []
        after = write_yaml([self.after]).splitlines() if self.after else []
        shown = difflib.unified_diff(before, after, lineterm="", n=2)
        return [line for line in shown if not line.startswith(("---", "+++", "@@"))]


def differences(before: Mapping[Key, Document], after: Mapping[Key, Document]) -> list[Difference]:
    """Return what differs between two sets, in the order of their keys."""
    found = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old is None or new is None or old.canonical() != new.canonical():
            found.append(Difference(key, old, new))
    return found


def after_applying(
    before: Mapping[Key, Document], put: Iterable[Document], *, prune: Iterable[str] = ()
) -> dict[Key, Document]:
    """Return the set after applying documents; of the kinds in `prune` only these stay."""
    gone = set(prune)
    after = {key: document for key, document in before.items() if key.kind not in gone}
    after.update({document.key: document for document in put})
    return after
