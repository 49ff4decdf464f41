"""Patients of a German hospital's diabetes ward: made up, yet distributed like real ones.

Rules that hold here:
- Row number n of a seed is always the same, however many rows are asked for: rows are made
  in blocks, and each block draws from a generator of its own.
- Memory is bounded by one block. Nothing is drawn row by row.
- Genders are 49 % male, 49 % female, 2 % diverse; type 1 is 9 % (E10), type 2 is 89 % (E11),
  type 1.5 is 2 % (E13); insurers are drawn by their members; measurements are uniform within
  their ranges; the medication follows the diagnosis.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock_lab.generate.words import (
    FEMALE_NAMES,
    INSURERS,
    LAST_NAMES,
    MALE_NAMES,
    STREET_ENDS,
    STREET_STEMS,
)

BLOCK: Final = 1 << 16

GENDERS: Final = ("Male", "Female", "Diverse")
GENDER_SHARES: Final = (0.49, 0.49, 0.02)
DIAGNOSES: Final = ("E10", "E11", "E13")
DIAGNOSIS_SHARES: Final = (0.09, 0.89, 0.02)
MEDICATIONS: Final = ("Insulin", "Metformin")

# The least and the greatest of each measurement, both included.
HEIGHT: Final = (150, 200)
WEIGHT: Final = (45, 120)
AGE: Final = (10, 99)
ZIP: Final = (1001, 99998)
GLUCOSE: Final = (60, 460)
HBA1C_HUNDREDTHS: Final = (500, 1250)

SCHEMA: Final = pa.schema(
    [
        ("pid", pa.int32()),
        ("name", pa.string()),
        ("address", pa.string()),
        ("zip", pa.int32()),
        ("phone", pa.string()),
        ("gender", pa.string()),
        ("height", pa.int32()),
        ("weight", pa.int32()),
        ("age", pa.int32()),
        ("insurance_company", pa.int32()),
        ("insurance_number", pa.string()),
        ("diagnosis", pa.string()),
        ("glucose", pa.int32()),
        ("hba1c", pa.float64()),
        ("medication", pa.string()),
    ]
)

Generator = np.random.Generator
Integers = npt.NDArray[np.int64]


def generate(rows: int, seed: int = 0, *, first: int = 0) -> Iterator[pa.RecordBatch]:
    """Yield so many rows, beginning with row number `first`, in blocks."""
    place, end = first, first + rows
    while place < end:
        number, start = divmod(place, BLOCK)
        count = min(BLOCK - start, end - place)
        yield _make_block(number, seed).slice(start, count)
        place += count


def _make_block(number: int, seed: int) -> pa.RecordBatch:
    draw = np.random.default_rng([seed, number])
    gender = draw.choice(len(GENDERS), BLOCK, p=GENDER_SHARES)
    diagnosis = draw.choice(len(DIAGNOSES), BLOCK, p=DIAGNOSIS_SHARES)
    shares = np.array([members for _, members in INSURERS])
    company = draw.choice(len(INSURERS), BLOCK, p=shares / shares.sum())
    # Type 1 needs insulin, type 2 takes metformin, type 1.5 is treated with either.
    medication = np.where(
        diagnosis == DIAGNOSES.index("E13"), draw.integers(0, 2, BLOCK), diagnosis
    )
    first_pid = number * BLOCK + 1
    columns: dict[str, Any] = {
        "pid": np.arange(first_pid, first_pid + BLOCK, dtype=np.int64).astype(np.int32),
        "name": _make_names(draw, gender),
        "address": _make_addresses(draw),
        "zip": _draw_range(draw, ZIP),
        "phone": _make_phones(draw),
        "gender": _pick(GENDERS, gender),
        "height": _draw_range(draw, HEIGHT),
        "weight": _draw_range(draw, WEIGHT),
        "age": _draw_range(draw, AGE),
        "insurance_company": np.array([ik for ik, _ in INSURERS], dtype=np.int32)[company],
        "insurance_number": _make_insurance_numbers(draw),
        "diagnosis": _pick(DIAGNOSES, diagnosis),
        "glucose": _draw_range(draw, GLUCOSE),
        "hba1c": _draw_range(draw, HBA1C_HUNDREDTHS) / 100,
        "medication": _pick(MEDICATIONS, medication),
    }
    arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
    return pa.record_batch(arrays, schema=SCHEMA)


def _draw_range(draw: Generator, bounds: tuple[int, int]) -> Integers:
    return draw.integers(bounds[0], bounds[1], BLOCK, endpoint=True)


def _pick(words: tuple[str, ...], places: Integers) -> pa.StringArray:
    return pa.array(words).take(pa.array(places))


def _draw_words(draw: Generator, words: tuple[str, ...]) -> pa.StringArray:
    return _pick(words, draw.integers(0, len(words), BLOCK))


def _join(*parts: Any, separator: str = "") -> pa.StringArray:
    return pc.binary_join_element_wise(*parts, separator)


def _write(numbers: Integers, digits: int = 0) -> pa.StringArray:
    text = pc.cast(pa.array(numbers), pa.string())
    return pc.utf8_lpad(text, width=digits, padding="0") if digits else text


def _make_names(draw: Generator, gender: Integers) -> pa.StringArray:
    # Diverse patients carry a name of either list.
    male = np.where(gender == GENDERS.index("Diverse"), draw.integers(0, 2, BLOCK), gender) == 0
    firsts = np.where(
        male,
        draw.integers(0, len(MALE_NAMES), BLOCK),
        draw.integers(0, len(FEMALE_NAMES), BLOCK) + len(MALE_NAMES),
    )
    return _join(
        _pick(MALE_NAMES + FEMALE_NAMES, firsts), _draw_words(draw, LAST_NAMES), separator=" "
    )


def _make_addresses(draw: Generator) -> pa.StringArray:
    street = _join(_draw_words(draw, STREET_STEMS), _draw_words(draw, STREET_ENDS))
    return _join(street, _write(draw.integers(1, 200, BLOCK)), separator=" ")


def _make_phones(draw: Generator) -> pa.StringArray:
    area = _write(draw.integers(200, 10_000, BLOCK))
    line = _write(draw.integers(10_000, 10_000_000, BLOCK))
    return _join("0", area, " ", line)


def _make_insurance_numbers(draw: Generator) -> pa.StringArray:
    letters = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    return _join(_draw_words(draw, letters), _write(draw.integers(0, 10**9, BLOCK), 9))
