"""`penstock event-type`: types go from one data folder to another as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.commands import run_command
from tests.support.trust.commands import key_of, run


@pytest.fixture
def base(pito: Path, met: Path, tmp_path: Path) -> str:
    """A type of pito's that both know; its name."""
    file = tmp_path / "sighting.yaml"
    words = ("numberplate:string", "location:string", "speed:double?", "-o", str(file))
    made = run(pito, "event-type", "create", "sighting", *words)
    for folder in (pito, met):
        run(folder, "apply", "-f", str(file))
    return str(made["document"]["name"])


def issue(pito: Path, met: Path, grant: str) -> Path:
    file = met / "capability.yaml"
    to = f"key:{key_of(met)}"
    run(pito, "cert", "issue", grant, "--to", to, "--name", "rights", "-o", str(file))
    return file


def test_a_type_is_shown_with_its_items(pito: Path, met: Path, base: str) -> None:
    found = run(met, "event-type", "inspect", base)
    assert found["believed"] is True
    assert found["issuer"] == key_of(pito)
    assert [it["name"] for it in found["attributes"]] == ["numberplate", "location", "speed"]
    assert [it["optional"] for it in found["attributes"]] == [False, False, True]
    assert [it["name"] for it in run(met, "event-type", "list")] == [base]
    shown = run_command(met, "event-type", "inspect", base).stdout
    assert found["attributes"][0]["id"] in shown
    assert "it is believed" in shown


def test_a_manager_revises_within_its_rights(pito: Path, met: Path, base: str) -> None:
    rights = issue(pito, met, "type: sighting; action: addAttribute")
    out = met / "next.yaml"
    more = ("--capability", str(rights), "--add", "colour:string?")
    made = run(met, "event-type", "revise", base, *more, "-o", str(out))
    run(pito, "apply", "-f", str(out))
    before, after = (run(pito, "event-type", "inspect", it) for it in (base, str(out)))
    assert after["believed"] is True
    assert after["attributes"][:3] == before["attributes"]
    assert made["id"] == after["id"] != before["id"]
    for change in (("--remove", "speed"), ("--rename", "speed=pace"), ("--retype", "speed:int")):
        refused = run_command(met, "event-type", "revise", base, *more[:2], *change)
        assert refused.returncode == 1
        assert "no right" in refused.stderr
    alone = run_command(met, "event-type", "revise", base, "--remove", "speed")
    assert "not signed by" in alone.stderr


def test_a_type_is_extended_with_authority(pito: Path, met: Path, base: str) -> None:
    words = ("event-type", "extend", base, "chase", "unit:string")
    assert "without a capability" in run_command(met, *words).stderr
    rights = issue(pito, met, "type: sight*; action: extend")
    out = met / "chase.yaml"
    run(met, *words, "--capability", str(rights), "-o", str(out))
    run(pito, "apply", "-f", str(out))
    found = run(pito, "event-type", "inspect", str(out))
    assert (found["believed"], found["issuer"]) == (True, key_of(met))
    assert [it["name"] for it in found["attributes"]][-1] == "unit"


def test_applying_writes_the_fields_of_a_stream(met: Path, base: str) -> None:
    body: dict[str, Any] = {"kind": "stream", "name": "sightings", "event_type": base}
    (met / "stream.yaml").write_text(yaml.safe_dump(body))
    run(met, "apply", "-f", "stream.yaml")
    shown = run_command(met, "get", "stream/sightings", "--json").stdout
    assert '"name":"numberplate"' in shown.replace(" ", "")


def test_a_file_that_was_changed_is_refused(pito: Path, base: str, tmp_path: Path) -> None:
    file = tmp_path / "sighting.yaml"
    file.write_text(file.read_text().replace("location", "Location"))
    refused = run_command(pito, "apply", "-f", str(file))
    assert "not signed by" in refused.stderr
    found = run(pito, "event-type", "inspect", str(file), fails=1)
    assert found["believed"] is False


@pytest.mark.parametrize(
    ("words", "quoted"),
    [
        (("create", "x", "plate"), "plate"),
        (("create", "x", "plate:text"), "plate:text"),
        (("create", "x", "a:int", "A:int"), "'A'"),
        (("fetch", "http://example.org", "-o", "x"), "https"),
        (("fetch", "ftp://example.org", "-o", "x"), "ftp://example.org"),
    ],
)
def test_mistakes_are_quoted(pito: Path, words: tuple[str, ...], quoted: str) -> None:
    done = run_command(pito, "event-type", *words)
    assert done.returncode == 2
    assert quoted in done.stderr
