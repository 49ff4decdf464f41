"""Masks against plain references."""

from __future__ import annotations

import json
import math
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.masks import Chain, Field, Keys, Rejected, Supplies, read_masks
from penstock.masks.fields import FieldType
from penstock.masks.tokenization import NumberFormat, TextFormat

KEYS = Supplies(Keys(bytes(32), "view"))
SIZES = st.integers(1, 10**6) | st.integers(1, 10**6).map(lambda n: n / 1000)


def label(kind: str, value: Any, **more: Any) -> Any:
    spec = {"anonymizer": "bucketizing", "keys": ["x"], **more}
    outcome = Chain(read_masks([spec]), {"x": Field.of(kind)}, KEYS).apply({"x": value})
    return outcome if isinstance(outcome, Rejected) else outcome["x"]


def read_bounds(text: str) -> tuple[Decimal, Decimal]:
    low, high = text.strip("[]").split(" - ")
    return Decimal(low), Decimal(high)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 10**12), st.integers(-(10**12), 10**12))
def test_buckets_of_whole_numbers(value: int, size: int, origin: int) -> None:
    made = label("long", value, bucket_size=size, origin=origin)
    low = origin + (value - origin) // size * size
    if low < -(2**63) or low + size > 2**63 - 1:
        assert isinstance(made, Rejected)
    else:
        assert made == f"[{low} - {low + size}]"


@given(st.floats(), SIZES, st.integers(-1000, 1000).map(lambda n: n / 8))
def test_buckets_of_decimals(value: float, size: float, origin: float) -> None:
    made = label("double", value, bucket_size=size, origin=origin)
    if isinstance(made, Rejected):
        assert not abs(value) < 2**53 / 10**6
        return
    low, high = read_bounds(made)
    assert high - low == Decimal(repr(size))
    assert (low - Decimal(repr(origin))) % Decimal(repr(size)) == 0
    # The bounds are the numbers that stand there, and the range is half-open.
    assert float(low) <= value < float(high)


@given(st.integers(-(10**9), 10**9), st.integers(0, 6))
def test_a_decimal_that_is_a_bound_begins_its_bucket(units: int, places: int) -> None:
    value = float(Decimal(units).scaleb(-places))
    size = 1 if places == 0 else float(Decimal(1).scaleb(-places))
    low, _ = read_bounds(label("double", value, bucket_size=size))
    assert low == Decimal(units).scaleb(-places)


@given(st.dates(), st.integers(1, 4000), st.dates(date(1800, 1, 1), date(2200, 1, 1)))
def test_buckets_of_days(day: date, size: int, origin: date) -> None:
    made = label("date", day, bucket_size=size, origin=origin.isoformat())
    try:
        low = origin + timedelta(days=(day - origin).days // size * size)
        expected = f"[{low} - {low + timedelta(days=size)}]"
    except OverflowError:
        assert isinstance(made, Rejected)
    else:
        assert made == expected


@given(st.binary(min_size=32, max_size=32), st.text("0123456789abc-", min_size=6, max_size=40))
def test_tokens_of_texts_are_one_to_one(key: bytes, text: str) -> None:
    format_ = TextFormat(key, "0123456789abc", "-")
    token = format_.encrypt(text)
    if token is None:
        assert len(text.replace("-", "")) < 6
    else:
        assert format_.decrypt(token) == text
        assert [c == "-" for c in token] == [c == "-" for c in text]


@given(st.binary(min_size=32, max_size=32), st.integers(-(2**63), 2**63 - 1))
def test_tokens_of_numbers_are_one_to_one(key: bytes, number: int) -> None:
    format_ = NumberFormat(key, FieldType.LONG)
    token = format_.encrypt(number)
    if token is None:
        assert abs(number) < 10**5
    else:
        assert format_.decrypt(token) == number
        assert len(str(token)) == len(str(number))


def _random_json() -> st.SearchStrategy[Any]:
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=8,
    )


@given(st.fixed_dictionaries({}, optional={name: _random_json() for name in ("text", "n", "d")}))
def test_nothing_raw_of_a_masked_field_passes_whatever_the_record_holds(
    record: dict[str, Any],
) -> None:
    schema = {
        "text": Field.of("string", optional=True),
        "n": Field.of("long", optional=True),
        "d": Field.of("double", optional=True),
    }
    masks = [
        {"anonymizer": "tokenization", "keys": ["text"]},
        {"anonymizer": "bucketizing", "keys": ["n"], "bucket_size": 1000},
        {"anonymizer": "suppression", "keys": ["d"]},
    ]
    outcome = Chain(read_masks(masks), schema, KEYS).apply(record)
    if isinstance(outcome, Rejected):
        shown = json.dumps(outcome.reason)
        assert (
            not isinstance(record.get("text"), str)
            or record["text"] not in shown
            or (len(record["text"]) < 8)
        )
        return
    assert set(outcome) == set(schema)
    text, n = record.get("text"), record.get("n")
    assert outcome["text"] is None if text is None else len(outcome["text"]) == 32
    assert outcome["n"] is None if n is None else outcome["n"].startswith("[")
    assert outcome["d"] is None


@given(st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=20))
def test_noise_is_the_same_on_replay_and_finite(value: float, identity: str) -> None:
    spec = {"anonymizer": "noise", "keys": ["x"], "noise": 0.3, "distribution": "laplace"}
    chain = Chain(read_masks([spec]), {"x": Field.of("double")}, KEYS)
    outcome = chain.apply({"x": value}, identity)
    assert outcome == chain.apply({"x": value}, identity)
    if not isinstance(outcome, Rejected):
        assert math.isfinite(outcome["x"])
