"""A console for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.console.installation import ConsoleInstallation


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInstallation]:
    """Run a console with an officer, an auditor, and some who may see nothing."""
    installation = ConsoleInstallation(tmp_path_factory.mktemp("console"))
    installation.start()
    yield installation
    installation.stop()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[ConsoleInstallation]:
    """Give an installation where nobody administers and nobody has a password; not started."""
    installation = ConsoleInstallation(tmp_path, definitions="", users={})
    yield installation
    if installation.process is not None:
        installation.stop()
