"""Definitions at the console: nothing is applied that was not shown, and all of it is recorded."""

from __future__ import annotations

import html
import json
import re

import pytest

from tests.support.console.installation import Answer, ConsoleInstallation
from tests.support.store.installation import until

WARD = """
kind: purpose
name: care
---
kind: purpose
name: research
---
kind: stream
name: vitals
format: json
from: ["ward/+patient/vitals"]
subject: patient
fields:
- {name: patient, type: string}
- {name: heart_rate, type: int}
---
kind: reservation
name: "ward/#"
allow: [care]
---
kind: user
name: nina
"""
OPEN = 'kind: reservation\nname: "ward/#"\nallow: [care, research]\n'


@pytest.fixture(scope="module")
def officer(console: ConsoleInstallation) -> str:
    epoch = console.apply(WARD)
    session = console.sign_in("officer")
    until(lambda: console.data("/definitions.json", session)["epoch"] >= epoch, "the ward")
    return session


def hidden(answer: Answer) -> dict[str, str]:
    """Return what the form to apply carries."""
    form = answer.text.split('action="/definitions/apply"', 1)[1].split("</form>", 1)[0]
    found = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))
    text = re.search(r'<textarea name="text" hidden>\n?(.*?)</textarea>', form, re.DOTALL)
    assert text is not None
    return {name: html.unescape(it) for name, it in {**found, "text": text[1]}.items()}


def test_a_change_is_shown_with_its_effect_and_then_applied(
    console: ConsoleInstallation, officer: str
) -> None:
    before = console.snapshot()
    shown = console.act("/definitions/review", officer, text=OPEN, reason="for the study")
    assert shown.status == 200
    assert '<span class="plus">+ - research</span>' in shown.text
    assert "opens" in shown.text
    assert "ward/example/vitals" in shown.text
    assert console.snapshot() == before
    form = hidden(shown)
    applied = console.ask("/definitions/apply", session=officer, form={**form, "reason": "study"})
    assert applied.status == 303
    assert console.snapshot()["reservation/ward/#"]["allow"] == ["care", "research"]
    page = console.page(applied.headers["location"], officer)
    assert "1 definition changed" in page
    history = console.data("/definitions/history.json", officer)["epochs"][0]
    assert (history["actor"], history["reason"]) == ("officer", "study")
    back = console.act("/definitions/rollback", officer, epoch=str(history["epoch"] - 1))
    assert '<span class="minus">- - research</span>' in back.text
    assert "closes" in back.text
    assert console.ask("/definitions/apply", session=officer, form=hidden(back)).status == 303
    assert console.snapshot() == before


def test_what_is_applied_is_what_was_shown(console: ConsoleInstallation, officer: str) -> None:
    before = console.snapshot()
    form = hidden(console.act("/definitions/review", officer, text=OPEN))
    csrf = form["csrf"]
    forged = {
        "no mark": {"text": OPEN, "csrf": csrf},
        "another text": {**form, "text": OPEN.replace("research", "care/other")},
        "a deletion more": {**form, "delete": "user/nina"},
        "the mark of another": {**form, "mark": "0" * 64},
    }
    for name, it in forged.items():
        answer = console.ask("/definitions/apply", session=officer, form=it)
        assert answer.status in {200, 422}, name
    assert console.snapshot() == before


def test_a_change_in_between_is_shown_anew(console: ConsoleInstallation, officer: str) -> None:
    form = hidden(console.act("/definitions/review", officer, text=OPEN))
    epoch = console.apply("kind: user\nname: nora\n")
    until(lambda: console.data("/definitions.json", officer)["epoch"] == epoch, "the change")
    answer = console.ask("/definitions/apply", session=officer, form=form)
    assert answer.status == 200
    assert "changed since" in answer.text
    assert console.snapshot()["reservation/ward/#"]["allow"] == ["care"]


def test_what_is_wrong_is_told_and_the_text_stays(
    console: ConsoleInstallation, officer: str
) -> None:
    text = "kind: reservation\nname: x\nallow: [no-such-purpose]\n---\nkind: nothing\nname: y\n"
    answer = console.act("/definitions/review", officer, text=text)
    assert answer.status == 422
    assert "nothing was applied" in answer.text
    assert "no-such-purpose" in answer.text
    assert "kind: nothing" in answer.text
    assert console.act("/definitions/review", officer, text="").status == 422
    used = console.act("/definitions/review", officer, delete="purpose/care")
    assert used.status == 422
    assert "ward/#" in used.text


def test_a_definition_tells_its_history_and_what_names_it(
    console: ConsoleInstallation, officer: str
) -> None:
    found = console.data("/definitions/one.json?kind=purpose&name=care", officer)
    assert found["text"] == "kind: purpose\nname: care\n"
    assert found["used_by"] == ["reservation/ward/#"]
    assert found["revisions"]
    assert console.ask("/definitions/one?kind=purpose&name=none", session=officer).status == 404
    assert console.ask("/definitions/one?kind=none&name=none", session=officer).status == 404
    rows = console.data("/definitions.json?kind=purpose&q=RES", officer)["rows"]
    assert [it["name"] for it in rows] == ["research"]


def test_who_may_look_may_not_change(console: ConsoleInstallation, officer: str) -> None:
    console.apply('kind: right\nname: look\nsubjects: [user:nurse]\nmonitor: ["$console/#"]\n')
    session = console.sign_in("nurse")
    until(
        lambda: console.ask("/definitions.json", session=session).status == 200, "the right to look"
    )
    assert "Edit</a>" not in console.page("/definitions/one?kind=purpose&name=care", session)
    assert console.ask("/definitions/edit", session=session).status == 403
    for path in ("/definitions/review", "/definitions/apply", "/definitions/rollback"):
        answer = console.act(path, session, text=OPEN, epoch="1", mark="0" * 64)
        assert answer.status == 403, path
    stranger = console.sign_in("nobody")
    for path in ("/definitions", "/definitions/history.json", "/definitions/epoch?epoch=1"):
        assert console.ask(path, session=stranger).status == 403
    assert "purpose" not in json.dumps(console.data("/search.json?q=care", stranger)["hits"])


def test_names_and_texts_of_others_are_text(console: ConsoleInstallation, officer: str) -> None:
    evil = "</textarea><script>alert(1)</script>"
    answer = console.act("/definitions/review", officer, text=evil, reason=evil)
    assert "<script>alert" not in answer.text
    topic = 'kind: reservation\nname: "<img src=x onerror=alert(1)>/#"\nallow: [care]\n'
    shown = console.act("/definitions/review", officer, text=topic)
    assert shown.status == 200
    assert "<img src=x" not in shown.text
    console.ask("/definitions/apply", session=officer, form=hidden(shown))
    for path in ("/definitions", "/search?q=onerror", "/definitions/history"):
        assert "<img src=x" not in console.page(path, officer)
