"""Both forms of every mask give the same, whatever the records hold."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from penstock.masks import (
    Chain,
    Field,
    FieldType,
    Hierarchy,
    Keys,
    Rejected,
    Supplies,
    read_masks,
)
from tests.support.scale import scaled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs("java")

ARROW: dict[FieldType, Any] = {
    FieldType.STRING: pa.string(),
    FieldType.INT: pa.int32(),
    FieldType.LONG: pa.int64(),
    FieldType.FLOAT: pa.float32(),
    FieldType.DOUBLE: pa.float64(),
    FieldType.BOOLEAN: pa.bool_(),
    FieldType.DATE: pa.date32(),
    FieldType.TIMESTAMP: pa.timestamp("us", "UTC"),
}
ASCII = st.text(st.characters(max_codepoint=127), max_size=24)
VALUES: dict[FieldType, st.SearchStrategy[Any]] = {
    FieldType.STRING: ASCII
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    | st.from_regex(r"\A[0-9]{2,14}(-[0-9]{2,6})?\Z")
    | st.sampled_from(["", "Berlin", "Paris", "Manager", "a@example.com", "\U0001f600\u0301x"]),
    FieldType.INT: st.integers(-(2**31), 2**31 - 1) | st.integers(-120, 120),
    FieldType.LONG: st.integers(-(2**63), 2**63 - 1) | st.integers(-120, 120),
    FieldType.FLOAT: st.floats(width=32) | st.integers(-1000, 1000).map(lambda n: to_float(n / 10)),
    FieldType.DOUBLE: st.floats() | st.integers(-(10**7), 10**7).map(lambda n: n / 100),
    FieldType.BOOLEAN: st.booleans(),
    FieldType.DATE: st.dates() | st.dates(date(1890, 1, 1), date(2030, 1, 1)),
    FieldType.TIMESTAMP: st.datetimes(timezones=st.just(UTC)),
}
# Values that every mask for their type takes; the others may be rejected.
TAKEN: dict[FieldType, list[Any]] = {
    FieldType.STRING: ["Berlin", "411111-111111"],
    FieldType.INT: [7, 12345678],
    FieldType.LONG: [7, 12345678],
    FieldType.FLOAT: [0.5],
    FieldType.DOUBLE: [0.3],
    FieldType.BOOLEAN: [True],
    FieldType.DATE: [date(1987, 6, 5)],
    FieldType.TIMESTAMP: [datetime(1987, 6, 5, 4, 3, 2, 1, tzinfo=UTC)],
}
TYPES = {
    "string": ("string",),
    "integer": ("int", "long"),
    "number": ("int", "long", "float", "double"),
    "decimal": ("float", "double"),
    "discrete": ("string", "int", "long", "boolean", "date"),
    "any": tuple(FieldType),
}
TREE = {
    "value": "world",
    "children": [
        {"value": "Germany", "children": [{"value": "Berlin"}, {"value": "Manager"}]},
        {"value": "Paris"},
    ],
}
NAMES = ["Ada", "Émile", "Zoë", "Ωmega", "x'\"`"]

# Each mask is laid over a field of its own for each of the types.
CASES: list[tuple[str, dict[str, Any]]] = [
    ("any", {"anonymizer": "suppression"}),
    ("any", {"anonymizer": "suppression", "as": "text"}),
    ("string", {"anonymizer": "blurring"}),
    ("string", {"anonymizer": "blurring", "n_fields": 4}),
    ("string", {"anonymizer": "blurring", "n_fields": 3, "from": "end"}),
    ("string", {"anonymizer": "blurring", "n_fields": 3, "from": "end", "keep_length": False}),
    ("integer", {"anonymizer": "blurring", "n_fields": 2, "keep_length": False}),
    ("string", {"anonymizer": "substitution", "substitution_list": NAMES}),
    ("integer", {"anonymizer": "substitution", "substitution_list": [1, -2, 3]}),
    ("decimal", {"anonymizer": "substitution", "substitution_list": [1.5, -2], "random": True}),
    ("string", {"anonymizer": "substitution", "substitution_list": NAMES, "random": True}),
    ("string", {"anonymizer": "substitution", "substitution_list": NAMES, "domain": "names"}),
    ("discrete", {"anonymizer": "substitution", "substitution_list": NAMES, "as": "text"}),
    ("discrete", {"anonymizer": "tokenization"}),
    ("string", {"anonymizer": "tokenization", "domain": "people"}),
    ("string", {"anonymizer": "tokenization", "method": "ff1", "keep": "-"}),
    ("integer", {"anonymizer": "tokenization", "method": "ff1"}),
    ("discrete", {"anonymizer": "tokenization", "method": "vault", "vault": "test"}),
    ("string", {"anonymizer": "generalization", "hierarchy": "places", "level": 1}),
    ("string", {"anonymizer": "generalization", "hierarchy": TREE, "level": 9, "default": "?"}),
    (
        "integer",
        {
            "anonymizer": "generalization",
            "generalization_map": {str(n): f"group {n // 10}" for n in range(-100, 100)},
        },
    ),
    (
        "discrete",
        {
            "anonymizer": "generalization",
            "generalization_map": {"1": "one", "-1": "minus one", "Be": "B", "2": "two", "É": "e"},
            "beginning": 2,
            "default": "?",
        },
    ),
    (
        "integer",
        {
            "anonymizer": "generalization",
            "generalization_map": {str(n): f"group {n}" for n in range(8)},
            "beginning": 1,
        },
    ),
    ("number", {"anonymizer": "bucketizing", "bucket_size": 10}),
    ("number", {"anonymizer": "bucketizing", "bucket_size": 7, "origin": -3}),
    ("decimal", {"anonymizer": "bucketizing", "bucket_size": 0.1}),
    ("decimal", {"anonymizer": "bucketizing", "bucket_size": 2.5, "origin": 0.25}),
    ("date", {"anonymizer": "bucketizing", "bucket_size": 7}),
    ("date", {"anonymizer": "bucketizing", "bucket_size": 5, "unit": "months"}),
    ("date", {"anonymizer": "bucketizing", "bucket_size": 9, "unit": "years"}),
    ("timestamp", {"anonymizer": "bucketizing", "bucket_size": 30, "origin": "2000-02-03"}),
    ("timestamp", {"anonymizer": "bucketizing", "bucket_size": 1, "unit": "months"}),
    ("number", {"anonymizer": "noise", "noise": 0.2}),
    ("number", {"anonymizer": "noise", "noise": 3, "mode": "additive"}),
    ("number", {"anonymizer": "noise", "noise": 0.5, "distribution": "laplace"}),
    ("number", {"anonymizer": "noise", "noise": 1e9, "mode": "additive"}),
    (
        "number",
        {"anonymizer": "noise", "noise": 9, "mode": "additive", "distribution": "uniform"},
    ),
    (
        "integer",
        {
            "anonymizer": "conditional_substitution",
            "condition_map": {"match_range": [0, 18.5]},
            "substitution_list": ["minor"],
            "as": "text",
        },
    ),
    (
        "number",
        {
            "anonymizer": "conditional_substitution",
            "condition_map": {"match_range": [None, 20]},
            "substitution_list": [0],
        },
    ),
    (
        "string",
        {
            "anonymizer": "conditional_substitution",
            "condition_map": {"match_regex": r"@example\.com|^\d{3}"},
            "substitution_list": NAMES,
        },
    ),
    (
        "string",
        {
            "anonymizer": "conditional_substitution",
            "condition_map": {"match_value": ["Manager", "Paris"]},
            "substitution_list": ["*"],
        },
    ),
    (
        "date",
        {
            "anonymizer": "conditional_substitution",
            "condition_map": {"match_range": ["1950-01-01", "2000-12-31"]},
            "substitution_list": ["long ago"],
            "as": "text",
        },
    ),
]


class FolderVault:
    """A vault that worker processes can share: one file for each token."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, vault: str, entries: Mapping[str, bytes]) -> None:
        for token, sealed in entries.items():
            (self.folder / f"{vault}-{token}").write_bytes(sealed)

    def get(self, vault: str, token: str) -> bytes | None:
        path = self.folder / f"{vault}-{token}"
        return path.read_bytes() if path.exists() else None


