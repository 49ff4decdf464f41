"""Views at the console: control, the form, and a preview that shows nobody's data."""

from __future__ import annotations

import html
import json
import re

import pytest

from penstock.console.figures import MOST_POINTS
from penstock.pipeline.control import Control, RiskMoment, note_risk
from penstock.pipeline.sinks.commits import COMMITS, Commit, Totals
from tests.support.console.installation import ConsoleInstallation
from tests.support.store.installation import until

WARD = """
kind: stream
name: pulses
format: json
from: ["pulse/+patient"]
subject: patient
fields:
- {name: patient, type: string}
- {name: heart_rate, type: int}
---
kind: role
name: researcher
---
kind: view
name: study
stream: pulses
roles: [researcher]
anonymizers:
- {anonymizer: tokenization, keys: [patient]}
"""
STEP = {
    "name": "nurses",
    "stream": "pulses",
    "shown": "pulses",
    "step": "bucketizing",
    "step.0.keys": "heart_rate",
    "step.0.bucket_size": "10",
}


@pytest.fixture(scope="module")
def officer(console: ConsoleInstallation) -> str:
    epoch = console.apply(WARD)
    session = console.sign_in("officer")
    until(lambda: console.data("/definitions.json", session)["epoch"] >= epoch, "the views")
    return session


def test_a_view_tells_what_it_leaves_and_does_as_it_is_told(
    console: ConsoleInstallation, officer: str
) -> None:
    page = console.data("/views/one.json?name=study", officer)
    assert {it["field"]: it["degree"] for it in page["left"]} == {
        "patient": "changed",
        "heart_rate": "full",
    }
    control = Control(console.config.pipeline.folder)
    assert page["view"]["actions"] == ["initialize", "start"]
    for action, state in (("start", "running"), ("pause", "paused"), ("stop", "stopped")):
        assert console.act("/views/control", officer, view="study", action=action).status == 303
        assert control.wanted("study").state == state
    assert console.act("/views/control", officer, view="study", action="resume").status == 422
    assert console.act("/views/control", officer, view="none", action="start").status == 404
    rows = console.data("/audit.json?kind=console.view-control", officer)["rows"]
    assert [it["details"]["operation"] for it in rows[:3]] == ["stop", "pause", "start"]


def test_who_may_not_administer_controls_nothing(
    console: ConsoleInstallation, officer: str
) -> None:
    console.apply('kind: right\nname: v\nsubjects: [user:pump]\nmonitor: ["$console/views"]\n')
    session = console.sign_in("pump")
    until(lambda: console.ask("/views.json", session=session).status == 200, "the right")
    assert console.data("/views.json", session)["views"][0]["actions"] == []
    assert console.act("/views/control", session, view="study", action="start").status == 403
    assert console.ask("/views/form", session=session).status == 403
    assert console.act("/views/form", session, **STEP, do="preview").status == 403


def test_the_form_previews_and_leads_to_the_review(
    console: ConsoleInstallation, officer: str
) -> None:
    shown = console.act("/views/form", officer, **STEP, do="preview")
    assert shown.status == 200
    assert "[20 - 30]" in html.unescape(shown.text)
    assert "view/nurses" not in console.snapshot()
    review = console.act("/views/form", officer, **STEP, do="review")
    assert "Difference to epoch" in review.text
    assert "+ - anonymizer: bucketizing" in html.unescape(review.text)
    broken = console.act("/views/form", officer, **{**STEP, "step.0.bucket_size": "x"}, do="review")
    assert broken.status == 422
    assert "bucket_size" in broken.text
    unknown = console.act("/views/form", officer, **{**STEP, "step": "magic"}, do="preview")
    assert unknown.status == 422


def test_a_preview_cannot_be_compared_with_real_pseudonyms(
    console: ConsoleInstallation, officer: str
) -> None:
    form = {**STEP, "step": "tokenization", "do": "preview"}
    form["records"] = json.dumps({"patient": "Ada", "heart_rate": 1})
    form["step.0.keys"] = "patient"
    form["step.0.bucket_size"] = ""
    tokens = set()
    for _ in range(2):
        text = html.unescape(console.act("/views/form", officer, **form).text)
        tokens.add(re.findall(r'"patient": "([^"]+)"', text)[-1])
    assert len(tokens) == 2
    assert "Ada" not in tokens


@pytest.mark.parametrize(
    ("records", "told"),
    [("{", "line 1 of the records"), ("[1]", "line 1 of the records"), ("{}\n" * 51, "more than")],
)
def test_records_that_are_none_are_refused(
    console: ConsoleInstallation, officer: str, records: str, told: str
) -> None:
    answer = console.act("/views/form", officer, **STEP, records=records, do="preview")
    assert told in answer.text


def test_a_preview_tells_what_is_lost_and_risked(
    console: ConsoleInstallation, officer: str
) -> None:
    records = "\n".join(
        json.dumps({"patient": name, "heart_rate": rate})
        for name, rate in (("Ada", 61), ("Ben", 64), ("Cleo", 71), ("Dan", 78))
    )
    form = {**STEP, "remove": "patient", "records": records, "do": "preview"}
    page = html.unescape(console.act("/views/form", officer, **form).text)
    figures = dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]+)", page))
    # Of two bits about whom nothing is left, of two about the pulse one is: 60s or 70s.
    assert figures["Information lost"].strip() == "75"
    assert figures["Mean risk before"] == "1"
    assert figures["Mean risk after"] == "0.50"


def test_a_view_tells_its_losses_batch_by_batch(console: ConsoleInstallation, officer: str) -> None:
    folder = Control(console.config.pipeline.folder).view("study").folder
    folder.mkdir(parents=True, exist_ok=True)
    totals = [Totals(), Totals(10, 8, 2, 2.0), Totals(20, 18, 2, 7.0), Totals(20, 18, 2, 7.0)]
    lines = [
        Commit(number, "plan", at=1_760_000_000_000 + number, totals=it).to_line()
        for number, it in enumerate(totals)
    ]
    (folder / COMMITS).write_bytes(b"".join(lines) + b'{"torn')
    page = console.data("/views/one.json?name=study", officer)
    assert page["losses"] == [0.25, 0.5]
    assert page["suppressed"] == [0.2, 0.0]
    assert "batch by batch" in console.page("/views/one?name=study", officer)
    stream = console.data("/views/stream.json?name=pulses", officer)
    assert [it["name"] for it in stream["views"]] == ["study"]


def test_a_view_tells_its_risk_over_time(console: ConsoleInstallation, officer: str) -> None:
    folder = Control(console.config.pipeline.folder).view("study").folder
    folder.mkdir(parents=True, exist_ok=True)
    assert console.data("/views/one.json?name=study", officer)["risks"] == []
    for number in range(1_000):
        note_risk(folder, RiskMoment(1_760_000_000 + 60.0 * number, 0.25, 0.5, 2, 0.1))
    note_risk(folder, RiskMoment(1_770_000_000, 0.1, 0.2, 5, 0.3))
    found = console.data("/views/one.json?name=study", officer)["risks"]
    assert 100 < len(found) <= MOST_POINTS
    assert found[-1] == {
        "at": "2026-02-02T02:40:00+00:00", "mean": 0.1, "most": 0.2, "k": 5, "loss": 0.3,
    }  # fmt: skip
    page = console.page("/views/one?name=study", officer)
    assert "Risk and loss of study over time" in page
    assert "greatest risk" in page
