"""The audit log at the console: search, verify, export; and what the console itself records."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from penstock.store.audit.pseudonyms import Pseudonyms
from tests.support.console.installation import ConsoleInstallation
from tests.support.store.installation import until


def test_what_is_done_at_the_console_is_recorded(console: ConsoleInstallation) -> None:
    session = console.sign_in("officer")
    console.ask("/sign-in", form={"user": "officer", "password": "wrong"})
    rows = console.data("/audit.json?kind=console.sign-in&who=officer", session)["rows"]
    assert [it["outcome"] for it in rows[:2]] == ["denied", "done"]
    assert rows[0]["actor"] == "officer"
    done = console.data("/audit.json?outcome=done&who=officer", session)["rows"]
    assert all(it["outcome"] == "done" for it in done)
    assert not console.data("/audit.json?who=somebody-else", session)["rows"]


def test_auditors_see_pseudonyms_and_find_a_name_all_the_same(
    console: ConsoleInstallation,
) -> None:
    session = console.sign_in("auditor")
    name = Pseudonyms.load(console.config.audit.pseudonym_key).person("auditor")
    console.data("/audit.json?who=auditor", session)
    rows = console.data("/audit.json?who=auditor", session)["rows"]
    assert {it["actor"] for it in rows} == {name}
    assert "auditor" not in json.dumps(rows)
    assert console.data(f"/audit.json?who={name}", session)["rows"] == rows


def test_to_search_for_somebody_is_recorded_once_for_a_while(console: ConsoleInstallation) -> None:
    session = console.sign_in("auditor")
    mark = Pseudonyms.load(console.config.audit.pseudonym_key).person("Ann Smith")
    assert not console.data("/audit.json?who=Ann%20Smith", session)["rows"]
    console.page("/audit?who=Ann%20Smith&outcome=done", session)
    console.data(f"/audit.json?who={mark}", session)
    (found,) = console.data("/audit.json?kind=console.search&who=Ann%20Smith", session)["rows"]
    assert found["subject"] == mark
    assert "Ann" not in json.dumps(found)
    console.act("/audit/export", session, who="Ann Smith")
    exported = console.data("/audit.json?kind=console.export", session)["rows"]
    assert exported[0]["subject"] == mark


def test_an_export_takes_a_place_among_the_streams(tmp_path: Path) -> None:
    limits = {"streams": 2, "streams_per_user": 1}
    small = ConsoleInstallation(tmp_path, console={"limits": limits}).start()
    try:
        session = small.sign_in("auditor")
        assert small.act("/audit/export", session).status == 200
        with closing(small.open_stream("/audit/verify.live", session)) as stream:
            assert stream.getresponse().status == 200
            assert small.act("/audit/export", session).status == 429
        until(lambda: small.act("/audit/export", session).status == 200, "the place was free again")
    finally:
        small.stop()


def test_a_number_that_no_entry_and_no_epoch_has_is_refused(console: ConsoleInstallation) -> None:
    session = console.sign_in("officer")
    for path in ("/audit.json?before=", "/definitions/epoch.json?epoch="):
        assert console.ask(f"{path}{10**20}", session=session).status == 422


def test_pages_go_back_to_the_first_entry(console: ConsoleInstallation) -> None:
    session = console.sign_in("auditor")
    for _ in range(110):
        console.ask("/sign-out/others", session=session, form={"csrf": console.csrf(session)})
    seen: list[int] = []
    path = "/audit.json"
    while True:
        page = console.data(path, session)
        seen += [it["seq"] for it in page["rows"]]
        if page["older"] is None:
            break
        path = f"/audit.json?before={page['older']}"
    assert seen == list(range(max(seen), -1, -1))


def test_an_export_has_every_entry_and_is_recorded(console: ConsoleInstallation) -> None:
    session = console.sign_in("auditor")
    answer = console.act("/audit/export", session, kind="console.sign-in")
    assert answer.status == 200
    assert answer.headers["content-disposition"].startswith("attachment")
    lines = [json.loads(it) for it in answer.text.splitlines()]
    assert {it["kind"] for it in lines} == {"console.sign-in"}
    assert [it["seq"] for it in lines] == sorted(it["seq"] for it in lines)
    assert console.data("/audit.json?kind=console.export", session)["rows"]
    assert console.act("/audit/export", console.sign_in("nobody")).status == 403


def test_the_log_is_verified_and_tampering_is_found(fresh: ConsoleInstallation) -> None:
    fresh.start()
    form = {"user": "ada", "password": "a long enough one", "again": "a long enough one"}
    session = fresh.ask("/first", form={**form, "link": fresh.link().partition("=")[2]}).cookie
    assert fresh.data("/audit/verify.json", session)["state"] == "never"

    def verify() -> dict[str, object]:
        assert fresh.act("/audit/verify", session).status == 303
        found: dict[str, object] = until(
            lambda: (page := fresh.data("/audit/verify.json", session))["state"] == "done" and page,
            "the verdict",
        )
        return found

    good = verify()
    assert good["ok"] is True
    assert good["size"] == good["head_size"]
    with closing(sqlite3.connect(fresh.config.data / "penstock.db")) as database:
        database.execute("DROP TRIGGER audit_entries_no_update")
        database.execute("UPDATE audit_entries SET outcome = 'failed' WHERE seq = 1")
        database.commit()
    bad = verify()
    assert bad["ok"] is False
    assert bad["findings"]
