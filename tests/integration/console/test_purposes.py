"""Purposes at the console: the tree, what a topic allows, and changes by review."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import pytest

from tests.support.console.installation import DEFINITIONS, Answer, ConsoleInstallation

RULES = """
---
{kind: purpose, name: care}
---
{kind: purpose, name: marketing}
---
{kind: purpose, name: marketing/age}
---
kind: reservation
name: "ward/#"
allow: [care]
---
kind: reservation
name: "ward/+/vitals"
allow: [marketing/age]
prohibit: [marketing]
---
kind: stream
name: vitals
fields: [{name: marketing, type: string}]
---
kind: right
name: claims
subjects: [user:nurse]
claim: ["marketing/age"]
monitor: ["$console/purposes"]
---
kind: control
name: ads
stateful: true
purposes: [marketing]
"""


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInstallation]:
    installation = ConsoleInstallation(
        tmp_path_factory.mktemp("console"), definitions=DEFINITIONS + RULES
    )
    installation.start()
    yield installation
    installation.stop()


def apply(console: ConsoleInstallation, session: str, review: Answer) -> Answer:
    """Press the button of a review."""
    assert review.status == 200, review.text
    fields = dict(re.findall(r'name="(mark|reason)" value="([^"]*)"', review.text))
    (text,) = re.findall(r'<textarea name="text" hidden>\n(.*?)</textarea>', review.text, re.DOTALL)
    gone = re.findall(r'name="delete" value="([^"]*)"', review.text)
    form = [("text", html.unescape(text)), *fields.items(), *(("delete", it) for it in gone)]
    return console.act_all("/definitions/apply", session, form)


def test_the_tree_says_what_topics_are_for(console: ConsoleInstallation) -> None:
    officer = console.sign_in("officer")
    data = console.data("/purposes.json?topic=ward/7/vitals", officer)
    rows = {it["name"]: it for it in data["purposes"]}
    assert list(rows) == ["care", "marketing", "marketing/age"]
    assert (rows["marketing"]["prohibited"], rows["marketing"]["controls"]) == (1, ["ads"])
    assert [it["filter"] for it in data["levels"]] == ["ward", "ward/#", "ward/+", "ward/+/vitals"]
    found = data["effective"]
    assert (found["allow"], found["prohibit"]) == (["care", "marketing/age"], ["marketing"])
    verdicts = {it["purpose"]: it["where"] for it in found["verdicts"]}
    assert verdicts == {
        "": "denied",
        "care": "allowed",
        "marketing": "denied",
        "marketing/age": "denied",
    }
    whole = console.data("/purposes.json?topic=ward/%23", officer)["effective"]["verdicts"]
    assert {it["purpose"]: it["where"] for it in whole}["care"] == "allowed"
    free = console.data("/purposes.json?topic=yard/1", officer)["effective"]
    assert free["reserved"] is False
    assert {it["where"] for it in free["verdicts"]} == {"allowed"}
    assert console.ask("/purposes.json?topic=a/%23/b", session=officer).status == 422


def test_renaming_a_purpose_renames_it_wherever_it_is_meant(console: ConsoleInstallation) -> None:
    officer = console.sign_in("officer")
    review = console.act("/purposes/rename", officer, name="marketing", label="promotion")
    assert "Effect on access" in review.text
    assert apply(console, officer, review).status == 303
    now = console.snapshot()
    assert {"purpose/promotion", "purpose/promotion/age"} <= now.keys()
    assert not {"purpose/marketing", "purpose/marketing/age"} & now.keys()
    held = now["reservation/ward/+/vitals"]
    assert (held["allow"], held["prohibit"]) == (["promotion/age"], ["promotion"])
    assert now["control/ads"]["purposes"] == ["promotion"]
    assert now["right/claims"]["claim"] == ["promotion/age"]
    # A field that is called the same is something else.
    assert now["stream/vitals"]["fields"][0]["name"] == "marketing"
    back = console.act("/purposes/rename", officer, name="promotion", label="marketing")
    assert apply(console, officer, back).status == 303
    assert console.snapshot()["right/claims"]["claim"] == ["marketing/age"]


def test_a_purpose_is_added_and_removed_by_review(console: ConsoleInstallation) -> None:
    officer = console.sign_in("officer")
    review = console.act("/purposes/add", officer, parent="care", label="night")
    assert "purpose/care/night" not in console.snapshot()
    assert apply(console, officer, review).status == 303
    assert "purpose/care/night" in console.snapshot()
    assert console.act("/purposes/add", officer, parent="care", label="night").status == 422
    assert console.act("/purposes/add", officer, label="a/b{").status == 422
    assert console.act("/purposes/rename", officer, name="care", label="marketing").status == 422
    assert apply(console, officer, console.act("/purposes/remove", officer, name="care/night"))
    assert "purpose/care/night" not in console.snapshot()
    # What others name cannot go: the review says who does.
    refused = console.act("/purposes/remove", officer, name="marketing")
    assert refused.status == 422
    assert "reservation" in refused.text


def test_topics_are_reserved_and_freed_by_review(console: ConsoleInstallation) -> None:
    officer = console.sign_in("officer")
    review = console.act("/purposes/reserve", officer, filter="yard/#", allow="care")
    assert apply(console, officer, review).status == 303
    assert console.snapshot()["reservation/yard/#"] == {"allow": ["care"]}
    review = console.act("/purposes/reserve", officer, filter="yard/#", do="delete")
    assert apply(console, officer, review).status == 303
    assert "reservation/yard/#" not in console.snapshot()


def test_who_may_look_changes_nothing(console: ConsoleInstallation) -> None:
    nurse = console.sign_in("nurse")
    assert console.data("/purposes.json", nurse)["may_change"] is False
    for path in ("add", "rename", "remove", "reserve"):
        assert console.act(f"/purposes/{path}", nurse, name="care", label="x").status == 403
    auditor = console.sign_in("auditor")
    for path in ("/purposes", "/purposes/subscriptions", "/purposes/subscriptions.json"):
        assert console.ask(path, session=auditor).status == 403


def test_where_no_gateway_runs_nobody_is_said_to_subscribe(console: ConsoleInstallation) -> None:
    data = console.data("/purposes/subscriptions.json", console.sign_in("nurse"))
    assert (data["gateways"], data["rows"]) == (0, [])
    assert "No gateway runs" in console.page("/purposes/subscriptions", console.sign_in("nurse"))
