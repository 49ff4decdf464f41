"""Tests are where their sources are, and what they share is in one place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.schedule import JVMS, group_of

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "penstock"
LAB = ROOT / "lab" / "src" / "penstock_lab"
HELPERS = {"support", "fuzz"}
"""The folders of `tests` with modules that are no tests."""
WHOLE = {
    "cli/definitions/test_verbs.py",
    "definitions/test_separation_of_duty.py",
    "lang/test_examples.py",
    "lang/test_hostile.py",
    "lang/test_reference.py",
    "masks/test_values.py",
    "model/kinds/test_concerns.py",
}
"""Files of `tests/unit` about a package as a whole, not about a module of it."""


def folders_of(tests: Path) -> list[Path]:
    return sorted({path.parent for path in tests.rglob("*.py")} - {tests})


def package_of(folder: Path) -> Path:
    """Return the package that the tests in a folder are about; those of the lab are in `lab`."""
    first, *rest = folder.parts
    return LAB.joinpath(*rest) if first == "lab" else SOURCES / folder


@pytest.mark.parametrize("kind", ["unit", "property"])
def test_each_folder_mirrors_a_package(kind: str) -> None:
    tests = ROOT / "tests" / kind
    astray = [
        f"{folder.relative_to(ROOT)}: no package {package.relative_to(ROOT)}"
        for folder in folders_of(tests)
        if not (package := package_of(folder.relative_to(tests))).joinpath("__init__.py").exists()
    ]
    assert not astray, "\n".join(astray)


def test_each_unit_test_names_its_module() -> None:
    """`test_sessions.py` and `test_sessions_races.py` are about `sessions`."""
    tests = ROOT / "tests" / "unit"
    astray = []
    for path in sorted(tests.glob("*/**/test_*.py")):
        package = package_of(path.parent.relative_to(tests))
        modules = {it.stem for it in package.glob("*") if not it.stem.startswith("_")}
        name = path.stem.removeprefix("test_")
        if not any(f"{name}_".startswith(f"{it}_") for it in modules):
            astray.append(path.relative_to(tests).as_posix())
    assert sorted({*astray} - WHOLE) == [], "name the module, or list the file in WHOLE"
    assert sorted(WHOLE - {*astray}) == [], "these are gone, or name a module: unlist them"


def test_helpers_live_in_one_place() -> None:
    tests = ROOT / "tests"
    astray = [
        f"{path.relative_to(ROOT)}: move it to tests/support, or name it test_*.py"
        for path in sorted(tests.rglob("*.py"))
        if not path.name.startswith("test_")
        and path.name != "conftest.py"
        and path.relative_to(tests).parts[0] not in HELPERS
    ]
    assert not astray, "\n".join(astray)


def test_who_uses_a_jvm_runs_where_it_is(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        used = [it for it in JVMS if it in getattr(item, "fixturenames", ())]
        if used:
            group = group_of(item.path)
            assert group, f"{item.nodeid} uses {used}, and its file does not say so"
            assert JVMS.index(group) <= JVMS.index(used[0]), item.nodeid
