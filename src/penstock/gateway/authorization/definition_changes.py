"""What changes of definitions concern."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.gateway.authorization.rules import PRESUBSCRIPTION, RESERVATION
from penstock.model.document import Key
from penstock.model.kinds import Concern, kinds_of
from penstock.store.definitions.snapshots import Snapshot

_DECIDING = kinds_of(Concern.PURPOSES) - {PRESUBSCRIPTION}

COMPARED = 64
"""With how many changed filters others are compared; beyond that, trying out is cheaper."""


def concerned_filters(changed: Iterable[Key]) -> tuple[str, ...] | None:
    """Return the filters that changes concern; None where that is all, or too many to compare."""
    keys = [key for key in changed if key.kind in _DECIDING]
    if len(keys) > COMPARED or any(key.kind != RESERVATION for key in keys):
        return None
    return tuple(key.name for key in keys)


def differing(held: Snapshot, snapshot: Snapshot) -> list[Key]:
    """Return the keys of what is not the same in two sets of definitions."""
    before, now = held.documents, snapshot.documents
    changed = [key for key, document in now.items() if before.get(key) != document]
    return [*changed, *(key for key in before if key not in now)]
