"""Fixtures for tests of the store: fresh databases of both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.store.database import Database


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/penstock.db"


BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgresql"))]


@pytest.fixture(params=BOTH)
def store_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=BOTH)
def empty_store_url(request: pytest.FixtureRequest) -> str:
    """Give the address of a store that is to be made."""
    fixture = "sqlite_url" if request.param == "sqlite" else "empty_postgres_url"
    url: str = request.getfixturevalue(fixture)
    return url


@pytest.fixture
def database(store_url: str) -> Iterator[Database]:
    with Database.open(store_url) as database:
        yield database
