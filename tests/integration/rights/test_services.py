"""Services over real HTTP: told, followed up, and never a way into the network."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.definitions import DefinitionSet
from penstock.model.document import Document
from penstock.rights.dispatch.http import HttpDispatcher
from penstock.rights.dispatch.message import (
    Notification,
    derive_key,
    verify,
)
from penstock.rights.worker import RightsWorker
from penstock.store.consent import ConsentBook
from penstock.store.database import Database
from penstock.store.opt_outs import SubjectMarks
from penstock.store.rights.progress import ProgressEvent, ProgressStatus, RequestStatus
from penstock.store.rights.requests import NewRequest, RequestBook
from penstock.store.rights.sealing import Sealer
from tests.support.rights.service import Service, serving

SECRET = bytes(range(32))
LOOPBACK = [ipaddress.ip_network("127.0.0.0/8")]


@pytest.fixture
def service() -> Iterator[Service]:
    with serving() as running:
        yield running


class Office:
    """A store with one control and one service, and a worker whose clock the test moves."""

    def __init__(self, database: Database, uri: str, **changed: Any) -> None:
        self.now = datetime.now(UTC)
        body = {
            "subjects": ["user:crm"], "control": "forget", "uri": uri, "time_to_honor": "1h",
            "send_retries": 2, "deadline_retries": 1, "retry_gap": "10s",
        } | changed  # fmt: skip
        self.definitions = DefinitionSet.build(
            [
                Document("control", "forget", {"stateful": False, "operation": "delete"}),
                Document("control-subscriber", "crm", body),
            ]
        )
        clock: Callable[[], datetime] = lambda: self.now  # noqa: E731 - the test moves it
        consent = ConsentBook(database, SubjectMarks(SECRET))
        self.book = RequestBook(database, consent, Sealer(SECRET), clock=clock)
        self.alerts: list[tuple[str, str]] = []
        self.worker = RightsWorker(
            self.book,
            lambda: self.definitions,
            HttpDispatcher(SECRET, allowed=LOOPBACK, timeout=0.5),
            lambda name, _, code: self.alerts.append((name, code)),
            clock=clock,
            draw=lambda: 1.0,
        )
        request = NewRequest("app", "k", "forget", "delete", "ann", (), ("crm",), ())
        (self.accepted,) = self.book.submit([request], 1)

    def work(self, **later: float) -> int:
        self.now += timedelta(**later)
        return self.worker.run_once()

    def look(self) -> tuple[str, str, str]:
        shown = self.book.show(self.accepted.id)
        assert shown is not None
        (row,) = shown[1]
        return shown[0].status, row.status, row.trouble


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path / 'store.db'}") as opened:
        yield opened


def test_a_service_is_told_signed_and_completes(database: Database, service: Service) -> None:
    office = Office(database, service.uri)
    assert office.work() == 1
    ((told, signature, body),) = service.told
    assert told == {
        "request": office.accepted.id, "subscriber": "crm", "control": "forget",
        "action": "delete", "subject": "ann", "categories": [], "attempt": 1,
    }  # fmt: skip
    key, now = derive_key(SECRET, "crm"), int(time.time())
    assert verify(key, signature, body, now)
    assert not verify(key, signature, body + b" ", now)
    assert not verify(key, signature, body, now + 301)
    assert not verify(derive_key(SECRET, "mail"), signature, body, now)
    assert not verify(key, "t=x,v1=", body, now)
    assert office.look() == (RequestStatus.INPROGRESS, ProgressStatus.SENT, "")
    assert office.work(minutes=59) == 0
    office.book.note(office.accepted.id, "crm", ProgressEvent.ACKNOWLEDGED)
    office.book.note(office.accepted.id, "crm", ProgressEvent.COMPLETED)
    assert office.look()[0] == RequestStatus.COMPLETED
    assert office.work(days=30) == 0
    assert len(service.told) == 1


def test_an_answer_of_a_synchronous_service_completes(database: Database, service: Service) -> None:
    service.status = 200
    office = Office(database, service.uri, delivery="http-sync")
    office.work()
    assert office.look() == (RequestStatus.COMPLETED, ProgressStatus.COMPLETED, "")


@pytest.mark.parametrize("status", [500, 404, 302])
def test_waits_grow_until_it_is_given_up_and_somebody_alerted(
    database: Database, service: Service, status: int
) -> None:
    service.status = status
    office = Office(database, service.uri)
    assert [office.work(seconds=it) for it in (0, 9, 1.1, 19, 1.1)] == [1, 0, 1, 0, 1]
    code = f"http-{status}"
    assert office.look() == (RequestStatus.SOMEFAILED, ProgressStatus.SENDFAILED, code)
    assert office.alerts == [("crm", code)]
    assert office.work(days=400) == 0
    assert [told["attempt"] for told, _, _ in service.told] == [1, 2, 3]
    service.status = 202
    assert office.book.redrive([(office.accepted.id, "crm")]) == 1
    assert office.work() == 1
    assert office.look()[1] == ProgressStatus.SENT


def test_an_overdue_service_is_told_again_and_then_fails(
    database: Database, service: Service
) -> None:
    office = Office(database, service.uri)
    office.work()
    assert office.work(minutes=61) == 1  # overdue
    assert office.work() == 1  # told again
    assert office.look() == (RequestStatus.INPROGRESS, ProgressStatus.SENT, "")
    assert office.work(minutes=61) == 1
    assert office.look() == (RequestStatus.SOMEFAILED, ProgressStatus.FAILED, "overdue")
    assert office.alerts == [("crm", "overdue")]
    assert len(service.told) == 2
    office.book.note(office.accepted.id, "crm", ProgressEvent.COMPLETED)  # late
    assert office.look()[0] == RequestStatus.COMPLETED


def test_a_slow_or_absent_service_fails_in_time(database: Database, service: Service) -> None:
    service.delay = 2.0
    office = Office(database, service.uri)
    office.work()
    assert office.look()[2] == "timeout"
    with serving() as gone:
        uri = gone.uri
    other = Office(Database.open(f"{database.address.shown}2"), uri)
    other.work()
    assert other.look()[2] == "unreachable"


def test_a_service_that_is_gone_from_the_definitions_fails(
    database: Database, service: Service
) -> None:
    office = Office(database, service.uri)
    office.definitions = DefinitionSet.empty()
    office.work()
    assert office.look()[1:] == (ProgressStatus.SENDFAILED, "not-defined")
    assert office.alerts == [("crm", "not-defined")]


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "10.0.0.1", "169.254.169.254",
     "192.168.1.1", "0.0.0.0",  # noqa: S104
     "[fe80::1]", "[fd00::1]", "224.0.0.1", "100.64.0.1", "2130706433"],
)  # fmt: skip
def test_no_uri_leads_into_the_network(host: str) -> None:
    """No packet is sent: the address is refused before anything connects."""
    dispatcher = HttpDispatcher(SECRET, timeout=0.5)
    told = Notification("r", "s", "c", "delete", "ann", (), 1)
    made = dispatcher.send(f"http://{host}:1/", told, synchronous=False)
    assert made.trouble in {"address-refused", "unreachable"}
    assert made.trouble == "address-refused" or host == "[fe80::1]"