def to_float(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


@dataclass
class Laid:
    """A chain of all cases, and the type of each of its fields."""

    chain: Chain
    kinds: dict[str, FieldType]


def lay_cases(cases: Sequence[tuple[str, dict[str, Any]]], folder: Path) -> Laid:
    items, kinds = [], {}
    for index, (group, case) in enumerate(cases):
        names = {f"{kind} {index}.`x`": kind for kind in TYPES.get(group, (group,))}
        kinds.update({name: FieldType(kind) for name, kind in names.items()})
        items.append({**case, "keys": list(names)})
    places = {"places": Hierarchy.model_validate(TREE)}
    schema = {name: Field(kind, optional=True) for name, kind in kinds.items()}
    supplies = Supplies(Keys(b"k" * 32, "view"), places, FolderVault(folder))
    return Laid(Chain(read_masks(items), schema, supplies), kinds)


def mask_in_spark(
    spark: SparkSession, chain: Chain, records: list[dict[str, Any]], identities: list[str | None]
) -> list[dict[str, Any] | Rejected]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    from penstock.masks.spark import mask_frame  # noqa: PLC0415

    arrays = {
        name: pa.array([record.get(name) for record in records], ARROW[found.type])
        for name, found in chain.schema.items()
    }
    arrays["record identity"] = pa.array(identities, pa.string())
    arrays["record number"] = pa.array(range(len(records)), pa.int64())
    frame = spark.createDataFrame(pa.table(arrays))
    masked = mask_frame(
        frame, chain, identity=F.col("record identity"), carry=["record number"], rejection="why"
    )
    rows = sorted(masked.toArrow().to_pylist(), key=lambda row: row["record number"])
    outcomes: list[dict[str, Any] | Rejected] = []
    for row in rows:
        row.pop("record number")
        why = row.pop("why")
        if why is not None:
            assert set(row.values()) == {None}, "a rejected record shows nothing"
        outcomes.append(Rejected(why) if why is not None else row)
    return outcomes


def as_bits(value: Any) -> Any:
    """Return a value in a form that tells -0.0 from 0.0 and takes NaN for equal to itself."""
    if isinstance(value, float):
        return ("nan",) if value != value else struct.pack("<d", value)  # noqa: PLR0124
    return (type(value), value)


def assert_same(
    chain: Chain,
    records: list[dict[str, Any]],
    identities: list[str | None],
    outcomes: list[dict[str, Any] | Rejected],
) -> None:
    assert len(outcomes) == len(records)
    for record, identity, outcome in zip(records, identities, outcomes, strict=True):
        expected = chain.apply(record, identity)
        if isinstance(expected, Rejected) or isinstance(outcome, Rejected):
            assert outcome == expected, record
            continue
        for name, value in expected.items():
            assert as_bits(outcome[name]) == as_bits(value), (name, record, identity)


# A plan with all cases at once would take Spark a minute: its cost grows with the square.
GROUPS = [CASES[at : at + 10] for at in range(0, len(CASES), 10)]


@pytest.mark.parametrize("group", range(len(GROUPS)))
@settings(max_examples=scaled(2), phases=[Phase.generate])  # each example is a query: no shrinking
@given(
    values=st.fixed_dictionaries(
        {kind: st.lists(made, min_size=40, max_size=40) for kind, made in VALUES.items()}
    ),
    identities=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=5, max_size=5),
)
def test_every_mask_gives_the_same_in_python_and_spark(
    spark: SparkSession,
    tmp_path: Path,
    group: int,
    values: dict[FieldType, list[Any]],
    identities: list[str],
) -> None:
    laid = lay_cases(GROUPS[group], tmp_path)
    # Each record holds one value, so that a rejection says something about one mask.
    records = [
        {name: value}
        for name, kind in laid.kinds.items()
        for value in [*values[kind], *TAKEN[kind], None]
    ]
    named: list[str | None] = [
        None if index % 17 == 16 else f"{identities[index % 5]}/{index}"
        for index in range(len(records))
    ]
    outcomes = mask_in_spark(spark, laid.chain, records, named)
    assert_same(laid.chain, records, named, outcomes)
    taken = {
        name
        for record, outcome in zip(records, outcomes, strict=True)
        for name, value in record.items()
        if value is not None and not isinstance(outcome, Rejected)
    }
    assert taken == set(laid.kinds)


