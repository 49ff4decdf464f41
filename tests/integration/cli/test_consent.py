"""`penstock consent` as a user calls it, up to the views that leave people out."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from penstock.cli.session import configuration, open_database
from penstock.store.audit.pseudonyms import Pseudonyms

Run = Callable[..., tuple[int, str, str]]
DEFINITIONS = """
kind: stream
name: patients
subject: pid
fields: [{name: pid, type: int, category: identifier}, {name: age, type: int}]
---
kind: stream
name: steps
fields: [{name: count, type: int}]
---
kind: view
name: ward
stream: patients
purposes: [care]
---
kind: view
name: study
stream: patients
purposes: [research/diabetes]
---
kind: view
name: totals
stream: steps
purposes: [research]
---
kind: purpose
name: marketing
---
kind: purpose
name: care
---
kind: purpose
name: research
---
kind: purpose
name: research/diabetes
---
kind: group
name: officers
members: [user:ann]
---
kind: right
name: officer
subjects: [group:officers]
administer: true
---
kind: right
name: gardener
subjects: [user:bob]
reserve: ["garden/#"]
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")

    def call(*arguments: str, told: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(told))
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        printed = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, printed.out, printed.err

    (tmp_path / "penstock.yaml").write_text(
        "gateway: {authentication: {passwords: keys/passwords}}\n"
        "pipeline: {monitor_port: 0}\nmonitor: {port: 0}\n"
    )
    (tmp_path / "definitions.yaml").write_text(DEFINITIONS, encoding="utf-8")
    assert call("apply", "-f", "definitions.yaml")[0] == 0
    for user in ("ann", "bob"):
        assert call("password", user, told=f"{user}'s word\n")[0] == 0
        path = tmp_path / user
        path.touch(0o600)
        path.write_text(f"{user}'s word\n")
    return call


def _ask(run: Run, *arguments: str, user: str = "ann", told: str = "") -> tuple[int, Any, str]:
    given = ("consent", *arguments, "--as", user, "--password-file", user, "--json")
    code, out, err = run(*given, told=told)
    return code, json.loads(out) if out else None, err


def _audited(run: Run) -> list[dict[str, Any]]:
    code, out, _ = run("audit", "tail", "--json", "-n", "10000")
    assert code == 0
    assert run("audit", "verify")[0] == 0
    entries = [json.loads(line) for line in out.splitlines()]
    return [entry for entry in entries if entry["kind"].startswith("consent.")]


def test_choices_are_entered_shown_and_recorded(run: Run) -> None:
    code, answer, _ = _ask(run, "opt-out", "Jörg", "research")
    assert code == 0
    assert answer == {
        "choice": "opt-out",
        "purpose": "research",
        "people": 1,
        "changed": 1,
        "views": ["study"],
        "views_without_subject": ["totals"],
    }
    assert _ask(run, "opt-out", "Jörg", "research")[1]["changed"] == 0
    assert _ask(run, "opt-out", "-", "marketing", told="Jörg\nEva\n\n")[1]["changed"] == 2
    assert _ask(run, "opt-in", "Jörg", "marketing")[1]["changed"] == 1
    shown = _ask(run, "show", "Jörg")[1]
    assert [(it["purpose"], it["choice"], it["views"]) for it in shown] == [
        ("marketing", "opt-in", []),
        ("research", "opt-out", ["study"]),
    ]
    code, out, _ = run("consent", "list", "--json")
    assert json.loads(out) == [
        {"purpose": "marketing", "people": 1, "views": []},
        {"purpose": "research", "people": 1, "views": ["study"]},
    ]
    people = Pseudonyms.load(configuration().audit.pseudonym_key)
    entries = _audited(run)
    assert [(it["kind"], it["details"].get("purpose")) for it in entries] == [
        ("consent.opt-out", "research"),
        ("consent.opt-out", "marketing"),
        ("consent.opt-out", "marketing"),
        ("consent.opt-in", "marketing"),
        ("consent.shown", None),
    ]
    assert {it["actor"] for it in entries} == {people.person("ann")}
    assert {it["subject"] for it in entries} == {people.person("Jörg"), people.person("Eva")}
    assert {it["rule"] for it in entries} == {people.rule("right/officer")}
    with open_database() as database:
        path = database.address.path
    assert path is not None
    for file in path.parent.glob(f"{path.name}*"):
        assert "Jörg".encode() not in file.read_bytes()


def test_people_read_it_in_words(run: Run) -> None:
    assert "nobody has opted out" in run("consent", "list")[1]
    asking = ("--as", "ann", "--password-file", "ann")
    assert "has made no choices" in run("consent", "show", "7", *asking)[1]
    out = run("consent", "opt-out", "-", "research", *asking, told="7\n8\n")[1]
    assert "2 people opted out of research" in out
    assert "in study" in out
    assert "do not say whom records are about: totals" in out
    assert "nothing changed" in run("consent", "opt-out", "7", "research", *asking)[1]
    assert ["research", "2", "study"] in [
        it.split() for it in run("consent", "list")[1].split("\n")
    ]
    assert "study" in run("consent", "show", "7", *asking)[1]


