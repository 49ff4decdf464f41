"""Emergencies in a browser: a real gateway, real events, and a nurse who follows one to its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.support.console.browsing import Person
from tests.support.console.installation import ConsoleInstallation
from tests.support.console.ward import USERS, WARD, publish, subscribe
from tests.support.store.installation import until

pytestmark = [
    pytest.mark.needs("chromium"),
    pytest.mark.needs("mosquitto"),
    pytest.mark.needs("mosquitto-clients"),
]


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInstallation]:
    installation = ConsoleInstallation(
        tmp_path_factory.mktemp("emergencies"),
        parts=("broker", "gateway", "console"),
        definitions=WARD,
        users=USERS,
    )
    installation.start()
    yield installation
    installation.stop()


@pytest.fixture(scope="module")
def nurse(browser: Browser, ward: ConsoleInstallation) -> Iterator[Person]:
    with Person(browser, ward, "nurse") as person:
        yield person


def test_an_emergency_is_followed_from_its_start_to_its_end(
    nurse: Person, ward: ConsoleInstallation, shots: Path
) -> None:
    page = nurse.page
    page.goto("/emergencies")
    expect(page.get_by_text("No emergency holds.")).to_be_visible()
    nurse.look("/emergencies", shots, "emergencies-none")
    publish(ward, "ward/p-17/alarm", grade=1)
    expect(page.get_by_role("row").filter(has_text="p-17")).to_contain_text("Low")
    publish(ward, "ward/p-17/alarm", grade=2)
    expect(page.get_by_role("row").filter(has_text="p-17")).to_contain_text("Critical")
    expect(page.locator(".plan .here")).to_contain_text("Critical")
    publish(ward, "ward/p-9/alarm", grade=1)
    expect(page.locator(".plan .here")).to_have_count(2)
    nurse.look("/emergencies", shots, "emergencies")
    page.get_by_role("link", name="p-17").first.click()
    expect(page.get_by_role("region", name="What it opens")).to_contain_text("frey")
    nurse.look("/emergencies/scenario?name=oxygen&subject=p-17", shots, "case")
    form = page.get_by_role("form", name="End")
    form.get_by_label("Reason").fill("treated")
    form.get_by_role("button", name="End it").click()
    expect(page.get_by_role("status")).to_contain_text("The emergency of p-17 is over")
    expect(page.get_by_role("region", name="How it came about")).to_contain_text("treated")
    publish(ward, "ward/p-9/alarm", grade=0)
    page.goto("/emergencies")
    expect(page.get_by_text("No emergency holds.")).to_be_visible()


def test_the_glass_is_broken_by_hand(nurse: Person, shots: Path) -> None:
    page = nurse.page
    page.goto("/emergencies/scenario?name=oxygen")
    form = page.get_by_role("form", name="Start")
    form.get_by_label("Whose").fill("p-99")
    form.get_by_label("Reason").fill("no pulse")
    form.get_by_role("button", name="Break the glass").click()
    expect(page.get_by_role("alert")).to_contain_text("never was in a situation")
    nurse.check_accessibility("a name that nobody knows")
    page.get_by_label("The name is right").check()
    form.get_by_role("button", name="Break the glass").click()
    expect(page.get_by_role("status")).to_contain_text("p-99 is in Low of oxygen")
    expect(page.get_by_label("Situation").first).to_contain_text("Low")
    nurse.look("/emergencies/scenario?name=oxygen", shots, "scenario")
    nurse.look("/emergencies/history", shots, "situation-history")


def test_somebody_asks_why_a_delivery_was_denied_and_tries_a_draft_on_it(
    browser: Browser, ward: ConsoleInstallation, shots: Path
) -> None:
    session = ward.sign_in("officer")
    reader = subscribe(ward, "nina", "care")

    def denied() -> bool:
        publish(ward, "ward/p-17/vitals", patient="p-17", pulse=81, oxygen=97)
        return bool(ward.data("/access/decisions.json?q=nina&outcome=denied", session)["total"])

    until(denied, "a delivery that is denied")
    reader.terminate()
    reader.wait(30)
    with Person(browser, ward, "officer") as officer:
        page = officer.page
        officer.look("/access/decisions", shots, "decisions")
        page.get_by_label("User, topic or rule").fill("nina")
        page.get_by_role("button", name="Show").click()
        page.get_by_role("link", name="Why: nina read ward/p-17/vitals").first.click()
        answer = page.get_by_label("Answer")
        expect(answer).to_contain_text("Denied")
        expect(answer).to_contain_text("role nurse")
        expect(answer).to_contain_text("not active")
        page.screenshot(path=shots / "why-delivery.png", full_page=True)
        page.goto("/access/user?name=nina")
        page.get_by_role("combobox", name="Role").select_option("nurse")
        page.get_by_role("button", name="Give…").click()
        turned = page.get_by_role("region", name="Recent decisions, decided anew")
        expect(turned).to_contain_text("denied → allowed")
        expect(turned).to_contain_text("ward/p-17/vitals")
        officer.check_accessibility("a review with recent decisions")
        page.screenshot(path=shots / "review-replay.png", full_page=True)
