"""Alerts and notes through a real mail server, an SMS gateway, and a front end's endpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.rights.dispatch.message import derive_key, verify
from penstock.rights.notices import FRONT_END, TRIES, Mailer, render
from penstock.store.database import Database
from penstock.store.rights.tables import ProgressEvent, ProgressStatus, RequestStatus
from tests.support.gateway.certificates import Authority
from tests.support.rights.mail_server import serving_mail
from tests.support.rights.office import SECRET, Office, configure
from tests.support.rights.service import Service, serving


@pytest.fixture
def service() -> Iterator[Service]:
    with serving() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    with Database.open(url) as opened:
        yield opened


def test_who_failed_is_alerted_by_mail_and_sms_through_encryption_and_login(
    database: Database, service: Service, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("mail")
    (tmp_path / "password").write_text("s3cret")
    (tmp_path / "password").chmod(0o600)
    with (
        serving() as gateway,
        serving_mail(tmp_path, str(certificate), str(key), "privacy", "s3cret") as box,
    ):
        config = configure(
            tmp_path, timeout=5,
            email={
                "host": "127.0.0.1", "port": box.port, "username": "privacy",
                "password": {"file": str(tmp_path / "password")}, "ca": str(authority.path),
                "sender": "penstock@example.com",
            },
            sms={"url": gateway.uri, "token": {"file": str(tmp_path / "password")}},
        )  # fmt: skip
        service.status = 500
        office = Office(
            database, service.uri, config=config, send_retries=0,
            contact_email="crm@example.com", contact_mobile="+4791234567",
        )  # fmt: skip
        office.work()
        assert office.look() == (RequestStatus.SOMEFAILED, ProgressStatus.SENDFAILED, "http-500")
        (mail,) = box.mails()
        assert mail["recipients"] == ["crm@example.com"]
        headers = dict(mail["headers"])
        assert headers["Subject"] == "A service did not honour a privacy request"
        assert f"redrive {office.accepted.id}" in mail["text"]
        assert "ann" not in json.dumps(mail)
        ((sms, _, _),) = gateway.told
        assert sms["to"] == "+4791234567"
        assert gateway.headers[0]["Authorization"] == "Bearer s3cret"
        assert [it[1:] for it in office.notices()] == [("email", True, ""), ("sms", True, "")]
        assert office.work(days=1) == 0


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_mail_server_that_is_not_who_it_should_be_gets_nothing(
    tmp_path: Path, *, encrypted: bool
) -> None:
    certificate, key = Authority(tmp_path / "other").issue("mail")
    own = Authority(tmp_path / "own")
    (tmp_path / "password").write_text("s3cret")
    (tmp_path / "password").chmod(0o600)
    with serving_mail(tmp_path, *((str(certificate), str(key)) if encrypted else ())) as box:
        config = configure(
            tmp_path, email={
                "host": "127.0.0.1", "port": box.port, "ca": str(own.path),
                "username": "privacy", "password": {"file": str(tmp_path / "password")},
            },
        )  # fmt: skip
        made = Mailer(config.rights.email, 5).send("a@b.example", "t", "x", "id")
        assert made.trouble == "tls"
        assert box.mails() == []


def test_people_are_told_once_all_services_are_done(
    database: Database, service: Service, tmp_path: Path
) -> None:
    with serving() as gateway, serving_mail(tmp_path) as box:
        email = {"host": "127.0.0.1", "port": box.port, "security": "none"}
        office = Office(
            database,
            service.uri,
            config=configure(timeout=5, email=email, sms={"url": gateway.uri}),
            contact={"email": "ann@example.com", "mobile": "+4791234567"},
            publisher={
                "notify": ["email", "sms", "in-client"], "endpoint": gateway.uri,
                "title": "Erledigt: {control}", "text": "{action} {control} von {publisher}: ✓",
            },
        )  # fmt: skip
        office.work()
        assert office.notices() == []
        office.book.note(office.accepted.id, "crm", ProgressEvent.COMPLETED)
        assert office.work() == 3
        office.book.note(office.accepted.id, "crm", ProgressEvent.COMPLETED)
        assert office.work() == 0
        (mail,) = box.mails()
        assert mail["recipients"] == ["ann@example.com"]
        assert dict(mail["headers"])["Subject"] == "Erledigt: forget"
        assert mail["text"].strip() == "delete forget von app: ✓"
        (sms,) = [told for told, _, _ in gateway.told if "to" in told]
        assert sms == {"to": "+4791234567", "text": "delete forget von app: ✓"}
        ((call, signature, body),) = [it for it in gateway.told if "key" in it[0]]
        assert call == {
            "request": office.accepted.id, "key": "k", "control": "forget", "status": "COMPLETED"
        }  # fmt: skip
        assert verify(derive_key(SECRET, FRONT_END + "app"), signature, body, int(time.time()))


def test_without_an_address_or_a_server_it_becomes_a_dead_letter_that_can_be_redriven(
    database: Database, service: Service, tmp_path: Path
) -> None:
    office = Office(
        database, service.uri, publisher={"notify": ["email"]}, contact={"mobile": "+4791234567"}
    )
    office.book.note(office.accepted.id, "crm", ProgressEvent.COMPLETED)
    office.work()
    assert office.notices() == [("done", "email", False, "not-configured")]
    for _ in range(TRIES):
        office.work(hours=2)
    assert office.work(days=400) == 0
    assert office.book.outbox.redrive("other") == 0
    assert office.book.outbox.redrive(office.accepted.id) == 1
    with serving_mail(tmp_path) as box:
        email: dict[str, Any] = {"host": "127.0.0.1", "port": box.port, "security": "none"}
        made = Mailer(configure(email=email).rights.email, 5).send("", "t", "x", "id")
        assert made.trouble == "no-address"


def test_what_is_leased_by_one_that_is_killed_is_sent_by_another(
    database: Database, service: Service, tmp_path: Path
) -> None:
    with serving_mail(tmp_path) as box:
        email = {"host": "127.0.0.1", "port": box.port, "security": "none"}
        office = Office(
            database, service.uri, config=configure(timeout=5, email=email),
            contact_email="crm@example.com",
        )  # fmt: skip
        office.work()
        office.work(minutes=61)
        office.now = office.now.replace(year=office.now.year + 1)
        assert office.worker.sweep() == 1  # FAILED and the alert are committed …
        assert len(office.book.outbox.lease("killed", 10, 60)) == 1  # … and nothing is sent
        assert office.work(seconds=59) == 0
        assert office.work(seconds=2) == 1
        assert len(box.mails()) == 1
        assert office.look()[:2] == (RequestStatus.SOMEFAILED, ProgressStatus.FAILED)


@given(st.text(), st.text())
def test_what_is_put_into_a_text_is_not_read_again(control: str, request: str) -> None:
    values = {"control": control, "request": request}
    assert render("<{control}|{request}|{other}>", values) == f"<{control}|{request}|{{other}}>"


def test_no_header_can_be_smuggled_in(tmp_path: Path) -> None:
    with serving_mail(tmp_path) as box:
        email = {"host": "127.0.0.1", "port": box.port, "security": "none"}
        mailer = Mailer(configure(email=email).rights.email, 5)
        for address in ("a@b.example\nBcc: eve@x.example", "a@b.example, eve@x.example", "<a@b>"):
            assert mailer.send(address, "t", "x", "id").trouble == "no-address"
        for title in ("a\nBcc: eve@x.example", "a\r\n\r\nbody", "a\x00b"):
            mailer.send("ann@b.example", title, ".\r\nRCPT TO:<eve@x.example>\r\n.", "id")
        for mail in box.mails():
            assert mail["recipients"] == ["ann@b.example"]
            names = {name for name, _ in mail["headers"]}
            assert "Bcc" not in names
