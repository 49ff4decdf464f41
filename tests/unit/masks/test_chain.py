"""Fields, keys, reading and chains: what all masks share."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

import pytest

from penstock.errors import InvalidError, UsageError
from penstock.masks import (
    MASKS,
    Chain,
    Field,
    Keys,
    Rejected,
    Supplies,
    check_masks,
    derive_schema,
    read_masks,
)
from penstock.masks.fields import CHECKS, TEXTS, FieldType, read_constant
from penstock.masks.supplies import split_key
from tests.support.masks.single_mask import SECRET, supply

SCHEMA = {
    "name": Field.of("string"),
    "age": Field.of("int"),
    "sugar": Field.of("float", optional=True),
}


def chain(*items: dict[str, Any], schema: Mapping[str, Field] = SCHEMA) -> Chain:
    return Chain(read_masks(items), schema, supply())


def test_both_notations_give_the_same_mask() -> None:
    flat = {"anonymizer": "bucketizing", "keys": ["age"], "bucket_size": 10}
    parts = {"anonymizer": "bucketizing", "parameters": [{"keys": ["age"]}, {"bucket_size": 10}]}
    joined = {"anonymizer": "bucketizing", "parameters": [{"keys": ["age"], "bucket_size": 10}]}
    objects = {
        "anonymizer": "bucketizing",
        "parameters": [{"keys": [{"key": "age"}]}, {"bucket_size": 10}],
    }
    assert len({repr(read_masks([it])) for it in (flat, parts, joined, objects)}) == 1


def test_names_of_other_files() -> None:
    (mask,) = read_masks([{"anonymizer": "noise_methods", "keys": ["age"], "noise": 0.2}])
    assert mask.name == "noise"
    assert set(MASKS) == {
        "suppression",
        "blurring",
        "substitution",
        "tokenization",
        "generalization",
        "bucketizing",
        "noise",
        "conditional_substitution",
    }


def test_all_problems_of_a_list_are_told_at_once() -> None:
    with pytest.raises(InvalidError) as caught:
        read_masks(
            [
                {"anonymizer": "supression", "keys": ["a"]},
                {"anonymizer": "suppression"},
                {"anonymizer": "bucketizing", "keys": ["a", "a"], "buckketSize": 1},
                {"anonymizer": "blurring", "parameters": [{"keys": ["a"]}, {"keys": ["b"]}]},
                {"anonymizer": "blurring", "parameters": 3},
                "blurring",
                {"anonymizer": "blurring", "keys": [], "n_fields": 0},
            ]
        )
    assert list(map(str, caught.value.problems)) == [
        "anonymizers[0]: there is no row-wise mask 'supression' → did you mean 'suppression'?",
        "anonymizers[1].keys: the parameter is missing → add it: The fields to mask.",
        "anonymizers[2].keys: 'a' is listed twice → name each field once",
        "anonymizers[2].bucket_size: the parameter is missing → add it: How wide each range is.",
        (
            "anonymizers[2].buckketSize: bucketizing has no such parameter "
            "→ did you mean 'bucket_size'?"
        ),
        "anonymizers[3]: the parameter 'keys' is given twice → leave one of them out",
        (
            "anonymizers[4].parameters: this is not a list of parameters "
            "→ write [{keys: [FIELD]}, {bucket_size: 10}]"
        ),
        "anonymizers[5]: this names no anonymizer → write {anonymizer: NAME, keys: [FIELD], …}",
        "anonymizers[6].keys: the list is empty → write at least one",
        "anonymizers[6].n_fields: '0': input should be greater than 0",
    ]


def test_fields_are_checked_along_the_chain() -> None:
    masks = read_masks(
        [
            {"anonymizer": "bucketizing", "keys": ["age", "agee"], "bucket_size": 10},
            {"anonymizer": "noise", "keys": ["age"], "noise": 1},
        ]
    )
    assert list(map(str, check_masks(masks, SCHEMA))) == [
        "anonymizers[0].keys[1]: there is no field 'agee' → fields are name, age, sugar",
        (
            "anonymizers[1].keys[0]: noise does not take 'age', which is string "
            "→ it takes double, float, int, long"
        ),
    ]
    with pytest.raises(InvalidError, match="2 problems"):
        Chain(masks, SCHEMA, supply())
    assert derive_schema(masks, SCHEMA)["age"] == Field.of("string")


def test_masks_follow_each_other() -> None:
    masked = chain(
        {"anonymizer": "bucketizing", "keys": ["age"], "bucket_size": 10},
        {
            "anonymizer": "generalization",
            "keys": ["age"],
            "generalization_map": {"[20 - 30]": "twen"},
        },
        {"anonymizer": "suppression", "keys": ["name", "sugar"]},
    )
    assert masked.apply({"name": "Hans", "age": 27, "sugar": 5.5}) == {
        "name": "*",
        "age": "twen",
        "sugar": None,
    }
    assert masked.output == {
        "name": Field.of("string"),
        "age": Field.of("string"),
        "sugar": Field.of("float", optional=True),
    }


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"age": 1}, "the field 'name' is required, and missing"),
        ({"name": None, "age": 1}, "the field 'name' is required, and missing"),
        ({"name": "x", "age": "1"}, "the field 'age' is declared int, and holds something else"),
        ({"name": "x", "age": True}, "the field 'age' is declared int, and holds something else"),
        ({"name": "x", "age": 2**31}, "the field 'age' is declared int, and holds something else"),
        ({"name": "\ud800", "age": 1}, "the field 'name' is declared string, and holds something"),
        ({"name": b"x", "age": 1}, "the field 'name' is declared string, and holds something else"),
        ({"name": "x", "age": 1, "sugar": 1e39}, "the field 'sugar' is declared float, and holds"),
    ],
)
def test_records_that_do_not_conform_are_rejected(record: dict[str, Any], reason: str) -> None:
    outcome = chain().apply(record)
    assert isinstance(outcome, Rejected)
    assert outcome.reason.startswith(reason)


def test_fields_that_nobody_declared_do_not_pass() -> None:
    assert chain().apply({"name": "x", "age": 1, "diagnosis": "flu"}) == {
        "name": "x",
        "age": 1,
        "sugar": None,
    }


def test_reasons_hold_no_values() -> None:
    masked = chain({"anonymizer": "tokenization", "keys": ["name"], "method": "ff1"})
    outcome = masked.apply({"name": "Hans Müller", "age": 1})
    assert isinstance(outcome, Rejected)
    assert "Müller" not in repr(outcome)


def test_keys_are_needed_and_long_enough() -> None:
    masks = read_masks([{"anonymizer": "tokenization", "keys": ["name"]}])
    with pytest.raises(InvalidError, match="tokenization needs the keys of the view"):
        Chain(masks, SCHEMA, Supplies())
    with pytest.raises(UsageError, match="has 31 bytes → give at least 32 random bytes"):
        Keys(bytes(31), "view")


def test_every_use_has_a_key_of_its_own() -> None:
    keys = Keys(SECRET, "view")
    derived = [
        keys.derive("a", "b", "c"),
        keys.derive("ab", "", "c"),
        keys.derive("a", "bc", ""),
        keys.derive("a", "b"),
        Keys(SECRET, "other").derive("a", "b", "c"),
        Keys(bytes(32), "view").derive("a", "b", "c"),
        keys.derive_shared("a", "b", "c"),
        Keys(SECRET, "").derive("domain", "b", "c"),
    ]
    assert len(set(derived)) == len(derived)
    assert keys.derive_shared("a", "b") == Keys(SECRET, "other").derive_shared("a", "b")


def test_the_secret_is_not_shown_and_travels() -> None:
    keys = Keys(b"top secret " * 4, "view")
    assert "secret" not in repr(Supplies(keys)).replace("secret=", "")
    assert pickle.loads(pickle.dumps(keys)) == keys  # noqa: S301 - our own bytes
    inner, outer = split_key(b"\x00\xff")
    assert (inner[:3], outer[:3]) == (b"\x36\xc9\x36", b"\x5c\xa3\x5c")
    assert (len(inner), len(outer)) == (64, 64)


@pytest.mark.parametrize(
    ("kind", "constant", "expected"),
    [
        ("int", "-7", -7),
        ("int", " 7", None),
        ("int", "7_0", None),
        ("int", "٣", None),
        ("int", "99999999999", None),
        ("int", 7.0, 7),
        ("int", 7.5, None),
        ("double", "1e3", 1000.0),
        ("double", "nan", None),
        ("double", 3, 3.0),
        ("date", "2024-02-29", date(2024, 2, 29)),
        ("date", "2023-02-29", None),
        ("date", "2020-W05-5", None),
        ("boolean", "true", True),
        ("boolean", "yes", None),
        ("string", 7, None),
        ("timestamp", "2024-02-29", None),
    ],
)
def test_constants_of_definitions(kind: str, constant: Any, expected: Any) -> None:
    assert read_constant(FieldType(kind), constant) == expected


def test_values_of_all_types() -> None:
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    assert CHECKS[FieldType.TIMESTAMP](moment) == moment
    assert CHECKS[FieldType.TIMESTAMP](datetime(2024, 1, 1)) is None  # noqa: DTZ001
    assert CHECKS[FieldType.DATE](moment) is None
    assert CHECKS[FieldType.FLOAT](0.1) == 0.10000000149011612
    assert CHECKS[FieldType.FLOAT](float("inf")) == float("inf")
    assert CHECKS[FieldType.DOUBLE](2**53 + 1) is None
    assert CHECKS[FieldType.LONG](2**63) is None
    assert TEXTS[FieldType.TIMESTAMP](moment) == "1704067200000000"
