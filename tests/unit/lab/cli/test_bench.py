"""`penstock bench`: parts of a part, and tables for people."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock_lab.bench.tables import Table, show
from tests.support.commands import run_command


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Put a part that takes no time in the place of one that does."""
    chosen: list[tuple[str, ...]] = []
    module: Any = ModuleType("penstock_lab.bench.packets")

    def measure(*, quick: bool, only: tuple[str, ...] = ("one", "two")) -> dict[str, Any]:
        chosen.append(only)
        return {"told": {"a": 1.5}, "rest": {"quick": quick}}

    module.run = measure
    module.PARTS = ("one", "two")
    module.IN_TABLES = ("told",)
    module.tables = lambda figures: [
        Table("what was found", ("name", "ms"), [("a", show(figures["told"]["a"], 1))])
    ]
    monkeypatch.setitem(sys.modules, "penstock_lab.bench.packets", module)
    return chosen


def test_tables_tell_what_the_listing_leaves_out(
    tmp_path: Path, measured: list[tuple[str, ...]]
) -> None:
    done = run_command(tmp_path, "bench", "packets", "--quick")
    assert done.returncode == 0
    assert "what was found" in done.stdout
    assert "told.a" not in done.stdout
    assert "rest.quick" in done.stdout
    assert measured == [("one", "two")]


def test_some_parts_can_be_chosen_and_json_has_all(
    tmp_path: Path, measured: list[tuple[str, ...]]
) -> None:
    done = run_command(tmp_path, "bench", "packets", "--only", "two", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["figures"] == {"told": {"a": 1.5}, "rest": {"quick": False}}
    assert measured == [("two",)]


@pytest.mark.parametrize(
    ("part", "fix"), [("packets", "use some of one, two"), ("audit", "leave out --only")]
)
def test_a_part_that_does_not_exist_is_refused_with_those_that_do(
    tmp_path: Path, part: str, fix: str, measured: list[tuple[str, ...]]
) -> None:
    done = run_command(tmp_path, "bench", part, "--only", "three")
    assert done.returncode != 0
    assert "'three'" in done.stderr
    assert fix in done.stderr
    assert not measured


def test_what_is_not_known_is_an_empty_cell() -> None:
    assert show(None) == ""
    assert show(1234.5, 0) == "1,234"
    assert show(1.25, 1, " %") == "1.2 %"
