from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config.secrets import SecretFile
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.views import plan_view
from penstock.errors import DeniedError, UnavailableError, UsageError
from penstock.masks.supplies import KEY_VAULT, fingerprint
from penstock.model.kinds import Stream, View
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.reader import read_last
from penstock.store.consent import Choice, ConsentBook
from penstock.store.database import Database
from penstock.store.detokenization import (
    MOST_TOKENS,
    DetokenizationRequest,
    Detokenizer,
    StoreVault,
)
from penstock.store.opt_outs import SubjectMarks

SECRET = bytes(range(32))
DEFINITIONS = """
kind: stream
name: patients
subject: pid
fields: [{name: pid, type: int}, {name: age, type: int}, {name: place, type: string}]
---
kind: view
name: research
stream: patients
purposes: [study/diabetes]
window: {size: 10s}
anonymizers:
  - {anonymizer: aggregation, keys: [age], aggregation_mode: max}
  - {anonymizer: tokenization, keys: [place], method: vault, vault: places}
  - {anonymizer: tokenization, keys: [pid], method: vault, vault: patients}
---
kind: right
name: trust
subjects: [user:ann]
detokenize: [research]
"""


class Office:
    """A store with tokens, and one who turns them back."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.definitions = DefinitionSet.build(read_text(DEFINITIONS, "test").documents)
        self.log = AuditLog.open(database, SecretFile(folder / "signing.key"))
        self.people = Pseudonyms(b"k" * 32)
        self.book = ConsentBook(database, SubjectMarks(SECRET))
        self.clerk = Detokenizer(
            database, self.log, self.people, self.definitions, 7, consent=self.book.opt_outs
        )
        view = self.definitions.get(View, "research")
        stream = self.definitions.get(Stream, "patients")
        assert view is not None
        assert stream is not None
        vault = StoreVault(database)
        vault.put(KEY_VAULT, {fingerprint(SECRET): b""})
        _, behind = plan_view(view, stream, {}).make_chains("research", SECRET, {}, vault)
        assert behind is not None
        made = behind.apply({"pid": 17, "age": 30, "place": "x"})
        assert isinstance(made, dict)
        self.token: str = made["pid"]

    def ask(
        self, *tokens: str, user: str = "ann", secret: bytes = SECRET, field: str = "pid"
    ) -> list[Any]:
        request = DetokenizationRequest(user, "research", field, tokens or (self.token,), "recall")
        return [answer.value for answer in self.clerk.turn_back(request, lambda: secret)]

    def entries(self) -> list[dict[str, Any]]:
        with self.database.read() as connection:
            found = [one.as_document() for one in read_last(connection, 100)]
        return [entry for entry in found if entry["kind"].startswith("detokenize.")]

    def reasons(self) -> list[str]:
        with self.database.read() as connection:
            rows = connection.exec_driver_sql("SELECT reason FROM disclosures").all()
        return [row.reason for row in rows]


@pytest.fixture
def office(database: Database, tmp_path: Path) -> Iterator[Office]:
    made = Office(database, tmp_path)
    yield made
    made.log.close()


def test_a_token_made_behind_a_window_is_turned_back_and_recorded(office: Office) -> None:
    assert office.ask() == [17]
    whole, single = office.entries()
    assert (whole["epoch"], whole["rule"], whole["outcome"]) == (
        7,
        office.people.rule("right/trust"),
        "allowed",
    )
    assert single["subject"] == office.people.person("17")
    assert office.reasons() == ["recall"]


def test_who_opted_out_is_told_to_nobody_from_then_on(office: Office) -> None:
    office.book.choose(Choice.OPT_OUT, ["18"], "study")
    office.book.choose(Choice.OPT_OUT, ["17"], "marketing")
    assert office.ask() == [17]
    office.book.choose(Choice.OPT_OUT, ["17"], "study")
    assert office.ask(office.token, "none of ours") == [None, None]
    _, _, whole, single, other = office.entries()
    assert (whole["outcome"], single["outcome"], other["outcome"]) == (
        "allowed",
        "denied",
        "failed",
    )
    assert single["subject"] == office.people.person("17")
    # A field that names nobody does not tell whose tokens these are.
    with pytest.raises(DeniedError, match="does not tell whose"):
        office.ask(field="place")
    office.book.choose(Choice.OPT_IN, ["17"], "study")
    assert office.ask() == [17]
    office.book.choose(Choice.OPT_IN, ["18"], "study")
    assert office.ask(field="place") == [None]


def test_nothing_is_told_while_opt_outs_are_not_known(office: Office) -> None:
    office.book.choose(Choice.OPT_OUT, ["18"], "study")
    other = ConsentBook(office.database, SubjectMarks(b"x" * 32))
    office.clerk = Detokenizer(
        office.database, office.log, office.people, office.definitions, 7, consent=other.opt_outs
    )
    with pytest.raises(UnavailableError, match="another"):
        office.ask()
    assert office.entries()[-1]["outcome"] == "failed"


def test_nothing_is_told_that_could_not_be_recorded(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise UnavailableError("the log is full")

    monkeypatch.setattr(office.log, "append_within", fail)
    with pytest.raises(UnavailableError, match="the log is full"):
        office.ask()
    assert office.reasons() == [], "one transaction"
    assert office.entries() == []


def test_denials_and_wrong_keys_are_recorded(office: Office) -> None:
    with pytest.raises(DeniedError):
        office.ask(user="eve")
    with pytest.raises(UnavailableError):
        office.ask(secret=bytes(32))
    assert [(it["outcome"], it["details"]["reason"]) for it in office.entries()] == [
        ("denied", "right"),
        ("failed", "key"),
    ]


def test_the_same_token_has_the_same_digest_and_others_have_others(office: Office) -> None:
    office.ask(office.token, "0" * 32, office.token)
    digests = [entry["details"]["digest"] for entry in office.entries()[1:]]
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": ()},
        {"tokens": ("x",) * (MOST_TOKENS + 1)},
        {"tokens": ("",)},
        {"tokens": ("x" * 5000,)},
        {"reason": ""},
        {"reason": "a\0b"},
        {"reason": "x" * 2001},
        {"view": "x" * 257},
        {"field": ""},
    ],
)
def test_limits_of_a_request(wrong: dict[str, Any]) -> None:
    right = {"user": "ann", "view": "v", "field": "f", "tokens": ("x",), "reason": "why"}
    DetokenizationRequest(**right)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        DetokenizationRequest(**(right | wrong))
