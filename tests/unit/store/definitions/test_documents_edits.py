from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidError
from penstock.model.document import Document, Key
from penstock.store.definitions.documents import (
    Delete,
    Edit,
    EditLimits,
    Put,
    check_origin,
    edits_between,
    encode_edits,
)

A, B, C = Key("topic", "a"), Key("topic", "b"), Key("topic", "c")


def put(key: Key, value: int = 0) -> Put:
    return Put(Document(key.kind, key.name, {"value": value}))


def test_edits_between_two_sets_lead_from_one_to_the_other() -> None:
    now = {A: put(A).document, B: put(B).document}
    then = {B: put(B, 7).document, C: put(C).document}
    assert edits_between(now, then) == [Delete(A), put(B, 7), put(C)]
    assert edits_between(now, then, [A]) == [Delete(A)]
    assert edits_between(now, then, [C]) == [put(C)]
    assert edits_between(now, then, [Key("no", "such")]) == []


def test_what_is_put_is_encoded_and_what_is_deleted_is_not() -> None:
    document = Document("topic", "a", {"z": 1, "a": [None, "é\u0000"]})
    assert encode_edits([Put(document), Delete(B)], EditLimits()) == {
        A: '{"a":[null,"é\\u0000"],"z":1}',
        B: None,
    }


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ({"x": float("nan")}, "NaN is not a JSON number"),
        ({"x": float("inf")}, "Infinity is not a JSON number"),
        ({"x": "\ud800"}, "half of a surrogate pair"),
        ({"x": {1, 2}}, "what JSON cannot express"),
        ({1: "x", "1": "y"}, "what JSON cannot express"),
        ({"x": nested(64)}, "nested deeper than 64 levels"),
        ({"x": circular()}, "nested deeper than 64 levels"),
        ({"x": "y" * 300_000}, "300008 bytes of JSON; at most 262144"),
        ({"x": 10**5000}, "integer string"),
    ],
)
def test_a_body_that_cannot_be_stored_is_refused(body: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidError) as raised:
        encode_edits([Put(Document("topic", "a", body))], EditLimits())
    assert match in str(raised.value)
    assert raised.value.problems[0].place == "'topic/a'"


def test_a_body_at_the_limits_is_taken() -> None:
    body = {"x": nested(63), "y": "z" * (256 * 1024 - 139)}
    [text] = encode_edits([Put(Document("topic", "a", body))], EditLimits()).values()
    assert text is not None
    assert len(text) == 256 * 1024


@pytest.mark.parametrize(
    ("key", "match"),
    [
        (Key("", "a"), "the kind must be 1 to 64 printable characters"),
        (Key("k" * 65, "a"), "the kind must be"),
        (Key("topic", ""), "the name must be 1 to 256 printable characters"),
        (Key("topic", "n" * 257), "the name must be"),
        (Key("topic", "a\x00b"), "the name must be"),
        (Key("topic", "a\nb"), "the name must be"),
        (Key("topic", "\udcff"), "the name must be"),
    ],
)
def test_a_key_that_cannot_be_stored_is_refused(key: Key, match: str) -> None:
    with pytest.raises(InvalidError) as raised:
        encode_edits([put(key)], EditLimits())
    assert match in str(raised.value)


def test_all_problems_are_listed_at_once() -> None:
    edits: list[Edit] = [
        put(Key("", "x")),
        put(A),
        Delete(A),
        Put(Document("topic", "b", {"x": {1}})),
    ]
    with pytest.raises(InvalidError) as raised:
        encode_edits(edits, EditLimits())
    assert [problem.place for problem in raised.value.problems] == [
        "'/x'",
        "'topic/a'",
        "'topic/b'",
    ]
    assert "appears twice in one change" in str(raised.value)


def test_a_change_of_too_many_edits_is_refused() -> None:
    edits = [put(Key("topic", str(number))) for number in range(4)]
    assert len(encode_edits(edits[:3], EditLimits(edits_per_change=3))) == 3
    with pytest.raises(InvalidError, match="the change: 1 problem") as raised:
        encode_edits(edits, EditLimits(edits_per_change=3))
    assert "4 edits in one change; at most 3 are allowed → split the change" in str(raised.value)


@pytest.mark.parametrize(
    ("actor", "reason", "places"),
    [
        ("ann", "", []),
        ("ann", "two lines\nof text", []),
        ("", "", ["actor"]),
        ("a\nb", "\x00", ["actor", "reason"]),
        ("a" * 257, "r" * 2001, ["actor", "reason"]),
    ],
)
def test_actor_and_reason_must_fit_into_the_history(
    actor: str, reason: str, places: list[str]
) -> None:
    if not places:
        check_origin(actor, reason)
        return
    with pytest.raises(InvalidError) as raised:
        check_origin(actor, reason)
    assert [problem.place for problem in raised.value.problems] == places
