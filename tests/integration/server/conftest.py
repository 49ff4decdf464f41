"""One server for the tests of a file, and fresh ones for those that need them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server.installation import ServerInstallation


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInstallation]:
    """One server that the tests of a file share: each uses keys and people of its own."""
    made = ServerInstallation(tmp_path_factory.mktemp("server"))
    made.start()
    yield made
    made.kill()


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Callable[..., ServerInstallation]]:
    """Make servers of a test's own, as its settings say."""
    made: list[ServerInstallation] = []

    def install_server(url: str | None = None, **settings: Any) -> ServerInstallation:
        folder = tmp_path / f"server-{len(made)}"
        folder.mkdir()
        made.append(ServerInstallation(folder, url, **settings))
        return made[-1]

    yield install_server
    for it in made:
        it.kill()
