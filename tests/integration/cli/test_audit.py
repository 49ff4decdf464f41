"""`penstock audit` as a user calls it."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from penstock.cli.entry import penstock
from penstock.cli.session import configuration, open_database
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms

FOLLOW = ["audit", "tail", "-f", "-n", "1", "--json"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["audit", *arguments])
        printed = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, printed.out, printed.err

    return call


@pytest.fixture
def recorded(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    record(
        ("decision.read", Outcome.ALLOWED, "alice"),
        ("decision.read", Outcome.DENIED, "bob"),
        ("decision.write", Outcome.ALLOWED, "alice"),
    )
    capsys.readouterr()


def record(*events: tuple[str, Outcome, str]) -> None:
    settings = configuration()
    with open_database(settings) as database:
        log = AuditLog.open(database, settings.audit.signing_key)
        people = Pseudonyms.open(settings.audit.pseudonym_key)
        log.append(
            [
                Entry.make(
                    kind,
                    outcome,
                    actor=people.person(name),
                    rule=people.rule("policy x"),
                    purpose="care",
                )
                for kind, outcome, name in events
            ]
        )
        log.close()


def tamper(statement: str) -> None:
    path = next(Path("penstock-data").glob("*.db"))
    with closing(sqlite3.connect(path)) as connection, connection:
        for verb in ("update", "delete"):
            connection.execute(f"DROP TRIGGER IF EXISTS audit_entries_no_{verb}")
        connection.execute(statement)


def objects(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_an_empty_log(run: Run) -> None:
    assert run("tail") == (0, "no entries yet\n", "")
    code, out, _ = run("verify", "--json")
    assert (code, json.loads(out)["ok"]) == (0, True)
    assert run("head")[0] == 2
    assert run("prove", "0")[0] == 2


@pytest.mark.usefixtures("recorded")
def test_tail(run: Run) -> None:
    _, out, _ = run("tail", "--json")
    assert [one["seq"] for one in objects(out)] == [0, 1, 2, 3]
    assert objects(out)[1]["details"] == {"purpose": "care"}
    assert [one["seq"] for one in objects(run("tail", "-n", "2", "--json")[1])] == [2, 3]
    assert [one["seq"] for one in objects(run("tail", "--kind", "decision.read", "--json")[1])] == [
        1,
        2,
    ]
    assert [one["seq"] for one in objects(run("tail", "--outcome", "denied", "--json")[1])] == [2]
    code, out, _ = run("tail")
    assert code == 0
    assert "alice" not in out
    assert out.split()[:2] == ["entry", "time"]
    assert "denied   decision.read" in out.splitlines()[3]


def test_rules_are_shown_by_name_with_the_key_only(run: Run, tmp_path: Path) -> None:
    documents = [
        "{kind: purpose, name: care}",
        "{kind: reservation, name: ward/alice/#, allow: [care]}",
        "{kind: right, name: bob, subjects: [user:bob], administer: true}",
    ]
    file = tmp_path / "ward.yaml"
    file.write_text("\n---\n".join(documents))
    penstock.main(["apply", "-f", str(file)], standalone_mode=False)
    settings = configuration()
    known = ["reservation ward/alice/#{care}", "right/bob"]
    with open_database(settings) as database:
        log = AuditLog.open(database, settings.audit.signing_key)
        people = Pseudonyms.open(settings.audit.pseudonym_key)
        rules = [people.rule(it) for it in (*known, "subscription ward/carol")]
        log.append([Entry.make("x", Outcome.DENIED, rule=it, epoch=1) for it in rules])
        log.close()
    # As soon as the rules are gone they are found in history.
    penstock.main(["delete", "right/bob"], standalone_mode=False)
    assert "alice" not in run("tail")[1].partition(" entry ")[2]
    plain = [it["rule"] for it in objects(run("tail", "--json")[1]) if it["kind"] == "x"]
    assert plain == rules
    named = [it["rule"] for it in objects(run("tail", "--names", "--json")[1]) if it["kind"] == "x"]
    assert named == [*known, rules[2]]
    assert "reservation ward/alice/#{care}" in run("tail", "--names")[1]
    settings.audit.pseudonym_key.path.rename(tmp_path / "elsewhere")
    assert run("tail", "--names")[0] == 3


@pytest.mark.usefixtures("recorded")
def test_a_person_is_found_with_the_key_only(run: Run) -> None:
    assert [one["seq"] for one in objects(run("tail", "--person", "alice", "--json")[1])] == [1, 3]
    assert run("tail", "--person", "carol")[1] == "no entries that fit\n"
    Path("penstock-data/keys/pseudonym.key").unlink()
    code, _, err = run("tail", "--person", "alice")
    assert code == 3
    assert "pseudonym.key" in err
    assert not Path("penstock-data/keys/pseudonym.key").exists()


@pytest.mark.parametrize("arguments", [["--kind", "a b"], ["--outcome", "maybe"], ["-n", "-1"]])
def test_wrong_usage_of_tail(run: Run, arguments: list[str]) -> None:
    assert run("tail", *arguments)[0] == 2


@pytest.mark.usefixtures("recorded")
def test_following(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from penstock.cli import main; main()", *FOLLOW],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["seq"] == 3
        for seq in (4, 5):
            record(("decision.read", Outcome.DENIED, "carol"))
            assert json.loads(process.stdout.readline())["seq"] == seq
    finally:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("recorded")
def test_verify(run: Run) -> None:
    code, out, _ = run("verify")
    assert (code, out.startswith("ok: 4 entries are as they were signed")) == (0, True)
    tamper("UPDATE audit_entries SET outcome='allowed' WHERE seq=2")
    code, out, _ = run("verify")
    assert code == 1
    assert "first bad entry: 2" in out
    code, out, _ = run("verify", "--json")
    assert code == 1
    assert json.loads(out)["first_bad"] == 2
    assert json.loads(out)["findings"] == [
        {"message": "entry 2 is not as it was signed", "entry": 2, "until": None}
    ]


@pytest.mark.usefixtures("recorded")
def test_a_replaced_database_is_found_with_a_kept_head(run: Run, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text(run("head")[1])
    assert run("verify", "--head", str(kept))[0] == 0
    for path in Path("penstock-data").glob("*.db*"):
        path.unlink()
    Path("penstock-data/keys/audit-signing.head").unlink()
    record(*[("decision.read", Outcome.ALLOWED, "mallory")] * 9)
    assert run("verify")[0] == 0
    code, out, _ = run("verify", "--head", str(kept))
    assert code == 1
    assert "entries 0 to 3 are not all as they were signed" in out


@pytest.mark.usefixtures("recorded")
def test_a_database_set_back_is_found_with_the_anchor(run: Run, tmp_path: Path) -> None:
    source = next(Path("penstock-data").glob("*.db"))
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect("old.db")) as copy:
        old.backup(copy)
    record(("decision.read", Outcome.ALLOWED, "alice"))
    for path in Path("penstock-data").glob("*.db*"):
        path.unlink()
    shutil.copy("old.db", source)
    code, out, _ = run("verify")
    assert code == 1
    assert "the log ends at 4 entries, but a signed head says that there were 5" in out


def test_pruning(run: Run, tmp_path: Path) -> None:
    Path("penstock.yaml").write_text("audit: {denials_keep: 30d}\n")
    assert run("prune") == (0, "nothing is due\n", "")
    settings = configuration()
    long_ago = int((time.time() - 40 * 86_400) * 1e6)
    with open_database(settings) as database:
        log = AuditLog.open(database, settings.audit.signing_key)
        outcomes = (Outcome.DENIED, Outcome.ALLOWED, Outcome.DENIED)
        log.append([Entry.make("x", one, at=long_ago) for one in outcomes])
        log.close()
    kept = tmp_path / "kept.json"
    kept.write_text(run("head")[1])
    record(("decision.read", Outcome.DENIED, "bob"))
    code, out, _ = run("prune", "--dry-run", "--json")
    due = {"pruned": False, "denials": 2, "others": 0, "before": 4}
    assert (code, json.loads(out)) == (0, due)
    assert len(objects(run("tail", "--json")[1])) == 5
    assert run("prune")[1].startswith("2 denials and 0 other entries were pruned")
    left = [(one["seq"], one["kind"]) for one in objects(run("tail", "--json")[1])]
    assert [seq for seq, _ in left] == [0, 2, 4, 5]
    assert left[-1][1] == "audit.pruned"
    code, out, _ = run("verify", "--head", str(kept))
    assert (code, "entries before 4 were pruned, as signed; 2 of them are left" in out) == (0, True)
    assert json.loads(run("verify", "--json")[1])["pruned"] == 4
    assert run("prove", "2")[0] == 0
    code, _, err = run("prove", "1")
    assert (code, "entry 1 of the audit log was pruned; entry 5 says so" in err) == (2, True)
    assert run("prove", "--since", str(kept))[0] == 0
    tamper("DELETE FROM audit_entries WHERE seq=2")
    assert run("verify")[0] == 1


@pytest.mark.usefixtures("recorded")
def test_verify_needs_a_key_to_believe(run: Run) -> None:
    Path("penstock-data/keys/audit-signing.pub").rename("auditor.pub")
    assert run("verify")[0] == 3
    assert run("verify", "--public-keys", "auditor.pub")[0] == 0


@pytest.mark.usefixtures("recorded")
def test_proofs_travel(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old.json").write_text(run("head", "--json")[1])
    record(*[("decision.read", Outcome.ALLOWED, "alice")] * 20)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "inclusion.json").write_text(run("prove", "2")[1])
    (elsewhere / "consistency.json").write_text(run("prove", "--since", "old.json", "--json")[1])
    (elsewhere / "keys.pub").write_text(run("keys")[1])
    key = json.loads(run("keys", "--json")[1])[0]["key"]
    monkeypatch.chdir(elsewhere)
    for proof in ("inclusion.json", "consistency.json"):
        assert run("check-proof", proof, "--public-keys", "keys.pub")[0] == 0
        code, out, _ = run("check-proof", proof, "--key-id", key, "--json")
        assert code == 0
        assert json.loads(out)["ok"] is True
        code, _, err = run("check-proof", proof)
        assert code == 2
        assert "no key to trust" in err
        assert run("check-proof", proof, "--key-id", "00")[0] == 1
    text = Path("inclusion.json").read_text().replace("denied", "allowed")
    Path("forged.json").write_text(text)
    assert run("check-proof", "forged.json", "--public-keys", "keys.pub")[0] == 1
    Path("nonsense.json").write_text("{")
    assert run("check-proof", "nonsense.json", "--public-keys", "keys.pub")[0] == 2
    assert run("check-proof", "missing.json")[0] == 2


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("arguments", [[], ["1", "--since", "x"], ["--until", "x"], ["99"]])
def test_wrong_usage_of_prove(run: Run, arguments: list[str]) -> None:
    assert run("prove", *arguments)[0] == 2


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(
    "change", ["details='['", "time='soon'", "rule=char(27) || '[2J'", "kind=x'00'"]
)
def test_tail_of_a_tampered_entry_prints_nothing_of_it(run: Run, change: str) -> None:
    tamper(f"UPDATE audit_entries SET {change} WHERE seq=2")  # noqa: S608
    code, out, err = run("tail")
    assert code == 1
    assert [line.split()[0] for line in out.splitlines()] == ["entry", "0", "1"]
    assert "entry 2 is unreadable" in err


@pytest.mark.usefixtures("recorded")
def test_an_unavailable_database(run: Run) -> None:
    path = next(Path("penstock-data").glob("*.db"))
    for found in Path("penstock-data").glob("*.db*"):
        found.unlink()
    os.mkdir(path)  # noqa: PTH102 - something that is no database stands in its place
    assert run("verify")[0] == 3