@settings(max_examples=scaled(2), phases=[Phase.generate])
@given(
    records=st.lists(
        st.fixed_dictionaries(
            {
                "pid": st.none() | VALUES[FieldType.INT],
                "Name": st.none() | VALUES[FieldType.STRING],
                "ins. no.": VALUES[FieldType.STRING],
                "age": st.integers(-5, 130),
                "hba1c": st.none() | VALUES[FieldType.FLOAT],
                "born": st.none() | VALUES[FieldType.DATE],
            }
        ),
        min_size=150,
        max_size=150,
    )
)
def test_chains_give_the_same_in_python_and_spark(
    spark: SparkSession, tmp_path: Path, records: list[dict[str, Any]]
) -> None:
    schema = {
        "pid": Field.of("int"),
        "Name": Field.of("string", optional=True),
        "ins. no.": Field.of("string"),
        "age": Field.of("int"),
        "hba1c": Field.of("float", optional=True),
        "born": Field.of("date", optional=True),
    }
    young = {
        "anonymizer": "conditional_substitution",
        "keys": ["Name", "ins. no."],
        "expression": 'r.age < 18 || r["ins. no."].matches("^[0-9]+$") || r.hba1c > 9.5',
        "substitution_list": ["hidden", "concealed"],
    }
    masks: list[dict[str, Any]] = [
        young,
        {"anonymizer": "blurring", "keys": ["ins. no."], "n_fields": 3},
        {"anonymizer": "noise", "keys": ["age"], "noise": 2, "mode": "additive"},
        {"anonymizer": "noise", "keys": ["age", "hba1c"], "noise": 0.1, "seed": 7},
        {"anonymizer": "bucketizing", "keys": ["age"], "bucket_size": 10},
        {"anonymizer": "tokenization", "keys": ["pid"], "method": "ff1"},
        {"anonymizer": "tokenization", "keys": ["pid"]},
        {"anonymizer": "bucketizing", "keys": ["born"], "bucket_size": 10, "unit": "years"},
        {
            "anonymizer": "generalization",
            "keys": ["born"],
            "generalization_map": {"[1990-01-01 - 2000-01-01]": "nineties"},
            "default": "other",
        },
        {"anonymizer": "suppression", "keys": ["hba1c"]},
    ]
    chain = Chain(read_masks(masks), schema, Supplies(Keys(b"k" * 32, "view")))
    named: list[str | None] = [f"stream/0/{offset}" for offset in range(len(records))]
    outcomes = mask_in_spark(spark, chain, records, named)
    assert_same(chain, records, named, outcomes)
