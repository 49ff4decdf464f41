"""`penstock check` and `penstock explain` on policies, preferences and emergencies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import penstock_lab.demo
from penstock.cli import main

FOLDER = Path(penstock_lab.demo.__file__).parent / "nursing_home"
ABOUT = ("--payload", '{"pid": "patient-1"}')
TEMPERATURE = ("check", "--topic", "physiological/temperature", *ABOUT)


@pytest.fixture(autouse=True)
def _folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_ACTOR", "tester")
    monkeypatch.setenv("NO_COLOR", "1")
    for part in FOLDER.glob("*.yaml"):
        shutil.copy(part, tmp_path)
    files = [word for part in sorted(tmp_path.glob("*.yaml")) for word in ("-f", part.name)]
    assert _run(capsys, "apply", *files)[0] == 0


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    printed = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, printed.out, printed.err


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code, out, _ = _run(capsys, *arguments, "--json")
    return code, json.loads(out)


def test_check_knows_attributes_objects_and_supposed_situations(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, answer = _json(capsys, *TEMPERATURE, "--subject", "physician-1")
    assert (code, answer["allowed"]) == (0, True)
    assert answer["rule"] == "policy medical_personnel/read-physiological"
    assert answer["situation"] is None
    assert _json(capsys, *TEMPERATURE, "--subject", "physician-2")[0] == 1
    specialist = (*TEMPERATURE, "--subject", "specialist-1")
    assert _json(capsys, *specialist)[0] == 1
    code, answer = _json(capsys, *specialist, "--situation", "covid/patient-1=Severe")
    assert (code, answer["situation"]) == (0, "covid=Severe")
    assert _json(capsys, *specialist, "--situation", "covid/patient-2=Severe")[0] == 1


def test_check_knows_the_publishers_preferences(capsys: pytest.CaptureFixture[str]) -> None:
    supposed = ("--situation", "covid/patient-1=Severe", "--publisher", "sensor-1")
    question = ("check", "--topic", "physiological/respiratory", *ABOUT, *supposed)
    code, answer = _json(capsys, *question, "--subject", "specialist-1")
    assert (code, answer["rule"]) == (1, "preference patient-1/respiratory-rate")
    assert _json(capsys, *question, "--subject", "physician-1")[0] == 0


@pytest.mark.parametrize(
    ("situation", "complaint"),
    [
        ("covid/patient-1", "SCENARIO/SUBJECT=SITUATION"),
        ("covd/patient-1=Severe", "names no scenario"),
        ("covid/patient-1=Sever", "name one of Possible"),
    ],
)
def test_a_situation_that_cannot_be_is_refused(
    capsys: pytest.CaptureFixture[str], situation: str, complaint: str
) -> None:
    code, _, errors = _run(capsys, *TEMPERATURE, "--situation", situation)
    assert code == 2
    assert complaint in errors.replace("\n", " ")


def test_explain_tells_emergency_policies_and_preferences(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, answer = _json(capsys, "explain", "physiological/respiratory")
    told = {item["policy"]: item["emergency"] for item in answer["policies"]}
    assert told["medical_personnel/read-physiological"] is None
    specialist = "Severe, Symptomatic of o.patientId in covid, for those involved: s.uid == c.subj"
    assert told["external_specialist/read-physiological"].startswith(specialist)
    assert answer["preferences"][0]["publisher"] == "patient-1"
    assert answer["object"] == {"patientId": "the payload's pid"}
    out = _run(capsys, "explain", "physiological/respiratory")[1]
    assert "readers need" in out
    assert "the current situations are unknown: no gateway has detected anything yet" in out


def test_check_tells_people_which_situations_it_looked_at(
    capsys: pytest.CaptureFixture[str],
) -> None:
    specialist = (*TEMPERATURE, "--subject", "specialist-1")
    code, out, _ = _run(capsys, *specialist, "--situation", "covid/patient-1=Severe")
    assert code == 0
    assert "covid of patient-1: Severe (supposed)" in out
    code, out, _ = _run(capsys, *specialist)
    assert code == 1
    assert "the current situations are unknown: no gateway has detected anything yet" in out
    code, out, _ = _run(capsys, *specialist, "--situation", "none")
    assert code == 1
    assert "not known" not in out


def test_a_payload_that_the_gateway_would_not_look_into_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    twice = """{"pid": "patient-1", "pid": "patient-2"}"""
    code, _, errors = _run(capsys, *TEMPERATURE[:3], "--payload", twice)
    assert code == 2
    assert "a name occurs twice" in errors.replace("\n", " ")
