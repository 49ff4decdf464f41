"""A person at the console: signs in with a real browser, looks at pages, and takes pictures."""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, ViewportSize

from tests.support.console.installation import PASSWORDS, ConsoleInstallation

FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE: Final = 120_000
DESK: Final[ViewportSize] = {"width": 1280, "height": 860}
PHONE: Final[ViewportSize] = {"width": 390, "height": 844}
SERIOUS: Final = {"serious", "critical"}


class Person:
    """Somebody with a browser of their own."""

    def __init__(
        self, browser: Browser, console: ConsoleInstallation, user: str, *, tour: bool = False
    ) -> None:
        self.console = console
        self.context = browser.new_context(viewport=DESK, base_url=console.url)
        self.context.set_default_timeout(PATIENCE)
        if not tour:
            self.context.add_cookies(
                [{"name": "penstock-tour", "value": "seen", "url": console.url}]
            )
        self.page: Page = self.context.new_page()
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.troubles: list[str] = []
        if user:
            self.page.goto("/sign-in")
            self.page.get_by_label("User name").fill(user)
            self.page.get_by_label("Password").fill(PASSWORDS[user])
            self.page.get_by_role("button", name="Sign in").click()
            self.page.wait_for_url(re.compile(r"/(?!sign-in)"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.context.close()
        if error is None:
            assert not self.troubles, self.troubles

    def _hear(self, message: ConsoleMessage) -> None:
        # The browser tells here what the policy of the page refused, and what a script broke on.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.troubles.append(message.text)

    def look(self, path: str, shots: Path, name: str) -> None:
        """Open a page in both schemes and at phone width; take pictures; check what axe finds."""
        page = self.page
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.goto(path)
            page.get_by_role("heading", level=1).wait_for()
            page.screenshot(path=shots / f"{name}-{scheme}.png", full_page=True)
            self.check_accessibility(f"{path} in the {scheme} scheme")
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(PHONE)
        page.screenshot(path=shots / f"{name}-phone.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
        page.set_viewport_size(DESK)

    def check_accessibility(self, what: str) -> None:
        """Assert that axe finds nothing serious on the page as it is."""
        found = [
            it for it in Axe().run(self.page).response["violations"] if it["impact"] in SERIOUS
        ]
        told = [f"{it['id']}: {[node['html'][:200] for node in it['nodes']][:3]}" for it in found]
        assert not told, f"{what}: {told}"
