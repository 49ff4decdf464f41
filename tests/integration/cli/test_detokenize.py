"""`penstock detokenize` as a user calls it."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from penstock.cli.session import configuration, open_database, open_definitions
from penstock.definitions.views import plan_view
from penstock.masks.supplies import KEY_VAULT, fingerprint
from penstock.model.kinds import Stream, View
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.detokenization import StoreVault

Run = Callable[..., tuple[int, str, str]]
SECRET = bytes(range(32))
DEFINITIONS = """
kind: stream
name: patients
subject: pid
fields:
  - {name: pid, type: string, category: identifier}
  - {name: name, type: string, category: identifier}
  - {name: insurance, type: string, category: identifier}
  - {name: number, type: int, category: identifier}
  - {name: city, type: string}
---
kind: view
name: research
stream: patients
anonymizers:
  - {anonymizer: tokenization, keys: [pid], method: vault, vault: patients}
  - {anonymizer: tokenization, keys: [name, city]}
  - {anonymizer: tokenization, keys: [insurance], method: ff1, alphabet: alphanumeric, keep: "-"}
  - {anonymizer: tokenization, keys: [number], method: ff1}
  - {anonymizer: suppression, keys: [city]}
---
kind: view
name: other
stream: patients
anonymizers: [{anonymizer: tokenization, keys: [pid], method: vault, vault: patients}]
---
kind: group
name: trustees
members: [user:ann]
---
kind: right
name: trust
subjects: [group:trustees]
detokenize: [research]
---
kind: right
name: gardener
subjects: [user:bob]
reserve: ["garden/#"]
"""
RECORD = {
    "pid": "P-17",
    "name": "Hans Müller",
    "insurance": "DE-1234567",
    "number": 4711471,
    "city": "Potsdam",
}
WHY = ("--reason", "recall of a batch")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str, told: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(told))
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        printed = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, printed.out, printed.err

    return call


def _write_secret(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch(0o600)
    path.write_bytes(content)


@pytest.fixture
def tokens(run: Run, tmp_path: Path) -> dict[str, Any]:
    """Return the tokens of one record, made as the view makes them."""
    (tmp_path / "penstock.yaml").write_text(
        "gateway: {authentication: {passwords: keys/passwords}}\n"
    )
    (tmp_path / "definitions.yaml").write_text(DEFINITIONS, encoding="utf-8")
    assert run("apply", "-f", "definitions.yaml")[0] == 0
    for user in ("ann", "bob"):
        assert run("password", user, told=f"{user}'s word\n")[0] == 0
        _write_secret(tmp_path / user, f"{user}'s word\n".encode())
    config = configuration()
    _write_secret(config.pipeline.key.path, SECRET)
    with open_definitions() as store:
        definitions = store.current()[1]
    view, stream = definitions.get(View, "research"), definitions.get(Stream, "patients")
    assert view is not None
    assert stream is not None
    with open_database(config) as database:
        vault = StoreVault(database)
        vault.put(KEY_VAULT, {fingerprint(SECRET): b""})
        chain, _ = plan_view(view, stream, {}).make_chains("research", SECRET, {}, vault)
        made = chain.apply(RECORD)
    assert isinstance(made, dict)
    return made


def _ask(run: Run, *arguments: str, user: str = "ann", told: str = "") -> tuple[int, Any, str]:
    given = ("detokenize", *arguments, "--as", user, "--password-file", user, *WHY, "--json")
    code, out, err = run(*given, told=told)
    return code, json.loads(out) if out else None, err


def _audited(run: Run) -> list[dict[str, Any]]:
    code, out, _ = run("audit", "tail", "--json", "-n", "10000")
    assert code == 0
    assert run("audit", "verify")[0] == 0
    entries = [json.loads(line) for line in out.splitlines()]
    return [entry for entry in entries if entry["kind"].startswith("detokenize.")]


def _disclosures() -> list[Any]:
    with open_database() as database, database.read() as connection:
        return list(connection.exec_driver_sql("SELECT * FROM disclosures").all())


@pytest.mark.parametrize("field", ["pid", "insurance", "number"])
def test_who_has_the_right_gets_the_original(run: Run, tokens: dict[str, Any], field: str) -> None:
    token = str(tokens[field])
    assert token != str(RECORD[field])
    code, answer, _ = _ask(run, "research", field, token)
    assert (code, answer) == (0, [{"token": token, "value": RECORD[field]}])
    people = Pseudonyms.load(configuration().audit.pseudonym_key)
    whole, single = _audited(run)
    assert whole["outcome"] == single["outcome"] == "allowed"
    assert whole["actor"] == single["actor"] == people.person("ann")
    assert whole["rule"] == single["rule"] == people.rule("right/trust")
    assert whole["details"]["count"] == 1
    assert whole["details"]["request"] == single["details"]["request"]
    assert single["details"]["view"] == "research"
    assert single["details"]["field"] == field
    # Only the field that names the person tells whom the entry is about.
    assert single["subject"] == (people.person("P-17") if field == "pid" else None)
    (kept,) = _disclosures()
    assert (kept.request, kept.reason) == (whole["details"]["request"], "recall of a batch")
    written = json.dumps([whole, single])
    assert token not in written
    assert str(RECORD[field]) not in written
    assert "ann" not in {whole["actor"], whole["subject"]}
    assert "recall" not in written


def test_pseudonyms_stay(run: Run, tokens: dict[str, Any]) -> None:
    code, answer, err = _ask(run, "research", "name", tokens["name"])
    assert (code, answer) == (2, None)
    assert "pseudonyms, which nobody can turn back" in err
    (entry,) = _audited(run)
    assert (entry["outcome"], entry["details"]["reason"]) == ("failed", "field")


@pytest.mark.parametrize("field", ["city", "nothing"])
def test_fields_without_tokens(run: Run, tokens: dict[str, Any], field: str) -> None:
    code, answer, err = _ask(run, "research", field, "*")
    assert (code, answer) == (2, None)
    assert "has no tokens in a field" in err
    assert [entry["outcome"] for entry in _audited(run)] == ["failed"]


@pytest.mark.parametrize(
    ("user", "view"), [("bob", "research"), ("ann", "other"), ("ann", "no-such-view")]
)
def test_without_the_right_nothing_is_told(
    run: Run, tokens: dict[str, Any], user: str, view: str
) -> None:
    code, answer, err = _ask(run, view, "pid", tokens["pid"], user=user)
    assert (code, answer) == (1, None)
    assert "has no right to turn back tokens" in err
    (entry,) = _audited(run)
    assert (entry["outcome"], entry["details"]["reason"]) == ("denied", "right")
    assert entry["actor"] == Pseudonyms.load(configuration().audit.pseudonym_key).person(user)
    assert entry["details"]["count"] == 1


def test_a_wrong_password_is_denied_and_recorded(
    run: Run, tokens: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "ann").write_text("guess")
    code, answer, err = _ask(run, "research", "pid", tokens["pid"])
    assert (code, answer) == (1, None)
    assert "wrong user name or password" in err
    _write_secret(tmp_path / "eve", b"guess")
    assert _ask(run, "research", "pid", tokens["pid"], user="eve")[0] == 1
    reasons = [(entry["outcome"], entry["details"]["reason"]) for entry in _audited(run)]
    assert reasons == [("denied", "password")] * 2


def test_a_revoked_right_is_gone_at_once(run: Run, tokens: dict[str, Any]) -> None:
    assert _ask(run, "research", "pid", tokens["pid"])[0] == 0
    assert run("delete", "right/trust")[0] == 0
    assert _ask(run, "research", "pid", tokens["pid"])[0] == 1


def test_another_key_is_refused(run: Run, tokens: dict[str, Any]) -> None:
    path = configuration().pipeline.key.path
    _write_secret(path, os.urandom(32))
    for field in ("pid", "insurance"):
        code, answer, err = _ask(run, "research", field, tokens[field])
        assert (code, answer) == (3, None)
        assert "has made no tokens with this store" in err
    path.unlink()
    assert _ask(run, "research", "pid", tokens["pid"])[0] == 3
    found = [(entry["outcome"], entry["details"]["reason"]) for entry in _audited(run)]
    assert found == [("failed", "key")] * 3


def test_many_tokens_from_standard_input(run: Run, tokens: dict[str, Any]) -> None:
    told = f"{tokens['pid']}\n\n  {'0' * 32}\nno token at all\n"
    code, answer, _ = _ask(run, "research", "pid", told=told)
    assert code == 0
    assert [it["value"] for it in answer] == ["P-17", None, None]
    outcomes = [entry["outcome"] for entry in _audited(run)]
    assert outcomes == ["allowed", "allowed", "failed", "failed"]
    code, answer, err = _ask(run, "research", "pid", told="x\n" * 1001)
    assert (code, answer) == (2, None)
    assert "1001 tokens are asked for at once" in err
    assert _ask(run, "research", "pid", told="")[0] == 2
    code, answer, _ = _ask(run, "research", "pid", told=f"{tokens['pid']}\n" * 1000)
    assert code == 0
    assert {it["value"] for it in answer} == {"P-17"}


def test_what_is_wrong_is_told_before_anything_is_asked(run: Run, tokens: dict[str, Any]) -> None:
    given = ("detokenize", "research", "pid", tokens["pid"], "--as", "ann")
    assert run(*given, "--password-file", "ann")[0] == 2, "a reason is needed"
    assert run(*given, "--password-file", "ann", "--reason", " ")[0] == 2
    code, _, err = run(*given, *WHY)
    assert code == 2
    assert "give --password-file" in err
    Path("ann").chmod(0o644)
    assert run(*given, *WHY, "--password-file", "ann")[0] == 3, "others could read it"
    assert _audited(run) == []


def test_people_read_a_table(run: Run, tokens: dict[str, Any]) -> None:
    given = ("detokenize", "research", "pid", tokens["pid"], "[bold]x[/bold]", "--as", "ann")
    code, out, _ = run(*given, *WHY, "--password-file", "ann")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["token", "original"],
        [tokens["pid"], "P-17"],
        ["[bold]x[/bold]", "unknown"],
    ]


def test_nobody_can_prove_anything_without_a_file_of_passwords(
    run: Run, tokens: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "penstock.yaml").write_text("{}\n")
    code, _, err = _ask(run, "research", "pid", tokens["pid"])
    assert code == 3
    assert "nobody can prove who they are" in err


def test_a_right_to_turn_back_is_for_named_people(run: Run, tokens: dict[str, Any]) -> None:
    for who in ("anyone", "client:terminal"):
        Path("wide.yaml").write_text(
            f"kind: right\nname: wide\nsubjects: ['{who}']\ndetokenize: [research]\n"
        )
        code, _, err = run("apply", "-f", "wide.yaml")
        assert code == 2
        assert "people who prove who they are" in err
