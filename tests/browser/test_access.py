"""Access in a browser: looked at, and used as a data officer does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.support.console.browsing import Person
from tests.support.console.installation import ConsoleInstallation
from tests.support.console.ward import WARD

pytestmark = pytest.mark.needs("chromium")
QUESTION = "user=nina&topic=ward%2Fp-17%2Fvitals&purpose=care"


@pytest.fixture(scope="module")
def officer(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    console = ConsoleInstallation(tmp_path_factory.mktemp("console"), definitions=WARD).start()
    with Person(browser, console, "officer") as person:
        yield person
    console.stop()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/access", "people"),
        ("/access?q=nothing-has-this-name", "people-none"),
        ("/access/user?name=omar", "user"),
        ("/access/role?name=nurse", "role"),
        ("/access/matrix", "matrix"),
        ("/access/matrix?situation=oxygen%3DLow&everybody=true", "matrix-emergency"),
        ("/lineage", "lineage"),
        ("/lineage?q=study", "lineage-search"),
        ("/views/stream?name=vitals", "stream"),
        ("/views/form?stream=vitals", "view-form"),
        ("/access/why", "why"),
        (f"/access/why?{QUESTION}", "why-denied"),
        ("/access/why?user=omar&topic=ward%2Fp-17%2Fvitals&purpose=care", "why-allowed"),
    ],
)
def test_pages_are_readable(officer: Person, shots: Path, path: str, name: str) -> None:
    officer.look(path, shots, name)


def test_a_role_is_given_and_the_matrix_changes(officer: Person, shots: Path) -> None:
    page = officer.page
    page.goto("/access/matrix")
    table = page.get_by_role("region", name="vitals, ward/example/vitals")
    expect(table.get_by_role("row").filter(has_text="omar")).to_contain_text("changed")
    expect(table.get_by_role("row").filter(has_text="nina")).to_have_count(0)
    page.goto("/access")
    page.get_by_role("link", name="nina", exact=True).click()
    page.get_by_role("combobox", name="Role").select_option("nurse")
    page.get_by_role("button", name="Give…").click()
    effect = page.get_by_role("row").filter(has_text="nina").filter(has_text="care")
    expect(effect.first).to_contain_text("none → changed")
    officer.check_accessibility("the review of a role")
    page.screenshot(path=shots / "review-role.png", full_page=True)
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("nina")
    expect(page.get_by_role("button", name="Take the role nurse")).to_be_visible()
    page.goto("/access/matrix")
    row = table.get_by_role("row").filter(has_text="nina")
    expect(row).to_contain_text("care")
    expect(row).to_contain_text("changed")
    page.get_by_role("link", name="nina", exact=True).first.click()
    page.get_by_role("button", name="Take the role nurse").click()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("button", name="Take the role nurse")).to_have_count(0)


def test_a_question_is_asked_by_the_form(officer: Person) -> None:
    page = officer.page
    page.goto("/access/why")
    page.get_by_label("Who").fill("frey")
    page.get_by_label("the topic").fill("ward/p-17/vitals")
    page.get_by_label("For the purpose").fill("care")
    page.get_by_label("While").fill("none")
    page.get_by_role("button", name="Ask").click()
    answer = page.get_by_label("Answer")
    expect(answer).to_contain_text("Denied")
    expect(answer).to_contain_text("emergency-policy doctor-on-call")
    page.get_by_label("While").fill("oxygen/p-17=Low")
    page.get_by_role("button", name="Ask").click()
    expect(answer).to_contain_text("Allowed")
    expect(answer).to_contain_text("oxygen of p-17: Low")
    officer.check_accessibility("an answer")
