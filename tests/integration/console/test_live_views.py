"""Live of views at the console: roles decide who sees records, and looking is recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.pipeline.control import Control
from penstock.store.audit.reader import read_last
from penstock.store.database import Database
from tests.support.console.installation import ConsoleInstallation
from tests.support.store.installation import until

STUDY = """
kind: stream
name: pulses
fields:
- {name: patient, type: string}
- {name: pulse, type: int}
---
kind: role
name: researcher
---
kind: user
name: nurse
roles: [researcher]
---
kind: user
name: auditor
---
kind: view
name: study
stream: pulses
format: json
roles: [researcher]
---
kind: view
name: orphan
stream: pulses
format: json
---
kind: view
name: far
stream: cluster
format: topic
roles: [researcher]
---
kind: stream
name: cluster
source: kafka
fields:
- {name: patient, type: string}
"""
ATTACK = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def study(console: ConsoleInstallation) -> ConsoleInstallation:
    epoch = console.apply(STUDY)
    session = console.sign_in("officer")
    until(lambda: console.data("/definitions.json", session)["epoch"] >= epoch, "the views")
    publish(console, "000", {"patient": "a", "pulse": 60}, {"patient": ATTACK, "pulse": 61})
    return console


def publish(console: ConsoleInstallation, name: str, *rows: dict[str, object]) -> None:
    data: Path = Control(console.config.pipeline.folder).view("study").data
    data.mkdir(parents=True, exist_ok=True)
    (data / f"{name}.json").write_text("".join(json.dumps(it) + "\n" for it in rows))


def looks(console: ConsoleInstallation) -> list[tuple[str, str]]:
    """Return who looked at views: outcome and view."""
    with (
        Database.open(console.config.store.connection_url()) as database,
        database.read() as connection,
    ):
        found = [it.as_document() for it in read_last(connection, 200)]
    return [(it["outcome"], it["details"]["view"]) for it in found if it["kind"] == "console.view"]


def test_who_has_a_role_sees_what_was_published_last(study: ConsoleInstallation) -> None:
    session = study.sign_in("nurse")
    assert study.data("/live.json", session)["views"] == ["far", "study"]
    seen = study.data("/live/view.json?name=study", session)["records"]
    assert [json.loads(it["text"])["pulse"] for it in seen] == [60, 61]
    page = study.page("/live/view?name=study", session)
    assert ATTACK not in page
    assert "&lt;script&gt;" in page
    only = study.data("/live/view.json?name=study&contains=60", session)["records"]
    assert len(only) == 1
    publish(study, "001", {"patient": "b", "pulse": 99})

    def newest() -> int:
        found = study.data("/live/view.json?name=study", session)["records"]
        return int(json.loads(found[0]["text"])["pulse"])

    until(lambda: newest() == 99, "the newest record")
    assert looks(study).count(("allowed", "study")) == 1
    assert "penstock consume cluster-far" in study.page("/live/view?name=far", session)


@pytest.mark.parametrize(("user", "status"), [("officer", 403), ("auditor", 404)])
@pytest.mark.parametrize("view", ["study", "orphan"])
def test_nobody_else_sees_records_whoever_administers(
    study: ConsoleInstallation, user: str, status: int, view: str
) -> None:
    session = study.sign_in(user)
    answer = study.ask(f"/live/view.json?name={view}", session=session)
    assert answer.status == status
    assert "pulse" not in answer.text
    if status == 404:  # as of one that there is not
        none = study.ask("/live/view.json?name=none", session=session)
        assert answer.text.replace(view, "none") == none.text
    assert ("denied", view) in looks(study)
    assert study.data("/live.json", session)["views"] == []
