"""Two data folders of two domains, each with its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.trust.commands import key_of


@pytest.fixture
def pito(tmp_path: Path) -> Path:
    folder = tmp_path / "pito"
    key_of(folder)
    return folder


@pytest.fixture
def met(tmp_path: Path) -> Path:
    folder = tmp_path / "met"
    key_of(folder)
    return folder
