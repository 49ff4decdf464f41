import json
from hashlib import sha256
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.store.audit.entry import (
    LARGEST,
    Detail,
    Entry,
    Outcome,
    allow_detail,
    as_document,
    encode,
)
from penstock.store.audit.merkle import hash_leaf

PERSON = "p_" + "a" * 26
RULE = "policy r_" + "a" * 26


def test_the_bytes_of_an_entry() -> None:
    entry = Entry.make(
        "decision.read",
        Outcome.DENIED,
        actor=PERSON,
        rule=RULE,
        epoch=7,
        at=1_700_000_000_000_000,
        stream="vitals/ä",
        purpose="care",
    )
    expected = (
        '{"actor":"p_aaaaaaaaaaaaaaaaaaaaaaaaaa","details":{"purpose":"care","stream":"vitals/ä"},'
        '"epoch":7,"kind":"decision.read","outcome":"denied",'
        '"rule":"policy r_aaaaaaaaaaaaaaaaaaaaaaaaaa","seq":3,'
        '"subject":null,"time":1700000000000000,"v":1}'
    ).encode()
    assert encode(3, entry) == expected
    assert hash_leaf(expected) == sha256(b"\0" + expected).digest()


def test_the_bytes_are_what_a_json_library_writes() -> None:
    entry = Entry.make(
        "x", Outcome.DONE, actor=PERSON, subject=PERSON, rule=RULE, epoch=0, stream="ü"
    )
    document = as_document(12, entry)
    again = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert again.encode() == encode(12, entry)


def test_now_is_the_time_unless_told() -> None:
    first = Entry.make("x", Outcome.DONE).time
    assert first <= Entry.make("x", Outcome.DONE).time
    assert Entry.make("x", Outcome.DONE, at=5).time == 5


@pytest.mark.parametrize("person", ["alice", "", "p_alice", PERSON + "a", PERSON + "\n"])
@pytest.mark.parametrize("role", ["actor", "subject"])
def test_names_of_people_are_refused_and_not_quoted(person: str, role: str) -> None:
    with pytest.raises(UsageError, match="is not a pseudonym") as raised:
        Entry.make("x", Outcome.DONE, **{role: person})  # type: ignore[arg-type]
    if person:
        assert person not in str(raised.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rule": ""},
        {"rule": "policy " + "x" * 257},
        {"rule": "reservation wards/alice{care}"},
        {"rule": "preference alice"},
        {"rule": "alice"},
        {"rule": RULE + " alice"},
        {"rule": "alice/ " + RULE},
        {"rule": "a\nb"},
        {"epoch": -1},
        {"epoch": LARGEST + 1},
        {"at": -1},
        {"at": LARGEST + 1},
        {"payload": "pulse 180"},
        {"purpose": "alice@example.org"},
        {"purpose": ""},
        {"purpose": "a\nb"},
        {"purpose": 5},
        {"count": "5"},
        {"count": True},
        {"count": -1},
        {"count": 1.5},
        {"override": 1},
        {"reason": "No reason"},
        {"digest": "xyz"},
        {"authority": "alice"},
    ],
)
def test_what_must_not_be_in_an_entry_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Entry.make("x", Outcome.DONE, **wrong)


@pytest.mark.parametrize("kind", ["", "Decision", "a b", "x" * 65, "ä"])
def test_kinds_are_words(kind: str) -> None:
    with pytest.raises(UsageError, match="not a kind of event"):
        Entry.make(kind, Outcome.DONE)


def test_too_many_details_are_refused() -> None:
    names = [f"test_detail_{number}" for number in range(17)]
    for name in names:
        allow_detail(name, Detail.COUNT)
    with pytest.raises(UsageError, match="17 details"):
        Entry.make("x", Outcome.DONE, **dict.fromkeys(names, 1))  # type: ignore[arg-type]


def test_a_detail_keeps_its_shape() -> None:
    allow_detail("purpose", Detail.NAME)
    assert Entry.make("x", Outcome.DONE, purpose="care").details == '{"purpose":"care"}'
    with pytest.raises(UsageError, match="already a name"):
        allow_detail("purpose", Detail.COUNT)
    with pytest.raises(UsageError, match="not a name for a detail"):
        allow_detail("Not a name", Detail.COUNT)