def test_without_the_right_or_the_password_nothing_happens(run: Run, tmp_path: Path) -> None:
    for verb in (("opt-out", "7", "research"), ("opt-in", "7", "research"), ("show", "7")):
        code, answer, err = _ask(run, *verb, user="bob")
        assert (code, answer) == (1, None)
        assert "has no right" in err
    (tmp_path / "ann").write_text("wrong\n")
    code, answer, err = _ask(run, "opt-out", "7", "research")
    assert (code, answer) == (1, None)
    assert "wrong user name or password" in err
    assert json.loads(run("consent", "list", "--json")[1]) == []
    entries = _audited(run)
    assert [(it["outcome"], it["details"]["reason"]) for it in entries] == [
        *[("denied", "right")] * 3,
        ("denied", "password"),
    ]


def test_what_would_do_nothing_is_refused(run: Run) -> None:
    code, _, err = _ask(run, "opt-out", "7", "reserch")
    assert code == 2
    assert "there is no purpose 'reserch'" in err
    assert "did you mean 'research'?" in err
    assert _ask(run, "opt-out", "-", "research", told="\n")[0] == 2
    assert _ask(run, "opt-out", "", "research")[0] == 2
    assert _ask(run, "opt-in", "7", "gone/long/ago")[1]["changed"] == 0
    assert _audited(run) == []


def test_a_lost_key_stops_everything(run: Run) -> None:
    assert _ask(run, "opt-out", "7", "research")[0] == 0
    key = configuration().consent.key.path
    kept = key.read_bytes()
    key.unlink()
    code, _, err = run("consent", "list")
    assert (code, key.exists()) == (3, False)
    assert "cannot be read" in err
    key.touch(0o600)
    key.write_bytes(bytes(32))
    code, _, err = run("consent", "list")
    assert code == 3
    assert "another than the one" in err
    key.write_bytes(kept)
    assert run("consent", "list")[0] == 0


@pytest.mark.needs("java")
def test_views_leave_out_who_opted_out(run: Run, tmp_path: Path) -> None:
    def views(*arguments: str) -> str:
        code = "import sys; from penstock.cli import main; main(sys.argv[1:])"
        done = subprocess.run(
            [sys.executable, "-c", code, "views", *arguments],
            cwd=tmp_path,
            env={**os.environ, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    rows = [{"pid": pid, "age": 40 + pid} for pid in range(1, 5)]
    (tmp_path / "patients.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert run("views", "feed", "patients", "patients.json")[0] == 0
    assert run("views", "start", "ward", "study")[0] == 0
    assert _ask(run, "opt-out", "3", "research")[0] == 0
    views("run", "--once")
    published = {
        name: sorted(row["pid"] for row in json.loads(run("views", "read", name, "--json")[1]))
        for name in ("ward", "study")
    }
    assert published == {"ward": [1, 2, 3, 4], "study": [1, 2, 4]}
    dead = json.loads(run("views", "dead", "study", "--json")[1])
    assert dead == {"the person opted out of a purpose of the view": 1}


MESSAGES = """
kind: stream
name: pulse
subject: pid
from: [home/+pid/pulse, gps]

fields: [{name: pid, type: string}]
"""


def test_check_and_explain_know_a_person_and_tell_it_to_those_with_the_right(run: Run) -> None:
    Path("messages.yaml").write_text(MESSAGES)
    assert run("apply", "-f", "messages.yaml")[0] == 0
    assert _ask(run, "opt-out", "p", "marketing")[0] == 0
    question = ("check", "--topic", "home/p/pulse", "--purpose", "marketing", "--json")
    code, out, _ = run(*question)
    assert (code, json.loads(out)["consent"]["looked_at"]) == (0, False), "nobody is told"
    about = (*question, "--data-subject", "p")
    code, _, err = run(*about)
    assert (code, "--as" in err) == (2, True)
    assert run(*about, "--as", "bob", "--password-file", "bob")[0] == 1
    assert run(*about, "--as", "ann", "--password-file", "bob")[0] == 1
    proof = ("--as", "ann", "--password-file", "ann")
    code, out, _ = run(*about, *proof)
    answer = json.loads(out)
    assert (code, answer["allowed"], answer["rule"]) == (1, False, "opt-out")
    care = ("check", "--topic", "home/p/pulse", "--purpose", "care", "--data-subject", "p")
    assert run(*care, *proof)[0] == 0
    other = ("check", "--topic", "gps", "--purpose", "marketing", "--data-subject")
    assert [run(*other, who, *proof)[0] for who in ("p", "q")] == [1, 0]
    assert run(*about[:2], "home/q/pulse", *about[3:], *proof)[0] == 2, "two people"
    code, out, _ = run("explain", "home/p/pulse", "--data-subject", "p", *proof, "--json")
    consent = json.loads(out)["consent"]
    assert consent["prohibited"] == ["marketing"]
    assert consent["found_in"] == ["the topic's level pid"]
    code, out, _ = run("explain", "home/p/pulse")
    assert "marketing" not in out
    assert "not looked at" in out
    shown = [it for it in _audited(run) if it["kind"] == "consent.shown"]
    assert {it["subject"] for it in shown} == {_pseudonym("p"), _pseudonym("q")}


def _pseudonym(person: str) -> str:
    return Pseudonyms.open(configuration().audit.pseudonym_key).person(person)
