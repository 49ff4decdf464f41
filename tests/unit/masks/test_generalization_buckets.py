from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from penstock.errors import InvalidError
from penstock.masks import Rejected, read_masks
from tests.support.masks.single_mask import chain_of, mask_one, problems_of


def buckets(size: float, **more: Any) -> dict[str, Any]:
    return {"anonymizer": "bucketizing", "bucket_size": size, **more}


@pytest.mark.parametrize(
    ("kind", "size", "value", "label"),
    [
        ("int", 10, 27, "[20 - 30]"),
        ("int", 10, 30, "[30 - 40]"),
        ("int", 10, 29, "[20 - 30]"),
        ("int", 10, 0, "[0 - 10]"),
        ("int", 10, -1, "[-10 - 0]"),
        ("int", 10, -10, "[-10 - 0]"),
        ("int", 10, -11, "[-20 - -10]"),
        ("int", 10, 2**31 - 1, "[2147483640 - 2147483650]"),
        ("long", 10, 2**62, "[4611686018427387900 - 4611686018427387910]"),
        ("double", 10, 29.999999999999996, "[20 - 30]"),
        ("double", 10, 30.0, "[30 - 40]"),
        ("double", 0.1, 0.3, "[0.3 - 0.4]"),
        ("double", 0.1, 0.29, "[0.2 - 0.3]"),
        ("double", 0.01, 0.29, "[0.29 - 0.30]"),
        ("double", 0.1, -0.05, "[-0.1 - 0.0]"),
        ("double", 2.5, 5, "[5.0 - 7.5]"),
        ("double", 10, -0.0, "[0 - 10]"),
        ("double", 10, 5e-324, "[0 - 10]"),
        ("double", 10, -5e-324, "[-10 - 0]"),
        ("float", 0.1, 0.7, "[0.7 - 0.8]"),
        ("float", 0.1, 0.3, "[0.3 - 0.4]"),
    ],
)
def test_numbers(kind: str, size: float, value: float, label: str) -> None:
    assert mask_one(kind, buckets(size), value) == label


def test_origin() -> None:
    assert mask_one("int", buckets(10, origin=5), 27) == "[25 - 35]"
    assert mask_one("int", buckets(10, origin=5), -6) == "[-15 - -5]"
    assert mask_one("double", buckets(1, origin=0.25), 1.2) == "[0.25 - 1.25]"


@pytest.mark.parametrize(
    ("more", "day", "label"),
    [
        ({"size": 7}, date(2024, 2, 29), "[2024-02-26 - 2024-03-04]"),
        ({"size": 1, "unit": "months"}, date(2024, 2, 29), "[2024-02-01 - 2024-03-01]"),
        ({"size": 3, "unit": "months"}, date(1899, 12, 31), "[1899-10-01 - 1900-01-01]"),
        ({"size": 10, "unit": "years"}, date(1987, 5, 5), "[1980-01-01 - 1990-01-01]"),
        (
            {"size": 1, "unit": "years", "origin": "2000-04-01"},
            date(2024, 3, 31),
            "[2023-04-01 - 2024-04-01]",
        ),
        ({"size": 30, "origin": "2024-01-01"}, date(2024, 1, 30), "[2024-01-01 - 2024-01-31]"),
    ],
)
def test_dates(more: dict[str, Any], day: date, label: str) -> None:
    assert mask_one("date", buckets(**more), day) == label


def test_timestamps_fall_into_the_ranges_of_their_day_in_utc() -> None:
    late = datetime(2024, 2, 29, 23, 30, tzinfo=timezone(timedelta(hours=-2)))
    assert mask_one("timestamp", buckets(1), late) == "[2024-03-01 - 2024-03-02]"
    assert mask_one("timestamp", buckets(1), datetime(1969, 12, 31, 23, tzinfo=UTC)) == (
        "[1969-12-31 - 1970-01-01]"
    )


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("double", float("nan")),
        ("double", float("inf")),
        ("double", -1e300),
        ("long", 2**63 - 1),
        ("long", -(2**63)),
        ("date", date(9999, 12, 31)),
        ("date", date(1, 1, 1)),
    ],
)
def test_what_has_no_bucket_is_rejected(kind: str, value: Any) -> None:
    outcome = mask_one(kind, buckets(1000), value)
    assert outcome == Rejected(
        "bucketizing of 'x': the value is not finite, or too far out for a bucket"
    )


def test_output_is_text_and_null_stays_null() -> None:
    chain = chain_of("int", buckets(10))
    assert (chain.output["x"].type, chain.output["x"].optional) == ("string", True)
    assert chain.apply({"x": None}) == {"x": None}


@pytest.mark.parametrize("size", [0, -1, float("nan"), float("inf"), "10", True, 0.0000001, 1e13])
def test_wrong_sizes(size: Any) -> None:
    with pytest.raises(InvalidError) as caught:
        read_masks([{"keys": ["x"], **buckets(size)}])
    (problem,) = caught.value.problems
    assert problem.place == "anonymizers[0].bucket_size"


@pytest.mark.parametrize(
    ("spec", "fields", "problem"),
    [
        (buckets(2.5), {"x": "int"}, "anonymizers[0].bucket_size: 'x' is int and needs a whole"),
        (buckets(1, origin=0.5), {"x": "int"}, "anonymizers[0].origin: 'x' is int and needs a"),
        (buckets(1, origin="2000-01-01"), {"x": "int"}, "anonymizers[0].origin: '2000-01-01' does"),
        (buckets(1, origin=1), {"x": "date"}, "anonymizers[0].origin: '1' does not fit 'x', whi"),
        (buckets(1, unit="years"), {"x": "long"}, "anonymizers[0].unit: 'x' is long and has no"),
        (buckets(1), {"x": "string"}, "anonymizers[0].keys[0]: bucketizing does not take 'x', wh"),
    ],
)
def test_what_does_not_fit_the_field(
    spec: dict[str, Any], fields: dict[str, str], problem: str
) -> None:
    (found,) = problems_of({"keys": ["x"], **spec}, **fields)
    assert found.startswith(problem)


@pytest.mark.parametrize("origin", ["2000-01-15", "2000", True, [1], "2000-13-01"])
def test_wrong_origins(origin: Any) -> None:
    with pytest.raises(InvalidError):
        read_masks([{"keys": ["x"], **buckets(1, origin=origin, unit="months")}])
