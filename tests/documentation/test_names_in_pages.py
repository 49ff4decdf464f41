"""What pages name in the code is there: files, modules, functions, packages on the maps.

What stands in backticks is looked at:
- a path such as `src/penstock/gateway`, `config/catalogue.py` or `masks/spark/`, from the root,
  from a package's folder, or the end of a path;
- `path.py:function`, `path.py:Class` or `path.py:Class.method`;
- a dotted name such as `penstock.mqtt` or `penstock.lang.spark.column`;
- `Class.method`, where the code has a class of that name.
Nothing is imported: the sources are read as text, so that the test needs neither Spark nor a JVM.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (ROOT / "src", ROOT / "lab" / "src")
TESTS = ROOT / "tests"
PACKAGES = (ROOT / "src" / "penstock", ROOT / "lab" / "src" / "penstock_lab")
PAGES = sorted(
    page
    for folder in ("docs", "examples", "lab")
    for page in (ROOT / folder).rglob("*.md")
    if "src" not in page.relative_to(ROOT).parts
) + sorted(ROOT.glob("*.md"))
MAPS = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "explanation" / "architecture.md"]

GROUPS = frozenset({"penstock.commands", "penstock.simulations", "penstock.v1.PrivacyRequests"})
"""Groups of entry points, and services of gRPC: dotted names that are no modules."""
QUOTED = re.compile(r"`([^`\n]+)`")
FUNCTION = re.compile(r"([\w./-]+\.py):([A-Za-z_][\w.]*)")
PATH = re.compile(r"(?:src|lab|tests|setup|examples|docs)/[\w./-]+|[\w./-]*\w\.py(?![\w:])")
DOTTED = re.compile(r"(?<![\w/.-])penstock(?:_lab)?(?:\.[A-Za-z_]\w*)+(?![\w-])")
METHOD = re.compile(r"([A-Z][a-z]\w*)\.([a-z_]\w*)(?:\(.*\))?")
FOLDER = re.compile(r"([a-z_]+)(?:/[a-z_]+)*/")
NO_MODULES = (".yaml", ".db", ".json", ".toml")


def _names_of(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """Return what statements define: functions, classes with their members, variables."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(prefix + node.name)
            if node.name == "__init__":
                found |= {prefix + it for it in _set_on_self(node)}
        elif isinstance(node, ast.ClassDef):
            found |= {prefix + node.name} | _names_of(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If):
            found |= _names_of(node.body, prefix)  # names for type checkers: see `lazy_exports`
        elif isinstance(node, ast.ImportFrom):
            found |= {prefix + (it.asname or it.name) for it in node.names}
        elif isinstance(node, ast.Assign):
            found |= {prefix + it.id for it in node.targets if isinstance(it, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(prefix + node.target.id)
    return found


def _set_on_self(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {
        it.attr
        for it in ast.walk(function)
        if isinstance(it, ast.Attribute) and isinstance(it.ctx, ast.Store)
    }


@cache
def _defined_in(file: Path) -> frozenset[str]:
    return frozenset(_names_of(ast.parse(file.read_text(encoding="utf-8")).body))


@cache
def _sources() -> tuple[Path, ...]:
    return tuple(file for folder in SOURCES for file in sorted(folder.rglob("*.py")))


@cache
def _all_defined() -> frozenset[str]:
    return frozenset().union(*map(_defined_in, _sources()))


def _files(path: str) -> list[Path]:
    """Return what a path may mean: from the root, from a package, or the end of a source's path."""
    starts = [ROOT, TESTS, *PACKAGES, *SOURCES]
    found = [start / path for start in starts if (start / path).exists()]
    files = (*_sources(), *TESTS.rglob("*.py"))
    return found or [file for file in files if str(file).endswith(f"/{path}")]


def _is_defined(name: str) -> bool:
    """Say whether a dotted name is a module, a package, or something that one defines."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        for folder in SOURCES:
            place = folder.joinpath(*parts[:end])
            file = place.with_suffix(".py")
            if not file.exists():
                file = place / "__init__.py"
            if file.exists():
                rest = ".".join(parts[end:])
                return not rest or rest in _defined_in(file)
    return False


def missing_names(text: str) -> list[str]:
    """Return what a quotation names that the sources do not have."""
    missing = [
        match[0]
        for match in FUNCTION.finditer(text)
        if not any(match[2] in _defined_in(file) for file in _files(match[1]))
    ]
    paths = PATH.finditer(FUNCTION.sub(" ", text))
    missing += [match[0] for match in paths if not _files(match[0].rstrip("./"))]
    missing += [
        match[0]
        for match in DOTTED.finditer(text)
        if match[0] not in GROUPS
        and not match[0].endswith(NO_MODULES)
        and not _is_defined(match[0])
    ]
    folder = FOLDER.fullmatch(text)
    if folder and (PACKAGES[0] / folder[1]).is_dir() and not _files(text):
        missing.append(text)
    method = METHOD.fullmatch(text)
    if method and method[1] in _all_defined() and f"{method[1]}.{method[2]}" not in _all_defined():
        missing.append(text)
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    missing = [it for match in QUOTED.finditer(text) for it in missing_names(match[1])]
    assert missing == []


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("gateway/connection/downstream.py:Downstream.forward", []),
        ("penstock.model.topics", []),
        ("penstock.yaml", []),
        ("penstock.db-wal", []),
        ("penstock.commands", []),
        ("config/catalogue.py", []),
        ("gateway/nowhere.py", ["gateway/nowhere.py"]),
        ("mqtt/reader.py:Reader.nothing", ["mqtt/reader.py:Reader.nothing"]),
        ("penstock.nowhere", ["penstock.nowhere"]),
        ("Engine.nothing", ["Engine.nothing"]),
        ("src/penstock/nowhere/", ["src/penstock/nowhere/"]),
        ("masks/nowhere/", ["masks/nowhere/"]),
    ],
)
def test_names_that_are_gone_are_found(text: str, missing: list[str]) -> None:
    assert missing_names(text) == missing


@pytest.mark.parametrize("page", MAPS, ids=lambda page: page.name)
def test_the_maps_name_every_package_and_room(page: Path) -> None:
    words = set(re.findall(r"\w+", page.read_text(encoding="utf-8")))
    packages = {it.name for root in PACKAGES for it in root.iterdir() if _is_package(it)}
    packages |= {f"{it.stem}" for it in PACKAGES[0].glob("[a-z]*.py")}
    rooms = {
        room.name
        for name in ("gateway", "pipeline", "store", "cep", "policy", "cli")
        for room in (PACKAGES[0] / name).iterdir()
        if _is_package(room)
    }
    assert sorted((packages | rooms) - words) == []


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").exists()
