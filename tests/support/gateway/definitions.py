"""Definitions in the store of a gateway, put and looked at beside it."""

from __future__ import annotations

from penstock.config import Config
from penstock.model.document import Document, Key
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions


def apply(config: Config, documents: list[Document]) -> None:
    """Apply definitions, as an officer would."""
    config.data.mkdir(parents=True, exist_ok=True)
    with Database.open(config.store.connection_url()) as database:
        CheckedDefinitions(Definitions(database)).apply(documents, actor="test", reason="")


def stored(config: Config) -> dict[Key, Document]:
    """Return what is stored now."""
    with Database.open(config.store.connection_url()) as database:
        return dict(Definitions(database).snapshot().documents)
