"""The verbs on definitions, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from penstock.store.audit.reader import Filter, read_last
from penstock.store.database import Database
from penstock.store.definitions.checked import CHANGED

RESERVATION = """\
kind: purpose
name: billing
---
kind: purpose
name: ads
---
kind: reservation
name: home/#
allow: [billing]
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_ACTOR", "tester")
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "d.yaml").write_text(RESERVATION)


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    printed = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, printed.out, printed.err


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code, out, _ = _run(capsys, *arguments, "--json")
    assert out.count("\n") == 1
    return code, json.loads(out)


def test_apply_get_diff_history_rollback_delete(capsys: pytest.CaptureFixture[str]) -> None:
    assert _json(capsys, "apply", "-f", "d.yaml", "-m", "first") == (
        0,
        {
            "epoch": 1,
            "created": ["purpose/billing", "purpose/ads", "reservation/home/#"],
            "updated": [],
            "deleted": [],
        },
    )
    assert _json(capsys, "apply", "-f", "d.yaml")[1]["epoch"] == 1
    Path("d.yaml").write_text(RESERVATION.replace("[billing]", "[]"))
    code, found = _json(capsys, "diff", "-f", "d.yaml")
    assert code == 0
    assert [(item["action"], item["name"]) for item in found] == [("update", "home/#")]
    assert _json(capsys, "apply", "-f", "d.yaml")[1]["updated"] == ["reservation/home/#"]
    assert [item["reason"] for item in _json(capsys, "history", "reservation/home/#")[1]] == [
        "",
        "first",
    ]
    assert _json(capsys, "rollback", "1")[1]["epoch"] == 3
    assert _json(capsys, "get", "reservation", "home/#")[1] == [
        {"kind": "reservation", "name": "home/#", "allow": ["billing"]}
    ]
    assert _json(capsys, "get", "--epoch", "2", "reservations")[1][0]["allow"] == []
    code, _, errors = _run(capsys, "delete", "purpose/billing")
    assert code == 2
    assert "still uses purpose/billing" in errors
    assert _json(capsys, "delete", "-f", "d.yaml")[1]["deleted"] == [
        "purpose/billing",
        "purpose/ads",
        "reservation/home/#",
    ]


def test_each_change_is_in_the_audit_log_and_reading_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, errors = _run(capsys, "get")
    assert code == 3
    assert "there is no store" in errors
    assert not Path("penstock-data").exists()
    _run(capsys, "apply", "-f", "d.yaml")
    _run(capsys, "apply", "-f", "d.yaml")
    _run(capsys, "rollback", "0")
    url = f"sqlite:///{Path.cwd()}/penstock-data/penstock.db"
    with Database.open(url) as database, database.read() as connection:
        recorded = read_last(connection, 10, Filter(kinds=[CHANGED]))
    entries = [item.entry for item in recorded]
    assert [(item.epoch, json.loads(item.details)["deleted"]) for item in entries] == [
        (1, 0),
        (2, 3),
    ]
    assert all(item.actor and "tester" not in item.actor for item in entries)


def test_an_invalid_file_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.yaml").write_text(RESERVATION + "---\nkind: reservation\nname: a\nallow: [biling]\n")
    code, out, errors = _run(capsys, "apply", "-f", "bad.yaml")
    assert code == 2
    assert not out
    assert "bad.yaml:13:9 (allow.0) of reservation/a: there is no purpose 'biling'" in errors
    assert "did you mean 'billing'?" in errors
    assert _json(capsys, "get")[1] == []


STREAM = """
kind: stream
name: patients
subject: pid
fields: [{name: pid, type: int}, {name: age, type: int}]
---
kind: view
name: research
stream: patients
anonymizers: [{anonymizer: suppression, keys: [pid]}]
---
kind: view
name: all
description: For those who treat patients.
stream: patients
---
kind: hierarchy
name: letters
values: {a: [x], b: [x], c: [x], d: [x], e: [x], f: [x], g: [x], h: [x]}
"""


