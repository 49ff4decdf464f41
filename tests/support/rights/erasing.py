"""An installation with streams, views and a person who asks to be erased."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.config import Config
from penstock.config.settings import folders
from penstock.definitions import DefinitionSet
from penstock.eventlog import EventLog
from penstock.model.document import Document
from penstock.rights.dispatch.message import Dispatched, Notification
from penstock.rights.erasure.service import ErasureService
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.signatures import Signer
from penstock.store.consent import ConsentBook
from penstock.store.database import Database
from penstock.store.opt_outs import SubjectMarks
from penstock.store.rights.erasures import Evidence
from penstock.store.rights.requests import NewRequest, RequestBook
from penstock.store.rights.tables import Sealer
from tests.support.rights.office import HOUR, SECRET

SUBSCRIBER = "penstock"
SIGNER = Signer.generate()
STREAM = {
    "fields": [
        {"name": "pid", "type": "string", "category": "identifier"},
        {"name": "ward", "type": "string"},
        {"name": "pulse", "type": "int"},
    ],
    "subject": "pid",
}
ERASURE = (
    Document("control", "forget", {"stateful": False, "operation": "delete"}),
    Document("control-publisher", "app", {"subjects": ["user:app"], "controls": ["forget"]}),
    Document(
        "control-subscriber", SUBSCRIBER,
        {"control": "forget", "delivery": "built-in", "uri": "penstock:erasure"},
    ),
)  # fmt: skip


class Installation:
    """Settings, store, event log and the built-in service over them."""

    def __init__(
        self,
        folder: Path,
        database: Database,
        *documents: Document,
        signer: Signer = SIGNER,
        **settings: Any,
    ) -> None:
        given = {"rights": {"settle": "0s"}, "broker": {"mode": "external", "port": 1}}
        self.config = Config.model_validate(given | settings, context=folders(folder))
        self.definitions = DefinitionSet.build([*ERASURE, *documents])
        self.database = database
        marks = SubjectMarks(SECRET)
        self.book = RequestBook(database, ConsentBook(database, marks), Sealer(SECRET))
        self.people = Pseudonyms(bytes(32))
        self.audit = AuditLog(database, signer)
        self.service = ErasureService(self.config, self.audit, database, self.people, marks)
        self.events = EventLog(self.config.pipeline.event_log)

    def submit(self, person: str, key: str = "k") -> str:
        """Hand a deletion in."""
        wanted = NewRequest(
            "app", key, "forget", "delete", person, (), {SUBSCRIBER: HOUR}, ()
        )  # fmt: skip
        (made,) = self.book.submit([wanted], 1)
        return made.id

    def erase(self, person: str, key: str = "k", keep: Any = lambda: None) -> Dispatched:
        """Hand a deletion in, and let the service work on it."""
        request = self.submit(person, key)
        told = Notification(request, SUBSCRIBER, "forget", "delete", person, (), 1)
        return self.service.run(told, self.definitions, keep)

    def evidence(self, person: str, key: str = "k") -> Evidence:
        (found,) = self.service.book.evidence(self.submit(person, key))
        return found

    def record(self, stream: str, *rows: dict[str, Any]) -> None:
        values = [json.dumps(row, ensure_ascii=False).encode() for row in rows]
        keys = [str(row.get("pid", "")).encode() for row in rows]
        self.events.topic(stream).append(values, keys)
