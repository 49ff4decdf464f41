"""`penstock hierarchy`: what it prints is applied as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support.commands import run_command

ARX = "48149;4814*;481**;4****;*\n48147;4814*;481**;4****;*\n50667;5066*;506**;5****;*\n"


def build(folder: Path, *words: str) -> dict[str, list[str]]:
    done = run_command(folder, "hierarchy", *words)
    assert done.returncode == 0, done.stderr
    (folder / "h.yaml").write_text(done.stdout, encoding="utf-8")
    applied = run_command(folder, "apply", "-f", "h.yaml")
    assert applied.returncode == 0, applied.stderr
    values: dict[str, list[str]] = yaml.safe_load(done.stdout)["values"]
    return values


def test_a_file_of_arx_is_read_and_drawn(tmp_path: Path) -> None:
    (tmp_path / "zip.csv").write_text(ARX)
    values = build(tmp_path, "from-csv", "zip", "zip.csv")
    assert values["48149"] == ["4814*", "481**", "4****", "*"]
    drawn = run_command(tmp_path, "hierarchy", "show", "zip").stdout
    assert drawn.splitlines()[0].strip() == "*  3 values"
    assert "└── 50667" in drawn


@pytest.mark.parametrize(
    ("text", "value", "way"),
    [
        ("Berlin,Germany\nRome,Italy\n", "Rome", ["Italy", "*"]),
        # Levels that say the same are one; another encoding, another delimiter.
        ("Köln;Köln;DE;EU\nRom;IT;IT;EU\n", "Köln", ["DE", "EU"]),
    ],
)
def test_rows_that_end_differently_end_at_one_root(
    tmp_path: Path, text: str, value: str, way: list[str]
) -> None:
    (tmp_path / "c.csv").write_bytes(text.encode("cp1252"))
    assert build(tmp_path, "from-csv", "places", "c.csv")[value] == way


def test_values_become_prefixes_ranges_or_leaves(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("zip;age\n48149;34\n50667;7\n48149;34\n")
    zips = build(tmp_path, "from-values", "zip", "p.csv", "--column", "zip", "--keep", "1,3")
    assert zips == {"48149": ["481**", "4****", "*"], "50667": ["506**", "5****", "*"]}
    ages = build(tmp_path, "from-values", "age", "p.csv", "--column", "age", "--ranges", "10,50")
    assert ages == {"7": ["[0 - 10]", "[0 - 50]", "*"], "34": ["[30 - 40]", "[0 - 50]", "*"]}
    (tmp_path / "plain.txt").write_text("TK\nAOK\nTK\n")
    assert build(tmp_path, "from-values", "ins", "plain.txt") == {"AOK": ["*"], "TK": ["*"]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("from-values", "x", "v.txt", "--ranges", "10,25"), "25 is not a multiple of 10"),
        (("from-values", "x", "v.txt", "--ranges", "10"), "'b' is not a whole number"),
        (("from-values", "x", "v.txt", "--column", "zip"), "has no column 'zip'"),
        (("from-csv", "x", "twice.csv"), "twice.csv':2: 'a' is listed twice"),
        (("from-csv", "x", "parents.csv"), "'b' lies below"),
        (("show", "x"), "there is no hierarchy 'x'"),
    ],
)
def test_what_makes_no_tree_is_told(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    (tmp_path / "v.txt").write_text("1\nb\n")
    (tmp_path / "twice.csv").write_text("a,b\na,c\n")
    (tmp_path / "parents.csv").write_text("a,b,c,*\nd,b,e,*\n")
    (tmp_path / "p.yaml").write_text("kind: purpose\nname: care\n")
    run_command(tmp_path, "apply", "-f", "p.yaml")
    done = run_command(tmp_path, "hierarchy", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert not done.stdout
