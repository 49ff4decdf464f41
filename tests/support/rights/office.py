"""A store with one control and one service, and a worker whose clock the test moves."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.config import Config
from penstock.config.settings import folders
from penstock.definitions import DefinitionSet
from penstock.model.document import Document
from penstock.rights.dispatch import Channels, open_caller
from penstock.rights.notices import NoticeSender
from penstock.rights.worker import RightsWorker
from penstock.store.consent import ConsentBook
from penstock.store.database import Database
from penstock.store.opt_outs import SubjectMarks
from penstock.store.rights.requests import NewRequest, RequestBook
from penstock.store.rights.tables import Sealer

SECRET = bytes(range(32))
HOUR = timedelta(hours=1)


def configure(folder: Path | None = None, **rights: Any) -> Config:
    """Return settings under which services on this machine are told."""
    settings = {"networks": ["127.0.0.0/8"], "timeout": 0.5} | rights
    return Config.model_validate({"rights": settings}, context=folders(folder or Path.cwd()))


class Office:
    """A front end `app`, a control `forget`, and a service `crm` that is told of one request."""

    def __init__(
        self,
        database: Database,
        uri: str,
        *,
        config: Config | None = None,
        publisher: dict[str, Any] | None = None,
        contact: dict[str, str] | None = None,
        **changed: Any,
    ) -> None:
        self.now = datetime.now(UTC)
        body = {
            "subjects": ["user:crm"], "control": "forget", "uri": uri, "time_to_honor": "1h",
            "send_retries": 2, "deadline_retries": 1, "retry_gap": "10s",
        } | changed  # fmt: skip
        front = {"subjects": ["user:app"], "controls": ["forget"]} | (publisher or {})
        self.definitions = DefinitionSet.build(
            [
                Document("control", "forget", {"stateful": False, "operation": "delete"}),
                Document("control-publisher", "app", front),
                Document("control-subscriber", "crm", body),
            ]
        )
        clock: Callable[[], datetime] = lambda: self.now  # noqa: E731 - the test moves it
        consent = ConsentBook(database, SubjectMarks(SECRET))
        self.book = RequestBook(database, consent, Sealer(SECRET), clock=clock)
        settings = config or configure()
        self.channels = Channels.open(settings, SECRET)
        self.worker = RightsWorker(
            self.book,
            lambda: self.definitions,
            self.channels,
            NoticeSender.open(settings, SECRET, open_caller(settings)),
            clock=clock,
            draw=lambda: 1.0,
        )
        if contact:
            self.book.profiles.set_contact("app", "ann", contact)
        notify = tuple(front.get("notify", ()))
        request = NewRequest("app", "k", "forget", "delete", "ann", (), {"crm": HOUR}, (), notify)
        (self.accepted,) = self.book.submit([request], 1)

    def work(self, **later: float) -> int:
        self.now += timedelta(**later)
        return self.worker.run_once()

    def look(self) -> tuple[str, str, str]:
        shown = self.book.show(self.accepted.id)
        assert shown is not None
        (row,) = shown[1]
        return shown[0].status, row.status, row.trouble

    def notices(self) -> list[tuple[str, str, bool, str]]:
        """Return kind, channel, whether it was sent, and trouble."""
        found = self.book.outbox.of(self.accepted.id)
        return [(it.kind, it.channel, it.sent is not None, it.trouble) for it in found]
