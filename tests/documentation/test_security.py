"""Every promise of SECURITY.md names tests that show it, and those exist.

Nothing is imported: the tests are read as text, so that this needs neither Spark nor a JVM.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "SECURITY.md"
HEADER = "| Promise | Shown by |"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)(?:\[[^`]*\])?`")


def read_promises(text: str) -> dict[str, str]:
    """Return the cells of all tables of promises: what is promised, and what shows it."""
    found: dict[str, str] = {}
    inside = False
    for line in text.splitlines():
        if line == HEADER:
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("| ---"):
            promise, _, shown = line.strip("| ").partition(" | ")
            assert promise not in found, f"promised twice: {promise}"
            found[promise] = shown
    return found


@cache
def collected(path: str) -> frozenset[str]:
    """Return the tests that pytest collects from a file, those of classes included."""
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(
        it.name
        for it in ast.walk(tree)
        if isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef) and it.name.startswith("test_")
    )


PROMISES = read_promises(PAGE.read_text())


def test_what_stops_attackers_is_promised_in_tables() -> None:
    sections = PAGE.read_text().split("\n### ")[1:]
    assert len(sections) >= 6
    for section in sections:
        assert HEADER in section, f"no promises: {section.splitlines()[0]}"


@pytest.mark.parametrize("promise", PROMISES)
def test_every_promise_names_tests_that_exist(promise: str) -> None:
    shown = PROMISES[promise]
    named = TEST.findall(shown)
    assert named, "name a test that shows it, as `tests/…/test_x.py::test_name`"
    assert TEST.sub("", shown).replace("<br>", "").strip() == "", "name tests only"
    for path, name in named:
        assert (ROOT / path).is_file(), f"there is no {path}"
        assert name in collected(path), f"there is no {name} in {path}"


def test_rows_are_read_and_what_is_wrong_with_them_is_found() -> None:
    row = "`tests/x.py::test_y[1]`<br>`tests/x.py::test_z`"
    rows = f"{HEADER}\n| --- | --- |\n| a | {row} |\n\n| b | c |\n"
    assert read_promises(rows) == {"a": row}
    assert TEST.findall(row) == [
        ("tests/x.py", "test_y"),
        ("tests/x.py", "test_z"),
    ]
