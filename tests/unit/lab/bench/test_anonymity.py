"""The benchmark itself: it reads what it should, and its judge can say no."""

from pathlib import Path

import numpy as np
import pytest

from penstock.errors import UnavailableError
from penstock.masks.anonymity import Boxes, NumberDomain, Release, StreamParameters
from penstock_lab.bench.anonymity import (
    FIELDS,
    judge,
    make_parameters,
    make_records,
    measure_adult,
    measure_stream,
    read_adult,
)


def write_adult(path: Path, count: int) -> None:
    records = make_records(np.random.default_rng(1), count).T
    lines = [",".join(("workclass", *FIELDS))]
    lines += [",".join((" Private", *map(str, record))) for record in records.tolist()]
    lines.insert(3, lines[3].replace(" Private", " ?"))
    path.write_text("\n".join(lines))


def test_records_with_unknown_values_are_left_out(tmp_path: Path) -> None:
    write_adult(tmp_path / "adult.csv", 20)
    codes = read_adult(tmp_path / "adult.csv")
    assert codes.shape == (6, 20)
    assert np.array_equal(codes, make_records(np.random.default_rng(1), 20))


def test_a_file_that_is_not_adult_is_named(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("age\n17\n")
    for name in ("other.csv", "missing.csv"):
        with pytest.raises(UnavailableError, match=name):
            read_adult(tmp_path / name)


def test_every_point_is_measured_and_judged(tmp_path: Path) -> None:
    write_adult(tmp_path / "adult.csv", 2_000)
    results = measure_adult(tmp_path / "adult.csv", quick=True)
    assert len(results["points"]) == 12
    assert results["all_k_hold"]
    assert all(0 < point["loss"] < 1 for point in results["points"])


def test_the_judge_finds_a_group_that_is_too_small() -> None:
    parameters = StreamParameters([NumberDomain(field, 0, 9) for field in FIELDS], k=3, delta=5)
    lows = np.tile([0.0, 5.0], (6, 1))
    release = Release(
        np.arange(5),
        np.array([0, 0, 0, 1, 1]),
        np.zeros(5, dtype=np.bool_),
        Boxes(lows, lows + 1, np.zeros(2)),
    )
    assert judge(parameters, release, use_pycanon=False)["judged_k"] == 2
    assert judge(parameters, release, use_pycanon=True)["judged_k"] == 2


@pytest.mark.parametrize("rule", [None, "diversity", "closeness"])
def test_streams_are_measured_with_every_rule(rule: str | None) -> None:
    figures = measure_stream(10_000, rule=rule)
    assert figures["state_bytes"] < 1_000_000
    assert 0 < figures["loss"] < 0.5
    assert make_parameters(rule).demands.k == 100
