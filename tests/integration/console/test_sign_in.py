"""Who signs in at the console, how that ends, and what strangers and other pages get."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.store.audit.entry import Outcome
from penstock.store.audit.reader import read_after
from penstock.store.database import Database
from tests.support.console.installation import PASSWORDS, ConsoleInstallation
from tests.support.gateway.passwords import write_passwords
from tests.support.store.installation import until

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'"
PRIVATE = ("/", "/overview", "/overview.json", "/overview.live", "/account", "/search", "/help")


def test_strangers_see_the_sign_in_alone(console: ConsoleInstallation) -> None:
    for path in PRIVATE:
        answer = console.ask(path)
        if path.endswith((".json", ".live")):
            assert answer.status == 401
            assert answer.headers["content-type"] == "application/problem+json"
        else:
            assert answer.status == 303
            assert answer.headers["location"].startswith("/sign-in")
    assert console.ask("/sign-in").status == 200
    assert console.ask("/no-such-page").status == 303


def test_every_answer_keeps_what_is_shown_to_this_page(console: ConsoleInstallation) -> None:
    session = console.sign_in("officer")
    for path in ("/sign-in", "/overview", "/overview.json", "/no-such-page", "/static/x/y.js"):
        headers = console.ask(path, session=session).headers
        assert headers["content-security-policy"].startswith(POLICY)
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        if not path.startswith("/static"):
            assert headers["cache-control"] == "no-store"


def test_nothing_on_a_page_is_inline_or_from_elsewhere(console: ConsoleInstallation) -> None:
    session = console.sign_in("officer")
    for path in ("/sign-in", "/overview", "/account", "/help", "/search?q=a"):
        text = console.ask(path, session=session).text
        assert "<script>" not in text
        assert " style=" not in text
        assert "onclick" not in text
        assert 'src="http' not in text
        assert 'href="http://' not in text


def test_wrong_passwords_and_unknown_names_are_answered_alike(
    console: ConsoleInstallation,
) -> None:
    wrong = [
        console.ask("/sign-in", form={"user": user, "password": password})
        for user, password in (("officer", "no"), ("who", "no"), ("", ""), ("a:b", "x"))
    ]
    assert {it.status for it in wrong} == {403}
    assert all("wrong user name or password" in it.text for it in wrong)
    assert all("set-cookie" not in it.headers for it in wrong)


def test_who_guesses_keeps_nobody_else_out_and_fills_no_log(console: ConsoleInstallation) -> None:
    """Behind a proxy all come from one network: twenty wrong passwords locked everybody out."""

    def guess(number: int) -> int:
        return console.ask("/sign-in", form={"user": f"who-{number}", "password": "no"}).status

    def denied() -> int:
        url = console.config.store.connection_url()
        with Database.open(url) as database, database.read() as store:
            kept = [it.entry for it in read_after(store, -1, 10_000)]
        return sum(it.kind == "console.sign-in" and it.outcome == Outcome.DENIED for it in kept)

    before, started = denied(), time.monotonic()
    with ThreadPoolExecutor(10) as pool:
        seen = set(pool.map(guess, range(50)))
    assert seen <= {403, 429}
    assert console.sign_in("officer")
    # Twenty at once, and one more every two seconds.
    assert denied() - before <= 21 + (time.monotonic() - started) / 2


def test_a_session_is_for_this_host_and_hidden_from_scripts(console: ConsoleInstallation) -> None:
    answer = console.ask("/sign-in", form={"user": "officer", "password": PASSWORDS["officer"]})
    given = answer.headers["set-cookie"].lower()
    assert "httponly" in given
    assert "samesite=lax" in given
    assert "path=/" in given
    assert answer.headers["location"] == "/"


@pytest.mark.parametrize(
    "after", ["//evil.example", "https://evil.example", "/\\evil.example", "/sign-out", "x", "/\tx"]
)
def test_signing_in_leads_nowhere_else(console: ConsoleInstallation, after: str) -> None:
    form = {"user": "officer", "password": PASSWORDS["officer"], "next": after}
    assert console.ask("/sign-in", form=form).headers["location"] == "/"


def test_signing_out_ends_the_session_at_the_server(console: ConsoleInstallation) -> None:
    session = console.sign_in("officer")
    assert console.act("/sign-out", session).headers["location"] == "/sign-in"
    assert console.ask("/account.json", session=session).status == 401


def test_other_browsers_can_be_signed_out(console: ConsoleInstallation) -> None:
    one, other = console.sign_in("pump"), console.sign_in("pump")
    assert len(console.data("/account.json", one)["sessions"]) >= 2
    console.act("/sign-out/others", one)
    assert console.ask("/account.json", session=other).status == 401
    assert len(console.data("/account.json", one)["sessions"]) == 1


def test_a_new_password_ends_what_the_old_one_opened(console: ConsoleInstallation) -> None:
    session = console.sign_in("nobody")
    path = console.config.data / "keys" / "passwords"
    write_passwords(path, {**PASSWORDS, "nobody": "another"})
    assert console.ask("/account.json", session=session).status == 401
    write_passwords(path, PASSWORDS)
    assert console.ask("/account.json", session=session).status == 401


def test_who_is_blocked_sees_nothing_more(console: ConsoleInstallation) -> None:
    session = console.sign_in("nurse")
    assert console.ask("/account.json", session=session).status == 200
    console.apply("kind: user\nname: nurse\nblocked: true\n")
    until(lambda: console.ask("/account.json", session=session).status == 403, "the block")
    console.apply("kind: user\nname: nurse\n")


def test_a_change_needs_the_token_of_its_session(console: ConsoleInstallation) -> None:
    session, other = console.sign_in("officer"), console.sign_in("auditor")
    for token in ("", "0" * 64, console.csrf(other)):
        answer = console.ask("/sign-out/others", session=session, form={"csrf": token})
        assert answer.status == 403
        assert "not of your session" in answer.text
    assert console.act("/sign-out/others", session).status == 303


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_change_comes_from_this_origin(
    console: ConsoleInstallation, headers: dict[str, str]
) -> None:
    session = console.sign_in("officer")
    form = {"csrf": console.csrf(session)}
    answer = console.ask("/sign-out", session=session, form=form, headers=headers)
    assert answer.status == 403
    assert console.ask("/account.json", session=session).status == 200


def test_nobody_signs_somebody_in_from_another_page(console: ConsoleInstallation) -> None:
    form = {"user": "officer", "password": PASSWORDS["officer"]}
    answer = console.ask("/sign-in", form=form, headers={"Origin": "http://evil.example"})
    assert answer.status == 403
    assert "set-cookie" not in answer.headers


def test_no_foreign_name_leads_here(console: ConsoleInstallation) -> None:
    session = console.sign_in("officer")
    for name in ("evil.example", f"evil.example:{console.port}", "127.0.0.1.evil.example", ""):
        answer = console.ask("/account", session=session, headers={"Host": name or "x"})
        assert answer.status == 422, name
        assert "officer" not in answer.text
    for name in (f"localhost:{console.port}", "[::1]:1", "127.0.0.1:2"):
        assert console.ask("/account", session=session, headers={"Host": name}).status == 200


def test_nothing_changes_by_get(console: ConsoleInstallation) -> None:
    session = console.sign_in("officer")
    for path in ("/sign-out", "/sign-out/others"):
        assert console.ask(path, session=session).status == 405
    assert console.ask("/account.json", session=session).status == 200


def test_bodies_are_bounded(console: ConsoleInstallation) -> None:
    session = console.sign_in("officer")
    large = {"csrf": console.csrf(session), "x": "x" * (1 << 20)}
    assert console.ask("/sign-out/others", session=session, form=large).status == 413
    assert console.ask("/sign-in", form={"user": "x" * 20_000, "password": "x"}).status == 413


def test_rights_decide_by_url_what_is_seen(console: ConsoleInstallation) -> None:
    officer, auditor, nobody = map(console.sign_in, ("officer", "auditor", "nobody"))
    assert console.ask("/overview.json", session=officer).status == 200
    for session in (auditor, nobody):
        for path in ("/overview", "/overview.json", "/overview.live"):
            answer = console.ask(path, session=session)
            assert answer.status == 403
            assert "$console/overview" in answer.text
        assert "/overview" not in console.page("/account", session)
    assert console.ask("/", session=nobody).headers["location"] == "/account"


def test_a_right_to_monitor_the_broker_opens_no_room(console: ConsoleInstallation) -> None:
    console.apply('kind: right\nname: load\nsubjects: [user:pump]\nmonitor: ["$SYS/#"]\n')
    session = console.sign_in("pump")
    assert console.ask("/overview.json", session=session).status == 403
    console.apply('kind: right\nname: load\nsubjects: [user:pump]\nmonitor: ["$console/+"]\n')
    until(lambda: console.ask("/overview.json", session=session).status == 200, "the right")
    console.apply('kind: right\nname: load\nsubjects: [user:pump]\nmonitor: ["$SYS/#"]\n')
    until(lambda: console.ask("/overview.json", session=session).status == 403, "its end")


def test_a_stream_ends_with_its_session(console: ConsoleInstallation) -> None:
    session = console.sign_in("officer")
    assert console.listen("/overview.live", session)[0] == "event: fragment"


def test_the_first_start_prints_a_link_that_is_good_once(fresh: ConsoleInstallation) -> None:
    fresh.start()
    link = fresh.link()
    assert fresh.ask(link).status == 200
    assert fresh.ask("/first?link=" + "x" * 43).status == 403
    form = {"link": link.partition("=")[2], "user": "ada"}
    short = {**form, "password": "short", "again": "short"}
    assert "fewer than 12 characters" in fresh.ask("/first", form=short).text
    form |= {"password": "a long enough one", "again": "a long enough one"}
    assert "two passwords differ" in fresh.ask("/first", form={**form, "again": "x"}).text
    made = fresh.ask("/first", form=form)
    assert made.status == 303
    assert fresh.data("/account.json", made.cookie)["administers"] is True
    assert fresh.snapshot()["right/console-administrators"]["subjects"] == ["user:ada"]
    again = fresh.ask("/first", form={**form, "user": "eve"})
    assert again.status == 422
    assert "set-cookie" not in again.headers
    fresh.stop()
    fresh.start()
    assert "/first?link=" not in fresh.log.read_text()
    passwords = fresh.config.data / "keys" / "passwords"
    assert passwords.stat().st_mode & 0o077 == 0


def test_the_description_names_every_page(console: ConsoleInstallation) -> None:
    described = console.ask("/openapi.json").data
    assert "/overview.json" in described["paths"]
    assert described["paths"]["/overview.json"]["get"]["responses"]["200"]["content"]
    assert not any(path.endswith(".live") for path in described["paths"])
