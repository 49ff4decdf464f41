"""What an account with a token of its own, or none, can not do to others."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from http import HTTPStatus
from typing import Any

import pytest

from penstock.store.access_tokens import tokens_table
from tests.support.server.installation import Answer, ServerInstallation
from tests.support.store.installation import until

UNKNOWN = "0" * 32


def told(answer: Answer) -> tuple[int, Any]:
    return answer.status, answer.content


@pytest.fixture(scope="module")
def request_id(server: ServerInstallation) -> str:
    return str(server.submit(subject="victim").content["request"])


def test_requests_of_others_look_like_none_at_all(
    server: ServerInstallation, request_id: str
) -> None:
    for user in ("app", "crm", "segments", "nobody", "officer"):
        others = server.call("GET", f"/v1/requests/{request_id}", user=user)
        assert others.status == 404
        assert told(others) == told(server.call("GET", f"/v1/requests/{UNKNOWN}", user=user))
    path = "/v1/requests?publisher="
    others = server.call("GET", path + "portal", user="app")
    assert told(others) == told(server.call("GET", path + "none", user="app"))
    assert others.status == 404
    mine = server.submit(user="app", publisher="app").content["request"]
    page = server.call("GET", f"{path}app&after={request_id}", user="app").content["requests"]
    assert mine not in [it["request"] for it in page]  # no place in the list of another


@pytest.mark.parametrize("what", ["acknowledge", "complete"])
def test_nobody_answers_for_a_service_that_is_not_theirs(
    server: ServerInstallation, request_id: str, what: str
) -> None:
    def say(user: str, subscriber: str, request: str = request_id) -> Answer:
        path = f"/v1/requests/{request}/{what}"
        return server.call("POST", path, {"subscriber": subscriber}, user=user)

    forged = [say("segments", "crm"), say("segments", "segments"), say("portal", "crm"),
              say("crm", "none"), say("crm", "crm", UNKNOWN)]  # fmt: skip
    assert {it.status for it in forged} == {404}
    assert len({str(it.content) for it in forged}) == 1
    shown = server.call("GET", f"/v1/requests/{request_id}").content
    assert shown["progress"][0]["status"] == "INIT"


def test_states_are_told_to_those_alone_whose_control_it_is(server: ServerInstallation) -> None:
    asked = {"subject": "victim"}
    assert server.call("POST", "/v1/subscribers/segments/states", asked, user="crm").status == 404
    assert server.call("POST", "/v1/publishers/portal/states", asked, user="app").status == 404
    of_a_single_request = server.call("POST", "/v1/subscribers/crm/states", asked, user="crm")
    assert of_a_single_request.content == {"states": []}


def test_tokens_that_are_wrong_expired_revoked_or_altered_prove_nothing(
    server: ServerInstallation,
) -> None:
    def ask(proof: str | None, **more: str) -> Answer:
        headers = {**({"Authorization": proof} if proof is not None else {}), **more}
        return server.call("GET", "/v1/publishers/portal", user=None, headers=headers)

    good = server.tokens["portal"]
    with server.open_database() as database:
        expired = server.make_token(database, "portal")
        revoked = server.make_token(database, "portal")
        rows = tokens_table.c
        with database.write() as connection:
            moment = tokens_table.select().with_only_columns(rows.made).limit(1)
            for token, column in ((expired, "expires"), (revoked, "revoked")):
                mine = tokens_table.update().where(rows.id == token.split("_", 2)[1])
                connection.execute(mine.values({column: connection.scalar(moment)}))
    wrong = [
        None, "", "Bearer", "Bearer ", f"Bearer {good}x", f"Bearer {good[:-1]}", f"bearer{good}",
        f"Token {good}", f"Bearer {expired}", f"Bearer {revoked}", "Bearer " + "x" * 6000,
        f"Bearer {good.replace(good[4], '0' if good[4] != '0' else '1', 1)}", "Basic !!!",
    ]  # fmt: skip
    answers = [ask(it) for it in wrong]
    assert {it.status for it in answers} == {401}
    assert len({str(it.content) for it in answers}) == 1
    assert good not in str(answers)
    assert ask(f"Bearer {good}", **{"X-Forwarded-For": "127.0.0.9"}).status == 200


def test_a_network_with_wrong_tokens_is_held_off_and_good_ones_pass(
    install: Callable[..., ServerInstallation],
) -> None:
    server = install()
    server.start()
    assert server.call("GET", "/v1/publishers/portal").status == 200
    wrong = {"Authorization": f"Bearer pst_{'0' * 16}_{'A' * 43}"}
    seen = {server.call("GET", "/v1/x", user=None, headers=wrong).status for _ in range(80)}
    assert seen == {401, 429}
    assert server.call("GET", "/v1/publishers/portal").status == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{", 422),
        (b"\xff\xfe", 422),
        (b"null", 422),
        (b"[" * 50_000, 422),
        (b'{"subject":' * 20_000, 422),
        (b'{"publisher": 1e400, "subject": NaN}', 422),
        (json.dumps({"publisher": "p" * 200_000}).encode(), 422),
        (b" " * 300_000, 413),
    ],
)
def test_odd_bodies_are_refused(server: ServerInstallation, body: bytes, status: int) -> None:
    headers = {"Content-Type": "application/json"}
    refused = server.call("POST", "/v1/requests", body=body, headers=headers)
    assert refused.status == status
    assert refused.content["fix"]


def raw(server: ServerInstallation, text: bytes, seconds: float = 20) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), seconds) as it:
        it.sendall(text)
        it.settimeout(seconds)
        answer = b""
        try:
            while piece := it.recv(65536):
                answer += piece
        except ConnectionResetError:
            pass
        return answer


def test_bodies_of_strangers_are_not_read(server: ServerInstallation) -> None:
    begun = b"POST /v1/requests HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n"
    answer = raw(server, begun)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in answer.lower()


@pytest.mark.parametrize(
    "text",
    [
        b"GET / HTTP/9\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"GET /" + b"a" * 70_000,
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_is_no_http_is_closed(server: ServerInstallation, text: bytes) -> None:
    assert raw(server, text)[:12] in {b"HTTP/1.1 400", b"HTTP/1.1 401", b"HTTP/1.1 413"}


def test_who_sends_slowly_is_cut_off_and_others_are_served(
    install: Callable[..., ServerInstallation],
) -> None:
    server = install(
        limits={"timeout": "1s", "unauthenticated": 30, "unauthenticated_per_address": 30}
    )
    server.start()
    token = server.tokens["portal"].encode()
    beginnings = (
        b"GET /v1/x HTTP/1.1\r\nHost: x\r\nX-",
        b"POST /v1/requests HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token
        + b"\r\nContent-Length: 100\r\n\r\n{",
    )  # fmt: skip
    with ExitStack() as stack:
        slow = []
        for number in range(20):
            it = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 20))
            it.sendall(beginnings[number % 2])
            slow.append(it)
        until(lambda: _is_served(server), "somebody else was served")
        for it in slow:
            until(lambda it=it: _is_cut_off(it), "a slow one was cut off")  # type: ignore[misc]


def _is_served(server: ServerInstallation) -> bool:
    try:
        return server.call("GET", "/v1/publishers/portal").status == HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False  # on a busy machine a second is over soon


def _is_cut_off(it: socket.socket) -> bool:
    it.settimeout(0.2)
    try:
        it.sendall(b"x")
        return not it.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True


def test_many_connections_of_one_network_are_bounded(
    install: Callable[..., ServerInstallation],
) -> None:
    server = install(limits={"connections_per_address": 20, "timeout": "2s"})
    server.start()
    with ExitStack() as stack:
        flood = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 20))
            for _ in range(60)
        ]
        until(lambda: sum(map(_is_cut_off, flood)) >= 40, "those over the limit were closed")

    def served() -> bool:
        with suppress(OSError):
            return server.call("GET", "/v1/publishers/portal").status == 200
        return False

    until(served, "it served again")


def test_one_user_over_its_rate_is_told_to_wait_and_others_are_served(
    install: Callable[..., ServerInstallation],
) -> None:
    server = install(limits={"rate": 1, "burst": 5})
    server.start()
    seen = [server.call("GET", "/v1/publishers/portal") for _ in range(20)]
    assert {it.status for it in seen} == {200, 429}
    assert int(seen[-1].headers["retry-after"]) >= 1
    assert server.call("GET", "/v1/publishers/app", user="app").status == 200
    batch = {"requests": [
        {"publisher": "app", "key": str(it), "control": "forget", "action": "delete",
         "subject": "x"} for it in range(300)
    ]}  # fmt: skip
    refused = server.call("POST", "/v1/requests/batch", batch, user="app")
    assert refused.status == 429  # a batch costs what is in it


def test_nobody_is_named_in_logs_and_metrics(server: ServerInstallation) -> None:
    person = f"very-secret-{time.time_ns()}"
    server.choose("opt-out", subject=person)
    server.submit(subject=person, control="nothing")
    server.submit(subject=person * 30)
    path = "/v1/publishers/portal/states"
    server.call("POST", path, {"subject": person, "more": person})
    text = server.log.read_text() + _metrics(server)
    assert "very-secret" not in text
    assert server.tokens["portal"].split("_", 2)[2] not in text
    assert "penstock_server_calls_total" in text


def _metrics(server: ServerInstallation) -> str:
    request = b"GET /metrics HTTP/1.0\r\nHost: x\r\n\r\n"
    port = server.config.server.monitor_port
    with socket.create_connection(("127.0.0.1", port), 20) as it:
        it.sendall(request)
        text = b""
        while piece := it.recv(65536):
            text += piece
    return text.decode()
