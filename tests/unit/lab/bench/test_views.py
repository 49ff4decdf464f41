"""Views from Kafka to Kafka: the definitions are sound, and figures are what they say."""

from __future__ import annotations

import pytest

from penstock.definitions import DefinitionSet
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock_lab.bench.views import (
    PER_MILLISECOND,
    define,
    make_k_anonymization,
    make_views,
    most_held,
    summarize,
    tables,
)
from penstock_lab.generate.words import INSURERS


@pytest.mark.parametrize("name", make_views())
def test_each_view_is_accepted_and_can_be_run(name: str) -> None:
    definitions: DefinitionSet = define(name, 1, make_views()[name])
    assert Blueprint.find(definitions, f"{name}-1").view.topic == f"patients-{name}-1"


def test_every_insurer_is_in_the_hierarchy_once() -> None:
    tree = make_k_anonymization()["quasi_identifiers"][-1]["hierarchy"]
    leaves = [leaf["value"] for kind in tree["children"] for leaf in kind["children"]]
    assert sorted(leaves) == sorted(str(code) for code, _ in INSURERS)


def test_what_may_be_held_is_known() -> None:
    assert most_held("baseline", 10) == 0
    assert most_held("window_500", 10**6) == 501 * PER_MILLISECOND
    assert most_held("k_anonymous", 10**6) == 20_000
    assert most_held("k_anonymous", 10) == 10


def test_figures_are_told_beside_the_baseline() -> None:
    timed = {
        "baseline": [
            {"per_second": rate, "cpu_us": cost, "published": 9, "held": 0}
            for rate, cost in ((10.0, 4.0), (30.0, 2.0), (20.0, 3.0))
        ],
        "window_25": [{"per_second": 5.0, "cpu_us": 6.0, "published": 7, "held": 2}],
    }
    found = summarize(timed)
    assert found["baseline"]["records_per_second"] == 20
    assert found["baseline"]["cpu_us_per_record"] == 2.0
    assert found["window_25"]["cpu_of_baseline"] == 3.0
    assert found["window_25"]["held"] == 2
    (table,) = tables({"records": 9, "views": found})
    assert all(len(row) == len(table.columns) for row in table.rows)