def test_get_lists_kinds_and_names_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    Path("s.yaml").write_text(STREAM)
    assert _run(capsys, "apply", "-f", "s.yaml")[0] == 0
    code, out, _ = _run(capsys, "get")
    assert code == 0
    lines = [line.rstrip().split(maxsplit=2) for line in out.splitlines()]
    assert lines == [
        ["kind", "name", "says"],
        ["hierarchy", "letters", "values: a, b, c, d, e, f and 2 more"],
        ["stream", "patients", "fields: pid, age; subject: pid"],
        ["view", "all", "For those who treat patients."],
        ["view", "research", "anonymizers: suppression; stream: patients"],
        ["4", "definitions", "at epoch 1"],
    ]
    assert [it["name"] for it in _json(capsys, "get", "views")[1]] == ["all", "research"]


def test_errors_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.yaml").write_text("kind: nothing\nname: a\n")
    code, out, errors = _run(capsys, "apply", "-f", "bad.yaml", "--json")
    assert (code, out) == (2, "")
    assert (
        "there is no kind 'nothing'"
        in json.loads(errors.splitlines()[-1])["problems"][0]["message"]
    )


def test_prune_deletes_what_the_files_do_not_hold(capsys: pytest.CaptureFixture[str]) -> None:
    _run(capsys, "apply", "-f", "d.yaml")
    Path("e.yaml").write_text("kind: reservation\nname: other\n")
    changed = _json(capsys, "apply", "-f", "e.yaml", "--prune", "reservation")[1]
    assert changed["created"] == ["reservation/other"]
    assert changed["deleted"] == ["reservation/home/#"]


def test_check_answers_with_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    _run(capsys, "apply", "-f", "d.yaml")
    code, answer = _json(capsys, "check", "--topic", "home/1", "--purpose", "billing")
    assert (code, answer["allowed"], answer["epoch"]) == (0, True, 1)
    code, answer = _json(capsys, "check", "--topic", "home/1", "--purpose", "ads")
    assert (code, answer["allowed"]) == (1, False)
    assert answer["rule"] == "reservation home/#{billing}"
    code, out, _ = _run(capsys, "check", "--topic", "home/1")
    assert code == 1
    assert out.startswith("denied by reservation home/#{billing}")


def test_explain_says_who_can_see_a_topic(capsys: pytest.CaptureFixture[str]) -> None:
    _run(capsys, "apply", "-f", "d.yaml")
    _, answer = _json(capsys, "explain", "home/1")
    assert answer["allow"] == ["billing"]
    assert "reserved: may be read for billing" in _run(capsys, "explain", "home/1")[1]
    assert "not reserved" in _run(capsys, "explain", "garden")[1]


def test_every_kind_has_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = _json(capsys, "schema")[1]
    for kind, summary in kinds.items():
        schema = _json(capsys, "schema", kind)[1]
        assert schema["properties"]["kind"] == {
            "const": kind,
            "description": "What this document defines.",
        }
        assert summary
        assert all("description" in field for field in schema["properties"].values()), kind
    assert len(_json(capsys, "schema", "--all")[1]["oneOf"]) == len(kinds)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("aply",), "did you mean 'apply'?"),
        (("get", "reservatoin"), "did you mean 'reservation'?"),
        (("get", "purpose", "none"), "there is no purpose 'none'"),
        (("delete",), "nothing to delete"),
        (("delete", "purpose"), "does not name a definition"),
        (("diff",), "nothing to compare"),
        (("rollback", "7"), "there is no epoch 7"),
        (("check", "--topic", "a/#"), "wildcard"),
        (("check", "--topic", "a", "--purpose", "biling"), "did you mean 'billing'?"),
        (("history", "--limit", "0"), "0 is not in the range"),
        (("check", "--topic", "a", "-a", "x"), "NAME=VALUE"),
        (("check", "--topic", "a", "--payload", "["), "not a JSON object"),
        (("apply", "-f", "none.yaml"), "no file or folder"),
    ],
)
def test_wrong_usage_is_answered_with_the_fix(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(capsys, "apply", "-f", "d.yaml")
    code, _, errors = _run(capsys, *arguments)
    assert code == 2
    assert complaint in errors
