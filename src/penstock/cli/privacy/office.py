"""What the verbs on privacy requests stand on: the broker of this installation, opened for a user.

Rules that hold here:
- Whoever asks proves who they are with the password that the gateway knows them by.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli.session import (
    authenticate,
    believe_appointments,
    configuration,
    open_database,
    refuse_missing_store,
)

if TYPE_CHECKING:
    from penstock.rights.broker import PrivacyBroker
    from penstock.store.audit.log import AuditLog
    from penstock.store.definitions.checked import CheckedDefinitions


class Office(NamedTuple):
    """What the verbs need: the broker, and what it stands on."""

    broker: PrivacyBroker
    checked: CheckedDefinitions
    secret: bytes
    log: AuditLog


@contextmanager
def open_office(user: str, password_file: Path | None) -> Iterator[Office]:
    """Open the office for a user who has proved who they are."""
    with open_store() as office:
        if not authenticate(configuration(), user, password_file):
            raise office.broker.deny(user, "wrong user name or password")
        yield office


@contextmanager
def open_store() -> Iterator[Office]:
    """Open the office for a worker, which asks for nobody."""
    from penstock.rights.broker import PrivacyBroker
    from penstock.store.audit.log import AuditLog
    from penstock.store.audit.pseudonyms import Pseudonyms
    from penstock.store.consent import ConsentBook
    from penstock.store.definitions.checked import CheckedDefinitions
    from penstock.store.definitions.history import Definitions
    from penstock.store.rights.requests import RequestBook
    from penstock.store.rights.sealing import Sealer
    from penstock.telemetry import configure

    config = configuration()
    refuse_missing_store(config)
    configure(level=config.log.level, style="console")
    with open_database(config) as database:
        trusts = believe_appointments(config)
        checked = CheckedDefinitions(Definitions(database), trusts=trusts)
        snapshot, definitions = checked.current()
        consent = ConsentBook.open(database, config.consent.key)
        secret = config.consent.key.read()
        book = RequestBook(database, consent, Sealer(secret))
        log = AuditLog.open(database, config.audit.signing_key)
        try:
            people = Pseudonyms.open(config.audit.pseudonym_key)
            broker = PrivacyBroker(book, log, people, definitions, snapshot.epoch)
            yield Office(broker, checked, secret, log)
        finally:
            log.close()
