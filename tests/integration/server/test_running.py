"""The server as a part: it follows definitions, fails closed, and loses nothing under kills."""

from __future__ import annotations

import http.client
import random
import signal
import ssl
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.store.rights.tables import requests_table
from tests.support.commands import run_command
from tests.support.gateway.certificates import Authority
from tests.support.scale import scaled
from tests.support.server.installation import ServerInstallation
from tests.support.store.installation import FileStore, ask_ready, until

Install = Callable[..., ServerInstallation]

BOTH = pytest.mark.parametrize(
    "database",
    ["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgresql"))],
)


def make(install: Install, database: str, request: pytest.FixtureRequest) -> ServerInstallation:
    url = None if database == "sqlite" else str(request.getfixturevalue("postgres_url"))
    return install(url)


@BOTH
def test_no_accepted_request_is_lost_and_a_repeated_call_is_the_same_request(
    install: Install, database: str, request: pytest.FixtureRequest
) -> None:
    server = make(install, database, request)
    accepted: dict[str, str] = {}
    draw = random.Random(7)

    def submit_until_killed(worker: int, number: int) -> None:
        with suppress(OSError, http.client.HTTPException):
            for call in range(10_000):
                key = f"{number}-{worker}-{call}"
                made = server.submit(key=key, subject=key)
                if made.status != 202:
                    return
                accepted[key] = made.content["request"]

    for number in range(scaled(2)):
        server.start()
        threads = [
            threading.Thread(target=submit_until_killed, args=(worker, number))
            for worker in range(4)
        ]
        before = len(accepted)
        for it in threads:
            it.start()
        until(lambda before=before: len(accepted) > before)  # type: ignore[misc]
        time.sleep(draw.uniform(0, 0.3))
        server.kill()
        for it in threads:
            it.join()
    server.start()
    for key, identity in draw.sample(sorted(accepted.items()), min(20, len(accepted))):
        again = server.submit(key=key, subject=key)
        assert again.content["repeated"] is True
        assert again.content["request"] == identity
    with server.open_database() as opened, opened.read() as connection:
        rows = connection.execute(requests_table.select()).all()
    held = {row.idempotency_key: row.id for row in rows}
    assert accepted.items() <= held.items()
    assert len(held) == len(rows)
    assert server.stop() == 0


@BOTH
@pytest.mark.parametrize("point", ["before-commit", "after-commit"])
def test_killed_at_a_commit_a_repeated_call_makes_one_request_in_all(
    install: Install, database: str, point: str, request: pytest.FixtureRequest
) -> None:
    server = make(install, database, request)
    server.start(sys.executable, "-m", "tests.support.server.dying", point)
    with pytest.raises((OSError, http.client.HTTPException)):
        server.choose("opt-out", key="once", subject="ann")
    assert server.process is not None
    assert server.process.wait(30) == -signal.SIGKILL
    server.start()
    before = server.call("POST", "/v1/publishers/portal/states", {"subject": "ann"})
    held = "opt-out" if point == "after-commit" else "opt-in"
    assert before.content["states"][0]["state"] == held
    again = server.choose("opt-out", key="once", subject="ann")
    assert again.content["repeated"] is (point == "after-commit")
    assert again.content["states"][0]["state"] == "opt-out"
    assert again.content["states"][0]["version"] == 1
    listed = server.call("GET", "/v1/requests?publisher=portal").content["requests"]
    assert [it["request"] for it in listed] == [again.content["request"]]


def test_definitions_are_followed_and_a_store_that_is_away_accepts_nothing(
    install: Install,
) -> None:
    server = install()
    server.start()
    port = server.config.server.monitor_port
    until(lambda: _is_ready(port), "it answers probes")
    path = "/v1/publishers/portal"
    assert server.call("GET", path, user="nobody").status == 404
    (server.folder / "more.yaml").write_text(
        "kind: control-publisher\nname: portal\nsubjects: [user:portal, user:nobody]\n"
        "controls: [ads]\n---\nkind: user\nname: portal\nblocked: true\n"
    )
    assert run_command(server.folder, "apply", "-f", "more.yaml").returncode == 0
    until(lambda: server.call("GET", path, user="nobody").status == 200, "the change came")
    assert server.call("GET", path).status == 404  # blocked
    store = FileStore(server.config.data)
    store.take_away()
    refused = until(lambda: _unless(server, 404, 200), "it noticed")
    assert refused == 503
    # A call asks the store itself; readiness follows with the next look at the feed.
    until(lambda: not ask_ready(port)[0], "readiness tells it")
    store.bring_back()
    until(lambda: server.call("GET", path, user="nobody").status == 200, "it came back")


def _is_ready(port: int) -> bool:
    try:
        return bool(ask_ready(port)[0])
    except OSError:
        return False  # probes are answered a moment after calls


def _unless(server: ServerInstallation, *usual: int) -> int | None:
    answer = server.choose("opt-out", user="nobody")
    if answer.status in {*usual, 201}:
        return None
    assert "sqlite" not in str(answer.content)
    assert answer.content["fix"].startswith("try again")
    return answer.status


def test_certificates_name_users_and_tls_is_needed_on_a_network(
    install: Install, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("server")
    listener = {
        "transport": "tls", "port": 0, "certificate": str(certificate),
        "key": {"file": str(key)}, "client_ca": str(authority.path),
    }  # fmt: skip
    probe = install()
    listener["port"] = probe.port
    server = install(listeners={"tls": listener})
    server.start()
    context = ssl.create_default_context(cafile=str(authority.path))
    path, port = "/v1/publishers/portal", int(str(listener["port"]))
    assert server.call("GET", path, user=None, tls=context, port=port).status == 401
    assert server.call("GET", path, tls=context, port=port).status == 200
    for name, status in (("portal", 200), ("app", 404)):
        shown = ssl.create_default_context(cafile=str(authority.path))
        shown.load_cert_chain(*authority.issue(name))
        assert server.call("GET", path, user=None, tls=shown, port=port).status == status
    stranger = ssl.create_default_context(cafile=str(authority.path))
    stranger.load_cert_chain(*Authority(tmp_path / "other").issue("portal"))
    with pytest.raises(OSError, match=r"alert|reset|closed|EOF"):
        server.call("GET", path, user=None, tls=stranger, port=port)


def test_the_supervisor_runs_it_and_tokens_are_made_and_revoked_by_command(
    install: Install,
) -> None:
    server = install()
    password = server.folder / "password"
    password.touch(mode=0o600)
    password.write_text("pw-portal")
    asked = ("--as", "portal", "--password-file", "password")
    made = run_command(server.folder, "tokens", "make", *asked, "--note", "shop")
    token = made.stdout.strip()
    assert token.startswith("pst_")
    proof = {"Authorization": f"Bearer {token}"}
    try:
        assert run_command(server.folder, "up", "--detach").returncode == 0
        found = run_command(server.folder, "status", "--json").stdout
        assert '"server"' in found
        path = "/v1/publishers/portal"
        assert server.call("GET", path, user=None, headers=proof).status == 200
        shown = run_command(server.folder, "tokens", "list", *asked).stdout
        assert token.split("_", 2)[1] in shown
        assert token.split("_", 2)[2] not in shown
        others = run_command(server.folder, "tokens", "list", "app", *asked)
        assert others.returncode == 1
        ended = run_command(server.folder, "tokens", "revoke", token.split("_", 2)[1], *asked)
        assert ended.returncode == 0
        assert server.call("GET", path, user=None, headers=proof).status == 401
    finally:
        run_command(server.folder, "down")
