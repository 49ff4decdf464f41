"""Services over real HTTP: told, followed up, and never a way into the network."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.definitions import DefinitionSet
from penstock.model.document import Document
from penstock.rights.dispatch.http import Caller
from penstock.rights.dispatch.message import Dispatched, derive_key, verify
from penstock.store.database import Database
from penstock.store.rights.requests import NewRequest
from penstock.store.rights.tables import (
    ProgressEvent,
    ProgressStatus,
    RequestStatus,
    requests_table,
)
from tests.support.rights.office import HOUR, SECRET, Office
from tests.support.rights.service import Service, serving

LOOPBACK = [ipaddress.ip_network("127.0.0.0/8")]


@pytest.fixture
def service() -> Iterator[Service]:
    with serving() as running:
        yield running


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
    assert office.work(minutes=61) == 1  # overdue: told again
    assert office.look() == (RequestStatus.INPROGRESS, ProgressStatus.SENT, "")
    assert office.work(minutes=61) == 1
    assert office.look() == (RequestStatus.SOMEFAILED, ProgressStatus.FAILED, "overdue")
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


def test_a_request_that_somebody_tampered_with_fails_alone(
    database: Database, service: Service
) -> None:
    office = Office(database, service.uri, contact_email="crm-team@example.com")
    wanted = NewRequest("app", "other", "forget", "delete", "ben", (), {"crm": HOUR}, ())
    (other,) = office.book.submit([wanted], 1)
    with database.write() as connection:
        own = requests_table.c.id == office.accepted.id
        connection.execute(requests_table.update().where(own).values(sealed=b"x" * 40))
    office.work()
    assert office.look() == (RequestStatus.SOMEFAILED, ProgressStatus.SENDFAILED, "sealed")
    assert [it[:2] for it in office.notices()] == [("alert", "email")]
    assert [it[0]["request"] for it in service.told] == [other.id]


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "10.0.0.1", "169.254.169.254",
     "192.168.1.1", "0.0.0.0",  # noqa: S104
     "[fe80::1]", "[fd00::1]", "224.0.0.1", "100.64.0.1", "2130706433",
     # IPv6 that carries an IPv4 address, or is no global unicast address.
     "[64:ff9b::7f00:1]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]",
     "[::7f00:1]", "[::ffff:0:7f00:1]", "[fec0::1]", "[2001:0:7f00:1::]", "192.88.99.1"],
)  # fmt: skip
def test_no_uri_leads_into_the_network(host: str) -> None:
    """No packet is sent: the address is refused before anything connects."""
    made = Caller(timeout=0.5).post(f"http://{host}:1/", b"{}", {})
    assert isinstance(made, Dispatched)
    assert made.trouble in {"address-refused", "unreachable"}
    assert made.trouble == "address-refused" or host == "[fe80::1]"


def test_nothing_crosses_a_network_in_clear_that_is_not_ones_own() -> None:
    """No packet is sent: an identifier is in every call."""
    own = Caller(allowed=[ipaddress.ip_network("10.0.0.0/8")], timeout=0.5)
    for uri in ("http://1.1.1.1:1/", "http://[2606:4700::1]:1/"):
        made = own.post(uri, b"{}", {})
        assert isinstance(made, Dispatched)
        assert made.trouble == "not-encrypted"


@pytest.mark.parametrize("host", ["1.1.1.1", "2606:4700::1", "64:ff9b::101:101"])
def test_public_addresses_may_be_called(host: str) -> None:
    assert Caller()._may_reach(host)


def test_a_name_leads_where_it_was_checked_whatever_it_says_later(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: the second answer of a name server leads elsewhere."""
    answers = iter([["127.0.0.1"], ["127.0.0.2"], ["127.0.0.1", "127.0.0.2"]])

    ask = socket.getaddrinfo

    def resolve(host: str, port: int, *more: Any, **named: Any) -> list[Any]:
        if host != "crm.example":
            return ask(host, port, *more, **named)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (it, port)) for it in next(answers)]

    port = service.server.server_port
    caller = Caller(allowed=[ipaddress.ip_network("127.0.0.1/32")])
    connect = socket.create_connection
    reached: list[str] = []

    def note(address: tuple[str, int], timeout: float | None) -> socket.socket:
        reached.append(address[0])
        return connect(address, timeout)

    monkeypatch.setattr(socket, "create_connection", note)
    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", resolve)
        made = [caller.post(f"http://crm.example:{port}/", b"{}", {}) for _ in range(3)]
    assert made[0] == 202
    assert [it.trouble for it in made[1:] if isinstance(it, Dispatched)] == ["address-refused"] * 2
    assert reached == ["127.0.0.1"]


@contextmanager
def answering(answer: bytes, pause: float) -> Iterator[str]:
    """Run a server that answers byte by byte, whatever it is asked."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = server.accept()
                while not peer.recv(65536).endswith(b"{}"):
                    pass
                for byte in answer:
                    peer.sendall(bytes([byte]))
                    time.sleep(pause)
                peer.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("answer", "pause", "code"),
    [
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 1000, 0.05, "timeout"),
        (b"SSH-2.0-OpenSSH\r\n", 0, "no-http"),
        (b"", 0, "no-http"),
        # A redirect is not followed, wherever it leads.
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", 0, "http-302"),
        (b"HTTP/1.1 999\r\n\r\n", 0, "http-999"),
        (b"HTTP/1.1 -1 no\r\n\r\n", 0, "no-http"),
    ],
)
def test_wrong_and_endless_answers_are_failures(answer: bytes, pause: float, code: str) -> None:
    with answering(answer, pause) as uri:
        made = Caller(allowed=LOOPBACK, timeout=0.5).post(uri, b"{}", {})
    assert isinstance(made, Dispatched)
    assert made.trouble == code


def test_a_slow_service_holds_up_no_other(database: Database, service: Service) -> None:
    """So many are due at a slow service that all threads would be busy with it."""
    service.delay = 0.4
    office = Office(database, service.uri)
    with serving() as quick:
        office.definitions = DefinitionSet.build(
            [
                Document("control", "forget", {"stateful": False, "operation": "delete"}),
                *(
                    Document("control-subscriber", name, {
                        "subjects": ["user:x"], "control": "forget", "uri": uri,
                    })
                    for name, uri in (("crm", service.uri), ("quick", quick.uri))
                ),
            ]
        )  # fmt: skip
        wanted = [
            NewRequest("app", f"{name}{number}", "forget", "delete", "ann", (), {name: HOUR}, ())
            for name in ("crm", "quick")
            for number in range(20)
        ]
        office.book.submit(wanted, 1)
        office.work()
        assert len(quick.told) == 20
        assert len(service.told) == 21
        assert quick.last < service.last - service.delay


def test_a_service_that_answers_at_once_is_told_once(database: Database, service: Service) -> None:
    service.status = 200
    office = Office(database, service.uri, delivery="http-sync")
    wanted = [
        NewRequest("app", f"k{number}", "forget", "delete", "ann", (), {"crm": HOUR}, ())
        for number in range(40)
    ]
    office.book.submit(wanted, 1)
    office.work()
    assert len(service.told) == 41
