"""The rooms of definitions, views and the audit log in a browser: looked at, and used."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from penstock.pipeline.control import Control, RiskMoment, note_risk
from tests.support.console.browsing import Person
from tests.support.console.installation import DEFINITIONS, ConsoleInstallation

pytestmark = pytest.mark.needs("chromium")
WARD = """
---
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
---
kind: view
name: study
stream: vitals
anonymizers:
- {anonymizer: suppression, keys: [patient]}
---
kind: role
name: reader
---
kind: user
name: officer
roles: [reader]
---
kind: view
name: observed
stream: vitals
format: json
roles: [reader]
anonymizers:
- {anonymizer: bucketizing, keys: [heart_rate], bucket_size: 10}
"""
OPEN = 'kind: reservation\nname: "ward/#"\nallow: [care, research]\n'


@pytest.fixture(scope="module")
def officer(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    folder = tmp_path_factory.mktemp("console")
    console = ConsoleInstallation(folder, definitions=DEFINITIONS + WARD).start()
    _publish(console)
    with Person(browser, console, "officer") as person:
        yield person
    console.stop()


def _publish(console: ConsoleInstallation) -> None:
    """Let a view have records, and a history of its risk."""
    folder = Control(console.config.pipeline.folder).view("observed")
    folder.data.mkdir(parents=True)
    rows = [{"patient": f"p{it % 4}", "heart_rate": f"[{60 + it} - {70 + it}]"} for it in (0, 10)]
    (folder.data / "000.json").write_text("".join(json.dumps(it) + "\n" for it in rows))
    for number in range(60):
        share = 0.2 + 0.1 * math.sin(number / 9)
        moment = RiskMoment(time.time() - 60 * (60 - number), share, 2 * share, 5, share / 2)
        note_risk(folder.folder, moment)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/definitions", "definitions"),
        ("/definitions?q=nothing-has-this-name", "definitions-none"),
        ("/definitions/one?kind=purpose&name=care", "definition"),
        ("/definitions/history", "history"),
        ("/definitions/epoch?epoch=1", "epoch"),
        ("/definitions/edit?kind=reservation&name=ward%2F%23", "edit"),
        ("/views", "views"),
        ("/views/one?name=study", "view"),
        ("/views/form?stream=vitals", "view-form"),
        ("/views/one?name=observed", "view-measured"),
        ("/live", "live"),
        ("/live/view?name=observed", "live-view"),
        ("/audit", "audit"),
        ("/audit/verify", "verify"),
    ],
)
def test_pages_are_readable(officer: Person, shots: Path, path: str, name: str) -> None:
    officer.look(path, shots, name)


def test_a_definition_is_changed_and_changed_back(officer: Person, shots: Path) -> None:
    page = officer.page
    page.goto("/definitions")
    page.get_by_role("link", name="New").click()
    text = page.get_by_label("Definitions as YAML")
    text.fill(OPEN.replace("research", "resaerch"))
    page.get_by_role("button", name="Review…").click()
    expect(page.get_by_role("alert")).to_contain_text("resaerch")
    officer.check_accessibility("the editor with a problem")
    text.fill(OPEN)
    page.get_by_label("Why").fill("for the study")
    page.get_by_role("button", name="Review…").click()
    expect(page.get_by_role("heading", name="Effect on access")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="nina")).to_contain_text("none → full")
    page.screenshot(path=shots / "review.png", full_page=True)
    officer.check_accessibility("the review")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("status")).to_contain_text("1 definition changed")
    page.get_by_role("button", name="Bring epoch 1 back").click()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_label("The definition")).not_to_contain_text("research")


def test_a_view_is_made_by_the_form(officer: Person, shots: Path) -> None:
    page = officer.page
    page.goto("/views")
    page.get_by_role("link", name="New view of vitals").click()
    page.get_by_label("Name").fill("nurses")
    page.get_by_role("combobox", name="Anonymizer").select_option("suppression")
    page.get_by_role("button", name="Add").click()
    page.locator("input[name='step.0.keys'][value=patient]").check()
    page.get_by_role("combobox", name="Anonymizer").select_option("bucketizing")
    page.get_by_role("button", name="Add").click()
    page.locator("input[name='step.1.keys'][value=heart_rate]").check()
    page.get_by_role("button", name="Review…").click()
    expect(page.get_by_role("alert")).to_contain_text("bucket_size")
    page.get_by_label("bucket_size").fill("10")
    page.get_by_label("Name").press("Enter")
    expect(page.get_by_role("cell").filter(has_text='"[20 - 30]"').first).to_be_visible()
    page.screenshot(path=shots / "preview.png", full_page=True)
    officer.check_accessibility("the form of a view")
    page.get_by_role("button", name="Review…").click()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_label("The definition")).to_contain_text("bucket_size: 10")
    page.goto("/views/one?name=nurses")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("status")).to_contain_text("nurses is to be running")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()


def test_the_log_is_verified_while_one_looks(officer: Person) -> None:
    page = officer.page
    page.goto("/audit/verify")
    page.get_by_role("button", name="Verify now").click()
    expect(page.get_by_text("entries are as they were signed")).to_be_visible()
