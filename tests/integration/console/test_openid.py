"""Signing in with an identity provider, a process of its own; and what is not believed of it."""

from __future__ import annotations

import http.client
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from penstock.components import processes
from tests.support.console.installation import Answer, ConsoleInstallation

PROVIDER = Path(__file__).parents[2] / "support" / "console" / "provider.py"
COOKIE = "penstock-openid"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInstallation]:
    folder, port = tmp_path_factory.mktemp("openid"), processes.free_port()
    secret = folder / "secret"
    secret.touch(mode=0o600)
    secret.write_text("provider-secret")
    provider = processes.start(
        [sys.executable, str(PROVIDER), str(port), "penstock", "provider-secret"],
        log=folder / "provider.log",
        ready=lambda: processes.accepts(port),
    )
    openid = {
        "issuer": f"http://127.0.0.1:{port}",
        "client_id": "penstock",
        "client_secret": {"file": str(secret)},
        "claim": "preferred_username",
    }
    installation = ConsoleInstallation(folder, users={}, console={"openid": openid})
    try:
        yield installation.start()
    finally:
        installation.stop()
        processes.stop(provider)


def begin(console: ConsoleInstallation, after: str = "/") -> tuple[str, str]:
    """Return where the browser is sent, and the cookie that it keeps."""
    answer = console.ask(f"/openid/begin?next={quote(after, safe='')}")
    assert answer.status == 303, answer.text
    given = answer.headers["set-cookie"]
    assert "HttpOnly" in given
    return answer.headers["location"], given.partition(";")[0].partition("=")[2].strip('"')


def pass_by_provider(away: str, more: str = "") -> str:
    """Do as a browser does at the provider; return the path that it sends back to."""
    parts = urlsplit(away)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    connection.request("GET", f"{parts.path}?{parts.query}{more}")
    back = urlsplit(connection.getresponse().headers["Location"])
    connection.close()
    return f"{back.path}?{back.query}"


def come_back(console: ConsoleInstallation, path: str, flow: str) -> Answer:
    return console.ask(path, headers={"Cookie": f"{COOKIE}={flow}"} if flow else {})


def test_who_the_provider_names_is_signed_in(console: ConsoleInstallation) -> None:
    assert "Sign in with your organisation" in console.ask("/sign-in").text
    away, flow = begin(console, "/audit?kind=a")
    answer = come_back(console, pass_by_provider(away), flow)
    assert answer.status == 303, answer.text
    assert answer.headers["location"] == "/audit?kind=a"
    account = console.data("/account.json", answer.cookie)
    assert (account["user"], account["administers"]) == ("officer", True)


def test_rights_hold_for_the_name_that_the_provider_tells(console: ConsoleInstallation) -> None:
    away, flow = begin(console)
    session = come_back(console, pass_by_provider(away, "&user=visitor"), flow).cookie
    assert console.data("/account.json", session)["administers"] is False
    assert console.ask("/overview.json", session=session).status == 403


@pytest.mark.parametrize("flaw", ["key", "issuer", "audience", "end", "nonce"])
def test_a_word_that_is_not_the_providers_is_not_believed(
    console: ConsoleInstallation, flaw: str
) -> None:
    away, flow = begin(console)
    answer = come_back(console, pass_by_provider(away, f"&flaw={flaw}"), flow)
    assert answer.status == 403
    assert not answer.cookie


@pytest.mark.parametrize("user", ["anonymous", "a%3Ab", "%00", ""])
def test_a_name_that_no_user_can_have_is_nobodys(console: ConsoleInstallation, user: str) -> None:
    away, flow = begin(console)
    # An empty query is left out by the provider, which then names the officer.
    more = f"&user={user}" if user else f"&user={'x' * 300}"
    answer = come_back(console, pass_by_provider(away, more), flow)
    assert answer.status == 403
    assert not answer.cookie


def test_an_answer_belongs_to_the_browser_that_asked(console: ConsoleInstallation) -> None:
    away, flow = begin(console)
    path = pass_by_provider(away)
    _, another = begin(console)
    for given in ("", another, "x" * 40, flow[:-2]):
        assert come_back(console, path, given).status == 403
    assert come_back(console, path, flow).status == 303
    assert come_back(console, path, flow).status == 403  # the code was used
