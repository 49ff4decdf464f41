"""Requirements files as published: imported by command, and their views run on Spark."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.config import load
from penstock.eventlog import EventLog
from penstock.pipeline.sinks.published import read_published
from tests.support.pipeline.imported_views import import_file, run_to_the_end
from tests.support.pipeline.requirements_files import FILES, REGIONS, K, make_patients

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.needs("java"), pytest.mark.timeout(900)]

PATIENTS = 600
QUASI = ("zip", "age", "height", "weight", "gender", "insurance_company")
Rows = list[dict[str, Any]]


def _run(spark: SparkSession, folder: Path, name: str) -> tuple[Rows, dict[str, Rows]]:
    """Return the patients, and what each view published of them."""
    said = import_file(folder, FILES[name], "--log", "files")
    views = [key.removeprefix("view/") for key in said["created"] if key.startswith("view/")]
    patients = list(make_patients(PATIENTS))
    log = EventLog(load(folder / "penstock.yaml", {}).pipeline.event_log)
    for start in range(0, PATIENTS, 150):
        some = patients[start : start + 150]
        log.topic("no-filter").append([json.dumps(it).encode() for it in some])
    control = run_to_the_end(spark, folder)
    published = {view: list(read_published(control.view(view))) for view in views}
    for view in views:
        last = control.view(view).last()
        assert last is not None
        assert (last.totals.read, last.held) == (PATIENTS, 0), view
        assert last.totals.published + last.totals.rejected == PATIENTS, view
        assert last.totals.published == len(published[view]), view
    return patients, published


def test_windows_of_every_length_run(spark: SparkSession, tmp_path: Path) -> None:
    # The third file has a choice of these views, so that it runs with them.
    fewer, more = (json.loads(FILES[it])["streamProperties"] for it in ("default", "windows"))
    assert all(view in more for view in fewer)
    patients, published = _run(spark, tmp_path, "windows")
    for view, rows in published.items():
        ids = sorted(row["id"] for row in rows)
        assert ids == [it["id"] for it in patients], view
        if view != "baseline":
            ages = {row["age"] for row in rows}
            # What was appended at once arrived at once: an average of many.
            assert len(ages) <= PATIENTS // 150, view
            assert all(isinstance(age, float) for age in ages)


def test_every_anonymizer_runs(spark: SparkSession, tmp_path: Path) -> None:
    patients, published = _run(spark, tmp_path, "all")
    known = {it["id"]: it for it in patients}

    def pairs(view: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        assert len(published[view]) == PATIENTS, view
        return [(row, known[row["id"]]) for row in published[view]]

    for row, patient in pairs("basic_tuple"):
        assert row["gender"] == "X" * min(7, len(patient["gender"])) + patient["gender"][7:]
        assert row["diagnosis"] == "*"
    assert any(row["glucose"] != patient["glucose"] for row, patient in pairs("basic_tuple"))
    for row, patient in pairs("generalization_buckets"):
        low = patient["age"] // 10 * 10
        assert row["age"] == f"[{low} - {low + 10}]"
    for row, patient in pairs("generalization"):
        assert row["zip"] == REGIONS[str(patient["zip"])[0]]
    for row, patient in pairs("conditional_range"):
        young = 18 <= patient["age"] <= 35
        assert row["age"] == ("young adult" if young else str(patient["age"]))
    assert {row["age"] for row in published["conditional_range"]} > {"young adult"}
    for row, patient in pairs("conditional_regex"):
        area, line = patient["phone"].split()
        hidden = (len(area), len(line)) == (5, 6)
        assert row["phone"] == ("XXXX - XXXXXXXX" if hidden else patient["phone"])
    for row, patient in pairs("conditional_match"):
        named = patient["name"] == "Henri Albrecht"
        assert row["name"] == ("Peter Müller" if named else patient["name"])
    names = Counter(it["name"] for it in patients)
    assert Counter(row["name"] for row in published["shuffling"]) == names
    assert any(row["name"] != patient["name"] for row, patient in pairs("shuffling"))
    means = Counter(row["glucose"] for row in published["univariate_microaggregation"])
    assert min(means.values()) >= 20
    grouped = published["k_anonymization"]
    assert len(grouped) == PATIENTS
    groups = Counter(tuple(row[name] for name in QUASI) for row in grouped)
    assert min(groups.values()) >= K
    assert {row["name"] for row in grouped} == {"*"}
    assert {row["id"] for row in grouped} == {None}
