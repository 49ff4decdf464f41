"""`penstock suggest`: categories with reasons, and a draft that `apply` accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import run_command

CITIES = ("Köln", "Rom", "Lyon")
HEAD = "patientId,e-mail,Birth Date,age,zip,city,diagnosis,hba1c,note"


def sample(folder: Path, count: int = 60) -> Path:
    lines = [HEAD.replace(",", ";")]
    for number in range(count):
        cells = [
            str(1000 + number), f"p{number}@example.org",
            f"19{50 + number % 40}-03-0{number % 9 + 1}",
            str(20 + number % 50) if number % 7 else "", f"0{4000 + number % 9}",
            CITIES[number % 3], ("flu", "cold")[number % 2], "7.5", "",
        ]  # fmt: skip
        lines.append(";".join(cells))
    path = folder / "Patients 2026.csv"
    path.write_bytes(("\r\n".join(lines) + "\r\n").encode("cp1252"))
    return path


def test_fields_are_told_with_reasons_and_the_draft_is_applied(tmp_path: Path) -> None:
    path = sample(tmp_path)
    told = json.loads(run_command(tmp_path, "suggest", path.name, "--json").stdout)
    found = {it["name"]: it for it in told["fields"]}
    assert {name: it["category"] for name, it in found.items()} == {
        "patientId": "identifier",
        "e-mail": "identifier",
        "Birth Date": "quasi-identifier",
        "age": "quasi-identifier",
        "zip": "quasi-identifier",
        "city": "quasi-identifier",
        "diagnosis": "sensitive",
        "hba1c": "sensitive",
        "note": "plain",
    }
    assert all(it["reasons"] for it in told["fields"])
    # 04000 has a leading zero, and is no number.
    types = [found[name]["type"] for name in ("patientId", "Birth Date", "age", "zip", "hba1c")]
    assert types == ["int", "date", "int", "string", "double"]
    assert found["age"]["optional"]
    assert (told["records"], told["alone"]) == (60, 60)
    shown = run_command(tmp_path, "suggest", path.name, "--out", "draft.yaml")
    assert "60 of 60 records (100.0%) are unique by quasi-identifiers" in shown.stdout
    applied = run_command(tmp_path, "apply", "-f", "draft.yaml")
    assert applied.returncode == 0, applied.stderr
    assert "created  view/patients-2026-research" in applied.stdout
    again = run_command(tmp_path, "suggest", path.name, "--out", "draft.yaml")
    assert "exists already" in again.stderr


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("one.jsonl", '{"age": 30, "ok": true}\n{"age": null, "ok": false}\n'),
        ("empty.csv", "name,age\n"),
        ("constant.csv", "a,b\n1,x\n1,x\n"),
        ("wide.csv", "when,amount\n2026-01-01T10:00:00Z,-5.25\n2026-03-01T10:00:00Z,1e6\n"),
        ("large.csv", f"code,n\n1,{2**40}\n2,{-(2**40)}\n"),
    ],
)
def test_every_draft_can_be_applied(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    done = run_command(tmp_path, "suggest", name, "--out", "draft.yaml")
    assert done.returncode == 0, done.stderr
    applied = run_command(tmp_path, "apply", "-f", "draft.yaml")
    assert applied.returncode == 0, applied.stderr


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.pdf").write_text("")
    assert "unsupported file type .pdf" in run_command(tmp_path, "suggest", "x.pdf").stderr


def test_names_of_fields_in_german_are_known(tmp_path: Path) -> None:
    lines = ["Kundennr;Geburtsdatum;Geschlecht;Diagnose;Angelegt"]
    lines += [f"{it % 5};1980-02-03;m;Asthma;2026-01-0{it % 9 + 1}" for it in range(30)]
    (tmp_path / "kunden.csv").write_text("\n".join(lines) + "\n")
    told = json.loads(run_command(tmp_path, "suggest", "kunden.csv", "--json").stdout)
    assert [(it["category"], it["reasons"][0]) for it in told["fields"]] == [
        ("identifier", "the name says 'kundennr'"),
        ("quasi-identifier", "the name says 'geburtsdatum'"),
        ("quasi-identifier", "the name says 'geschlecht'"),
        ("sensitive", "the name says 'diagnose'"),
        ("quasi-identifier", "a date or time may be known from elsewhere"),
    ]
