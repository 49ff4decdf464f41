"""One browser for the tests of a module, and where their screenshots go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from penstock.components import find
from tests.support.console.browsing import FLAGS


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Run Chromium, without a window and without asking anything of other hosts."""
    found = find("chromium").path
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=str(found), headless=True, args=list(FLAGS)
        )
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of the screenshots of a module."""
    return tmp_path_factory.mktemp("screenshots")
