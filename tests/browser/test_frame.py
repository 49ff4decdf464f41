"""What all pages share: sign-in, navigation, keyboard, schemes, times, help, the tour."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.support.console.browsing import Person
from tests.support.console.installation import ConsoleInstallation

pytestmark = pytest.mark.needs("chromium")


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInstallation]:
    installation = ConsoleInstallation(tmp_path_factory.mktemp("console"))
    installation.start()
    yield installation
    installation.stop()


@pytest.fixture(scope="module")
def officer(browser: Browser, console: ConsoleInstallation) -> Iterator[Person]:
    with Person(browser, console, "officer") as person:
        yield person


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/overview", "overview"),
        ("/account", "account"),
        ("/search?q=audit", "search"),
        ("/help?page=explanation/roles", "help"),
        ("/no-such-page", "error"),
    ],
)
def test_pages_are_readable(officer: Person, shots: Path, path: str, name: str) -> None:
    officer.look(path, shots, name)


def test_signing_in_is_readable(
    browser: Browser, console: ConsoleInstallation, shots: Path
) -> None:
    with Person(browser, console, "") as stranger:
        stranger.look("/sign-in", shots, "sign-in")
        stranger.page.goto("/help?page=explanation/roles")
        stranger.page.get_by_label("User name").fill("nurse")
        stranger.page.get_by_label("Password").fill("wrong")
        stranger.page.get_by_role("button", name="Sign in").click()
        expect(stranger.page.get_by_role("alert")).to_contain_text("wrong user name or password")
        stranger.page.get_by_label("Password").fill("pw-nurse")
        stranger.page.get_by_role("button", name="Sign in").click()
        expect(stranger.page.get_by_role("heading", level=1)).to_contain_text("Roles: activated")
        stranger.page.get_by_role("button", name="Sign out").click()
        expect(stranger.page.get_by_role("heading", level=1)).to_have_text("Sign in to Penstock")


def test_the_keyboard_reaches_everything(officer: Person) -> None:
    page = officer.page
    page.goto("/account")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("roles")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Search")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("1")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    page.keyboard.press("h")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Architecture")


def test_the_chosen_scheme_stays(officer: Person) -> None:
    page = officer.page
    page.emulate_media(color_scheme="light")
    page.goto("/account")
    page.get_by_role("button", name="Switch between dark and light").click()
    page.goto("/help")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.keyboard.press("t")
    page.goto("/account")
    assert page.locator("html").get_attribute("data-theme") == "light"


def test_times_are_those_of_the_viewer(browser: Browser, console: ConsoleInstallation) -> None:
    session = console.sign_in("officer")
    shown = []
    for zone in ("Asia/Tokyo", "America/New_York"):
        context = browser.new_context(timezone_id=zone, locale="en-GB", base_url=console.url)
        context.add_cookies([{"name": "penstock-session", "value": session, "url": console.url}])
        page = context.new_page()
        page.goto("/account")
        page.locator("time[data-shown]").first.wait_for()
        shown.append(page.locator("time").last.inner_text())
        context.close()
    assert shown[0] != shown[1]


def test_the_tour_has_five_steps_and_comes_once(
    browser: Browser, console: ConsoleInstallation, shots: Path
) -> None:
    with Person(browser, console, "officer", tour=True) as person:
        page = person.page
        tour = page.get_by_role("dialog", name="A look around")
        expect(tour).to_be_visible()
        page.screenshot(path=shots / "tour.png")
        person.check_accessibility("the tour")
        for step in range(1, 6):
            expect(tour).to_contain_text(f"{step} of 5")
            tour.get_by_role("button", name="Done" if step == 5 else "Next").click()
        expect(tour).to_be_hidden()
        page.goto("/account")
        expect(page.locator("#tour")).to_have_count(0)


def test_what_is_live_changes_by_itself(officer: Person, console: ConsoleInstallation) -> None:
    page = officer.page
    page.goto("/overview")
    epoch = console.apply("kind: purpose\nname: care\n")
    expect(page.get_by_text(f"Definitions of epoch {epoch}.")).to_be_visible()
