from __future__ import annotations

import re
from collections import Counter

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from penstock_lab.generate.hospital import AGE, BLOCK, GLUCOSE, SCHEMA, ZIP, generate
from penstock_lab.generate.words import INSURERS


def _table(rows: int, seed: int = 0, first: int = 0) -> pa.Table:
    return pa.Table.from_batches(generate(rows, seed, first=first), schema=SCHEMA)


@pytest.fixture(scope="module")
def patients() -> pa.Table:
    return _table(100_000, seed=7)


def test_a_row_is_the_same_however_many_are_asked_for(patients: pa.Table) -> None:
    assert _table(10, seed=7).equals(patients.slice(0, 10).combine_chunks())
    around = BLOCK - 3
    assert (
        _table(6, seed=7, first=around)
        .combine_chunks()
        .equals(patients.slice(around, 6).combine_chunks())
    )
    assert not _table(10, seed=8).equals(_table(10, seed=7))
    assert _table(0).num_rows == 0


def test_persons_are_numbered(patients: pa.Table) -> None:
    assert patients["pid"].to_pylist() == list(range(1, 100_001))


def test_shares_are_those_of_the_ward(patients: pa.Table) -> None:
    genders = Counter(patients["gender"].to_pylist())
    assert genders["Male"] / 100_000 == pytest.approx(0.49, abs=0.01)
    assert genders["Diverse"] / 100_000 == pytest.approx(0.02, abs=0.005)
    diagnoses = Counter(patients["diagnosis"].to_pylist())
    assert diagnoses["E10"] / 100_000 == pytest.approx(0.09, abs=0.01)
    assert diagnoses["E13"] / 100_000 == pytest.approx(0.02, abs=0.005)
    companies = Counter(patients["insurance_company"].to_pylist())
    assert companies.most_common(1)[0][0] == 101575519
    assert set(companies) == {ik for ik, _ in INSURERS}


def test_medication_follows_the_diagnosis(patients: pa.Table) -> None:
    pairs = set(
        zip(patients["diagnosis"].to_pylist(), patients["medication"].to_pylist(), strict=True)
    )
    assert pairs == {
        ("E10", "Insulin"),
        ("E11", "Metformin"),
        ("E13", "Insulin"),
        ("E13", "Metformin"),
    }


def test_values_have_their_forms_and_ranges(patients: pa.Table) -> None:
    for column, (least, most) in {"age": AGE, "glucose": GLUCOSE, "zip": ZIP}.items():
        values = patients[column].to_pylist()
        assert least <= min(values) <= least + 5
        assert most - 5 <= max(values) <= most
    for row in patients.slice(0, 1000).to_pylist():
        assert re.fullmatch(r"[A-Z][0-9]{9}", row["insurance_number"])
        assert re.fullmatch(r"0[0-9]{3,4} [0-9]{5,7}", row["phone"])
        assert re.fullmatch(r"\S+ \S+", row["name"])
        assert re.fullmatch(r"[A-ZÄÖÜ][a-zäöüß]+\.? [0-9]{1,3}", row["address"])
        assert row["hba1c"] == round(row["hba1c"], 2)
