"""Finds the names of rules that stand in the audit log as pseudonyms.

Rules that hold here:
- A name is found by computing the pseudonyms of all that was defined at the epoch of an entry,
  and just before it, with the key. What never was defined, such as the filter of a refused
  subscription, stays a pseudonym; and so do people.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.definitions.access import RULE_KINDS, name_rule
from penstock.definitions.set import DefinitionSet
from penstock.kafka.acls import WantedAccess
from penstock.model.kinds import Reservation, Right, Role
from penstock.policy.purposes.explanations import name_reservation
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.reader import Recorded
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions

EPOCHS_LIMIT = 100


def find_names(
    database: Database, people: Pseudonyms, entries: Iterable[Recorded]
) -> dict[str, str]:
    """Return the rules of these entries, of their newest epochs, by how the log names them."""
    history = CheckedDefinitions(Definitions(database))
    newest = history.definitions.snapshot().epoch
    told = {it.entry.epoch for it in entries if it.entry.rule is not None and it.entry.epoch}
    epochs = {epoch for it in told for epoch in (it - 1, it) if 0 <= epoch <= newest}
    names: dict[str, str] = {}
    for epoch in sorted(epochs)[-EPOCHS_LIMIT:]:
        for text in _texts(history.meaning(history.definitions.snapshot_at(epoch))):
            if text.isprintable():
                names[people.rule(text) or text] = text
    return names


def _texts(definitions: DefinitionSet) -> Iterator[str]:
    yield from (name_rule(key) for key in definitions.definitions if key.kind in RULE_KINDS)
    yield from (f"right/{name}" for name in definitions.of(Right))
    yield from (f"role {name}" for name in definitions.of(Role))
    for name, held in definitions.of(Reservation).items():
        yield name_reservation(name, held.purposes)
    wanted = WantedAccess(definitions)
    for user in wanted.users:
        yield from (str(acl) for acl in wanted.acls(user))
