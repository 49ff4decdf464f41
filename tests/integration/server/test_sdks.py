"""The SDKs against a server that runs: choices at once, an outbox that loses nothing, an inbox."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.client.privacy import (
    ForgedError,
    GrpcTransport,
    Notification,
    PrivacyPublisher,
    PrivacySubscriber,
    RejectedError,
    RestTransport,
    State,
    Transport,
    UnreachableError,
)
from penstock.errors import UsageError
from penstock.rights.accountability import verify_receipt
from penstock.rights.dispatch.message import derive_key, sign
from penstock.store.audit.log import AuditLog
from tests.support.server import honour
from tests.support.server.installation import ServerInstallation
from tests.support.store.installation import until

ROOT = Path(__file__).parents[3]
Install = Callable[..., ServerInstallation]
OVER = pytest.mark.parametrize("over", ["rest", "grpc"])


def transport(server: ServerInstallation, user: str, *, over: str = "rest") -> Transport:
    if over == "grpc":
        target = f"127.0.0.1:{server.grpc_port}"
        return GrpcTransport(target, server.tokens[user], plain=True)
    return RestTransport(f"http://127.0.0.1:{server.port}", server.tokens[user])


def secret(server: ServerInstallation, subscriber: str) -> bytes:
    return derive_key(server.config.consent.key.read(), subscriber)


def notify(
    server: ServerInstallation, subscriber: str, request: str, **content: Any
) -> tuple[str, bytes]:
    told = {
        "request": request, "subscriber": subscriber, "control": "ads", "action": "changed",
        "subject": "ann", "categories": [], "attempt": 1,
    } | content  # fmt: skip
    body = json.dumps(told).encode()
    return sign(secret(server, subscriber), int(time.time()), body), body


# --- publishers ---


@OVER
def test_a_choice_holds_when_it_returns_and_is_shown_as_persisted(
    server: ServerInstallation, over: str
) -> None:
    with PrivacyPublisher(transport(server, "portal", over=over), "portal") as portal:
        who = f"sdk-{over}"
        made = portal.choose(who, "ads", "opt-out")
        assert {it.state for it in made.states} == {"opt-out"}
        assert portal.states(who) == made.states
        assert portal.status(made.request)["control"] == "ads"
        assert portal.choose(who, "ads", "opt-out", key=who).repeated is False
        assert portal.choose(who, "ads", "opt-out", key=who).repeated is True
        assert portal.signal(who) == ()
        assert [it.request for it in portal.signal(f"{who}-new")] != []
        kept = portal.receipt(made.request, who)
        assert (kept["choice"], kept["subject"]) == ("opt-out", who)
        with server.open_database() as database:
            keys = AuditLog.open(database, server.config.audit.signing_key).signer.public_keys
        assert verify_receipt(kept, keys)
        assert not verify_receipt(kept | {"choice": "opt-in"}, keys)
        with pytest.raises(RejectedError, match="no such"):
            portal.receipt(made.request, "somebody else")
        assert portal.plan() == (3, 0.05)
        assert portal.set_contact(who, email="ann@example.com", mobile="+4791234567") == 2
        assert portal.set_contact(who) == 0
        with pytest.raises(RejectedError, match="plain form"):
            portal.set_contact(who, email="ann@example.com\r\nBcc: x@example.com")
        with pytest.raises(RejectedError, match="offers no control"):
            portal.choose(who, "nothing", "opt-out")
        with pytest.raises(UsageError, match="no outbox"):
            portal.ask(who, "forget")


@OVER
def test_who_cannot_be_reached_is_tried_as_the_definition_says(install: Install, over: str) -> None:
    server = install()
    server.start()
    waits: list[float] = []
    portal = PrivacyPublisher(
        transport(server, "portal", over=over), "portal", sleep=waits.append, draw=lambda: 1.0
    )
    portal.plan()
    server.kill()
    with pytest.raises(UnreachableError):
        portal.choose("ann", "ads", "opt-out")
    assert waits == pytest.approx([0.05, 0.1, 0.2])
    portal._patience = 0.1
    with pytest.raises(UnreachableError):
        portal.choose("ann", "ads", "opt-out")
    assert waits[3:] == pytest.approx([0.05])  # nobody waits for longer than that


def test_what_is_in_the_outbox_outlives_the_process_and_reaches_the_server_once(
    install: Install, tmp_path: Path
) -> None:
    server = install()
    outbox = tmp_path / "outbox.db"
    script = (
        "import os, signal, sys\n"
        "from penstock.client.privacy import PrivacyPublisher, RestTransport\n"
        "portal = PrivacyPublisher(RestTransport(sys.argv[1], sys.argv[2]), 'portal',"
        " outbox=sys.argv[3])\n"
        "for number in range(5): portal.ask(f'person-{number}', 'forget')\n"
        "portal.ask('person-5', 'nothing')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    url = f"http://127.0.0.1:{server.port}"
    arguments = [sys.executable, "-c", script, url, server.tokens["portal"], str(outbox)]
    killed = subprocess.run(arguments, check=False, cwd=ROOT, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert outbox.stat().st_mode & 0o077 == 0
    portal = PrivacyPublisher(transport(server, "portal"), "portal", outbox=outbox)
    try:
        assert portal.waiting() == 6
        server.start()
        until(lambda: portal.waiting() == 0, "the outbox was sent")
        (refused,) = portal.rejected()
        assert refused.code == "invalid"
        portal.ask("person-6", "forget")
        until(lambda: portal.waiting() == 0, "the new one was sent")
    finally:
        portal.close()
    found = server.call("GET", "/v1/requests?publisher=portal").content["requests"]
    assert len(found) == 6
    assert b"person-" not in outbox.read_bytes()


def test_a_token_is_not_sent_in_clear_over_a_network() -> None:
    with pytest.raises(UsageError, match="in clear"):
        RestTransport("http://penstock.example", "x")
    with pytest.raises(UsageError, match="not an address"):
        RestTransport("penstock.example", "x")
    with pytest.raises(UsageError, match="in clear"):
        GrpcTransport("penstock.example:1", "x", plain=True)


# --- services ---


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgresql"))])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "service.db")
    return str(request.getfixturevalue("postgres_url"))


def test_an_effect_is_had_exactly_once_wherever_the_service_is_killed(
    server: ServerInstallation, place: str
) -> None:
    for point, had in (
        ("before-commit", "True"), ("after-commit", "False"), ("after-complete", "False")
    ):  # fmt: skip
        made = server.submit(subject=f"killed-{point}").content["request"]
        told = {"control": "forget", "action": "delete", "subject": f"killed-{point}"}
        signature, body = notify(server, "crm", made, **told)
        arguments = [
            sys.executable, "-m", "tests.support.server.honour",
            f"http://127.0.0.1:{server.port}", server.tokens["crm"],
            secret(server, "crm").hex(), place, signature, body.decode(),
        ]  # fmt: skip
        killed = subprocess.run([*arguments, point], check=False, cwd=ROOT, timeout=60)
        assert killed.returncode == -signal.SIGKILL
        done = subprocess.run(
            [*arguments, "never"], check=True, cwd=ROOT, timeout=60, capture_output=True, text=True
        )
        assert done.stdout == had
        connection = honour.connect(place)
        cursor = connection.cursor()
        cursor.execute("SELECT request FROM effects")
        assert cursor.fetchall().count((made,)) == 1
        connection.close()
        shown = server.call("GET", f"/v1/requests/{made}").content
        assert shown["status"] == "COMPLETED"


@OVER
def test_the_last_choice_wins_in_whatever_order_notifications_come(
    server: ServerInstallation, place: str, over: str
) -> None:
    segments = PrivacySubscriber(
        transport(server, "segments", over=over), "segments", secret(server, "segments")
    )
    held: list[str] = []

    def apply(_: Any, told: Notification, states: tuple[State, ...]) -> None:
        del told
        held.append(states[0].state)

    subject = f"toggle-{over}-{len(place)}"
    requests = [
        server.choose(choice, subject=subject).content["request"]
        for choice in ("opt-out", "opt-in", "opt-out")
    ]
    connection = honour.connect(place)
    PrivacySubscriber.create_tables(connection)
    for request in (requests[2], requests[0], requests[1], requests[2]):
        signature, body = notify(server, "segments", request, subject=subject)
        segments.handle(connection, segments.verify(signature, body), apply)
    assert held == ["opt-out"]
    newer = server.choose("opt-in", subject=subject).content["request"]
    signature, body = notify(server, "segments", newer, subject=subject)
    assert segments.handle(connection, segments.verify(signature, body), apply)
    assert held == ["opt-out", "opt-in"]
    cursor = connection.cursor()
    cursor.execute("SELECT * FROM penstock_choices")
    assert subject not in str(cursor.fetchall())
    connection.close()


def test_several_told_at_once_have_one_effect(server: ServerInstallation, place: str) -> None:
    made = server.submit(subject="at-once").content["request"]
    told = {"control": "forget", "action": "delete", "subject": "at-once"}
    signature, body = notify(server, "crm", made, **told)
    crm = PrivacySubscriber(transport(server, "crm"), "crm", secret(server, "crm"))
    notification = crm.verify(signature, body)
    first = honour.connect(place)
    PrivacySubscriber.create_tables(first)
    effects: list[str] = []

    def handle() -> None:
        connection = honour.connect(place)
        crm.handle(connection, notification, lambda *_: effects.append("had"))
        connection.close()

    threads = [threading.Thread(target=handle) for _ in range(6)]
    for it in threads:
        it.start()
    for it in threads:
        it.join()
    assert effects == ["had"]
    first.close()


def test_an_effect_that_fails_is_undone_and_tried_again(
    server: ServerInstallation, place: str
) -> None:
    made = server.submit(subject="fails").content["request"]
    told = {"control": "forget", "action": "delete", "subject": "fails"}
    signature, body = notify(server, "crm", made, **told)
    crm = PrivacySubscriber(transport(server, "crm"), "crm", secret(server, "crm"))
    connection = honour.connect(place)
    PrivacySubscriber.create_tables(connection)

    def fail(*_: object) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        crm.handle(connection, crm.verify(signature, body), fail)
    assert crm.handle(connection, crm.verify(signature, body), lambda *_: None) is True
    assert crm.handle(connection, crm.verify(signature, body), fail) is False
    connection.close()


def test_what_penstock_did_not_say_is_refused(server: ServerInstallation) -> None:
    crm = PrivacySubscriber(transport(server, "crm"), "crm", secret(server, "crm").hex())
    signature, body = notify(server, "crm", "0" * 32)
    assert crm.verify(signature, body).request == "0" * 32
    other, theirs = notify(server, "segments", "0" * 32)
    old = sign(secret(server, "crm"), int(time.time()) - 301, body)
    for given in (None, "", "t=,v1=", "t=x", signature + "0", other, old, "t=1" * 100, "é"):
        with pytest.raises(ForgedError):
            crm.verify(given, body)
    for changed in (body + b" ", b"", theirs):
        with pytest.raises(ForgedError):
            crm.verify(signature, changed)
    assert crm.verify(old, body, oldest=None).request == "0" * 32


def test_a_connection_that_commits_by_itself_is_refused(
    server: ServerInstallation, place: str
) -> None:
    crm = PrivacySubscriber(transport(server, "crm"), "crm", secret(server, "crm"))
    connection: Any
    if place.startswith("postgresql"):
        url = place.replace("postgresql+psycopg", "postgresql")
        connection = psycopg.connect(url, autocommit=True)
    else:
        connection = sqlite3.connect(place, isolation_level=None)
    told = Notification("0" * 32, "crm", "forget", "delete", "ann", ())
    with pytest.raises(UsageError, match="autocommit"):
        crm.handle(connection, told, lambda *_: None)
    connection.close()
