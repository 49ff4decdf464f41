from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from penstock.config.settings import BYTES, SECONDS, parse_duration, parse_size

MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@given(st.integers(0, 10**9), st.sampled_from(sorted(SECONDS)), st.sampled_from(["", " "]))
def test_durations_are_the_number_times_the_unit(number: int, unit: str, space: str) -> None:
    exact = Fraction(number * MILLISECONDS[unit], 1000)
    assert parse_duration(f"{number}{space}{unit}") == pytest.approx(float(exact), rel=1e-12)


@given(st.integers(0, 10**9), st.sampled_from(sorted(BYTES)))
def test_sizes_are_the_number_times_the_unit(number: int, unit: str) -> None:
    power = ["B", "KiB", "MiB", "GiB", "TiB"].index(unit)
    assert parse_size(f"{number}{unit}") == number * 1024**power


def test_a_plain_number_is_seconds_or_bytes() -> None:
    assert parse_duration(5) == parse_duration("5") == parse_duration(5.0) == 5.0
    assert parse_duration("1.5s") == 1.5
    assert parse_size(512) == parse_size("512") == 512


@pytest.mark.parametrize(
    "value",
    ["", "s", "5 parsecs", "-5s", "5s5s", "1e3s", "٣s", -1, True, None, [], "9" * 13, "5S"],
)
def test_what_is_no_duration_is_refused_with_an_example(value: Any) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        parse_duration(value)
    assert caught.value.context is not None
    assert "5s" in caught.value.context["fix"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.5])
def test_no_duration_is_endless(value: float) -> None:
    with pytest.raises(PydanticCustomError):
        parse_duration(value)


@pytest.mark.parametrize("value", ["", "KiB", "1.5MiB", "64kb", -1, True, None, 1.0, {}])
def test_what_is_no_size_is_refused_with_an_example(value: Any) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        parse_size(value)
    assert caught.value.context is not None
    assert "64KiB" in caught.value.context["fix"]
