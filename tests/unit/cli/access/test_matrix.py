"""`penstock access`: who sees what, as a table, as JSON and as a page."""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main

HOUSE = """
{kind: enforcement, name: default, policies: required}
---
{kind: role, name: analyst}
---
{kind: user, name: ann}
---
{kind: user, name: ada, roles: [analyst]}
---
{kind: policy, name: vitals, subject: "user:ann", filter: home/+/vitals, allow: read}
---
kind: stream
name: vitals
from: [home/+patient/vitals]
fields:
- {name: patient, type: string, category: identifier}
- {name: pulse, type: int, category: sensitive}
---
kind: transformation
name: coarse
filter: home/+/vitals
stream: vitals
anonymizers: [{anonymizer: suppression, keys: [pulse]}]
---
kind: view
name: research
stream: vitals
roles: [analyst]
anonymizers: [{anonymizer: suppression, keys: [patient]}]
"""


@pytest.fixture(autouse=True)
def _folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "d.yaml").write_text(HOUSE)
    assert run(capsys, "apply", "-f", "d.yaml")[0] == 0


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    printed = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, printed.out, printed.err


def cells(capsys: pytest.CaptureFixture[str], *arguments: str) -> set[tuple[Any, ...]]:
    code, out, _ = run(capsys, "access", *arguments, "--json")
    assert code == 0
    data = json.loads(out)
    assert data["epoch"] == 1
    return {(it["subject"], it["source"], it["attribute"], it["degree"]) for it in data["cells"]}


def test_topics_and_views(capsys: pytest.CaptureFixture[str]) -> None:
    topic = "home/example/vitals"
    seen = {
        ("ann", topic, "patient", "full"),
        ("ann", topic, "pulse", "removed"),
        ("ada", "view research", "patient", "changed"),
        ("ada", "view research", "pulse", "full"),
    }
    assert cells(capsys) == seen
    everything = cells(capsys, "--all")
    assert ("anonymous", topic, "pulse", "none") in everything
    assert ("ann", "view research", "pulse", "none") in everything
    assert seen < everything
    assert cells(capsys, "--subject", "ada", "--topic", "home/p-17/vitals") == set()


def test_a_view_is_shown_with_what_its_transformation_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    more = """
{kind: transformation, name: nameless, filter: no/+, stream: vitals, remove: [patient]}
---
{kind: view, name: nameless, stream: vitals, transformation: nameless, roles: [analyst]}
"""
    (tmp_path / "more.yaml").write_text(more)
    assert run(capsys, "apply", "-f", "more.yaml")[0] == 0
    code, out, _ = run(capsys, "access", "--subject", "ada", "--json")
    assert code == 0
    told = {
        (it["attribute"], it["degree"])
        for it in json.loads(out)["cells"]
        if it["source"] == "view nameless"
    }
    assert told == {("patient", "removed"), ("pulse", "full")}


def test_the_homecare_scenario(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Types by transformations alone, and what a message is turned into on publication."""
    home = importlib.resources.files("penstock_lab.demo").joinpath("homecare.yaml").read_text()
    appointments = """
---
{kind: appointment, name: q, credential: qualified("ann"), holder: "user:ann"}
---
{kind: appointment, name: t, credential: 'treats("ann", "p1")', holder: "user:ann"}
"""
    (tmp_path / "home.yaml").write_text(home + appointments)
    files = ("-f", "home.yaml", "--prune", "stream", "--prune", "view", "--prune", "transformation")
    assert run(capsys, "apply", *files)[0] == 0

    def told(*arguments: str) -> dict[tuple[str, str, str], dict[str, str]]:
        code, out, error = run(capsys, "access", *arguments, "--json")
        assert code == 0, error
        found: dict[tuple[str, str, str], dict[str, str]] = {}
        for it in json.loads(out)["cells"]:
            row = found.setdefault((it["subject"], it["source"], it["situation"]), {})
            row[it["attribute"]] = it["degree"]
        return found

    ordinary, fallen = "ordinary", "help=Fallen"
    place = "home/p1/location"
    coarse = {"patient": "full", "lat": "changed", "lon": "changed"}
    exact = dict.fromkeys(coarse, "full")
    assert told("--topic", place) == {
        (who, place, when): coarse if when == ordinary else exact
        for who in ("ann", "carer")
        for when in (ordinary, fallen)
    }
    topic, handed_out = "home/p1/prescribe", "pharmacy/example/prescription"
    for drug, heard in (("morphine", True), ("codeine", False), ("aspirin", False)):
        seen = told("--topic", topic, "--payload", json.dumps({"drug": drug}))
        people = {("ann", topic), ("pharmacy", handed_out)}
        people |= {("auditor", "audit/controlled-drug-auth")} if heard else set()
        assert {(who, source) for who, source, _ in seen} == people
        assert set(seen["pharmacy", handed_out, ordinary]) == {
            *("patient", "drug", "dose", "pharmacy")
        }
        if heard:
            assert set(seen["auditor", "audit/controlled-drug-auth", ordinary]) == {
                *("drug", "class", "dose")
            }
    # Without a question about a message, too, everybody is there who sees anything.
    assert {who for who, _, _ in told("--payload", '{"drug": "morphine"}')} == {
        *("carer", "pharmacy", "auditor")
    }


def test_a_table_and_a_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(capsys, "access", "--html", "matrix.html", "--topic", "home/<b>/vitals")
    assert code == 0
    assert "removed (transformation coarse): pulse" in " ".join(out.split())
    page = (tmp_path / "matrix.html").read_text()
    assert "<td>ann</td>" in page
    assert "<code>home/&lt;b&gt;/vitals</code>" in page
    assert "<b>" not in page


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--topic", "garden/x"), "nothing says which attributes"),
        (("--stream", "nothing"), "there is no stream"),
        (("--payload", "[1]"), "not a JSON object"),
    ],
)
def test_bad_input(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    code, _, error = run(capsys, "access", *arguments)
    assert code
    assert told in error
