"""What Prometheus is told of views, read off their folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest

from penstock.definitions import DefinitionSet
from penstock.eventlog import EventLog
from penstock.model.document import Document, Key
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.control import Condition, Control, read_risks
from penstock.pipeline.sinks.commits import Batch, Commit, Totals, ViewWriter
from penstock.risk import watch as metrics
from penstock.risk.watch import Observer
from penstock.telemetry.metrics import REGISTRY

FIELDS = [
    {"name": "pid", "type": "int", "category": "identifier"},
    {"name": "age", "type": "int", "category": "quasi-identifier"},
    {"name": "diagnosis", "type": "string", "category": "sensitive"},
]


class House:
    """A folder of views, and who watches it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(metrics, "TELL_SECONDS", 0.0)
        self.control = Control(folder)
        self.definitions = DefinitionSet.empty()
        log = EventLog(folder / "log")
        self.topic = log.topic("patients")
        self.observer = Observer(self.control, log, lambda: self.definitions)
        self.define()

    def define(self, **view: Any) -> None:
        stream = Document("stream", "patients", {"fields": FIELDS, "subject": "pid"})
        made = Document("view", "all", {"stream": "patients", **view})
        self.definitions = self.definitions.change([stream, made])

    def publish(self, *rows: tuple[int, int, str], rejected: int = 0) -> None:
        blueprint = Blueprint.find(self.definitions, "all")
        writer = ViewWriter(self.control.folder / "all")
        writer.open()
        plans = writer.folder / "plans"
        plans.mkdir(exist_ok=True)
        (plans / f"{blueprint.signature}.json").write_text(blueprint.to_json(), encoding="utf-8")
        data = writer.stage() / "data"
        data.mkdir()
        columns = [pa.array(column) for column in zip(*rows, strict=True)]
        table = pa.table(columns, names=["pid", "age", "diagnosis"])
        pyarrow.parquet.write_table(table, data / "part-0.parquet")
        before = writer.newest.totals if writer.newest else Totals()
        totals = before.add(Totals(len(rows) + rejected, len(rows), rejected, 0.5 * len(rows)))
        self.arrive(totals.read - before.read)
        batch = Batch("c", writer.sequence, json.dumps({"offset": self.topic.next_offset}))
        writer.commit(Commit(writer.sequence, blueprint.signature, batch, totals=totals))
        writer.close()

    def arrive(self, count: int) -> None:
        self.topic.append([b"{}"] * count)

    def told(self, figure: str, view: str = "all") -> float | None:
        self.observer.look()
        return REGISTRY.get_sample_value(f"penstock_view_{figure}", {"view": view})


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    return House(tmp_path, monkeypatch)


def test_what_became_of_records_is_told(house: House) -> None:
    house.publish((1, 20, "flu"), (2, 20, "cold"), rejected=2)
    house.arrive(7)
    figures = ("read_total", "published_total", "rejected_total", "lag", "loss")
    assert [house.told(figure) for figure in figures] == [4, 2, 2, 7, 0.5]
    assert house.told("running") == 0


def test_risk_grows_with_every_commit(house: House) -> None:
    house.publish((1, 20, "flu"), (2, 20, "cold"))
    figures = ("k", "l", "t", "groups", "prosecutor_risk_most", "measured", "k_counts_persons")
    assert [house.told(figure) for figure in figures] == [2, 2, 0, 1, 0.5, 1, 1]
    house.publish((3, 30, "flu"), (3, 30, "flu"))
    assert [house.told(figure) for figure in figures] == [1, 1, 0.25, 2, 1, 1, 1]
    assert house.told("prosecutor_risk_mean") == 0.75


def test_a_changed_view_is_measured_anew(house: House) -> None:
    house.publish((1, 20, "flu"))
    assert house.told("k") == 1
    house.define(
        purposes=[], format="parquet", anonymizers=[{"anonymizer": "suppression", "keys": ["pid"]}]
    )
    house.publish((1, 20, "flu"), (2, 20, "flu"), (3, 20, "flu"))
    assert [house.told(it) for it in ("k", "measured", "k_counts_persons")] == [3, 1, 0]


def test_views_that_are_gone_are_told_of_no_more(house: House) -> None:
    house.publish((1, 20, "flu"))
    assert house.told("k") == 1
    house.definitions = house.definitions.change(delete=[Key("view", "all")])
    assert house.told("k") is None
    assert house.told("read_total") is None


def test_each_failure_is_counted_once(
    house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("penstock.pipeline.control._lives", lambda _: True)
    now = 2e9
    monkeypatch.setattr("penstock.pipeline.control.time.time", lambda: now)
    for state in ("running", "failed", "failed", "running", "failed"):
        house.control.report("all", Condition(state, 1, now, 12.5))
        house.observer.look()
    assert house.told("failures_total") == 2
    assert house.told("rate") == 12.5
    assert capsys.readouterr().err.count("a view failed") == 2


def test_files_that_are_not_in_place_yet_are_waited_for(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.publish((1, 20, "flu"))
    (path,) = (house.control.folder / "all" / "data").iterdir()
    away = path.rename(path.parent.parent / "away")
    monkeypatch.setattr(metrics.ViewWatch, "_is_new", staticmethod(lambda _: True))
    assert house.told("k") is None
    away.rename(path)
    assert house.told("k") == 1


def test_a_file_that_cannot_be_read_hides_no_others(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    house.publish((1, 20, "flu"))
    (path,) = (house.control.folder / "all" / "data").iterdir()
    path.write_bytes(b"rubbish")
    house.publish((1, 20, "flu"), (2, 20, "flu"))
    assert house.told("k") is None
    assert capsys.readouterr().err.count("could not be measured") == 1
    assert house.told("k") == 2
    assert house.told("measured") == pytest.approx(2 / 3)


def test_noisy_figures_have_no_figures_of_risk(house: House) -> None:
    house.publish((1, 20, "flu"), (2, 20, "cold"))
    assert house.told("k") == 2
    noisy = {
        "anonymizer": "differential_privacy",
        "aggregates": [{"name": "n", "mode": "count"}],
        "epsilon": 1,
        "budget": 5,
    }
    house.define(anonymizers=[noisy], window={"size": 1000})
    house.publish((3, 20, "flu"))
    assert house.told("published_total") == 0, "counted in thousands"
    assert [house.told(it) for it in ("k", "l", "groups", "prosecutor_risk_most")] == [None] * 4
    house.define()
    house.publish((4, 30, "flu"))
    assert house.told("k") == 1
    assert house.told("measured") == 1, "what was published before is left out"


def test_beside_private_figures_records_are_counted_in_thousands(house: House) -> None:
    rows = [(number, 20 + number % 9, "flu") for number in range(1, 1300)]
    house.publish(*rows, rejected=250)
    house.arrive(900)
    figures = ("read_total", "published_total", "rejected_total", "lag", "held", "groups")
    exact = [house.told(figure) for figure in figures]
    assert exact == [1549, 1299, 250, 900, 0, 9]
    private = {
        "anonymizer": "differential_privacy",
        "aggregates": [{"name": "patients", "mode": "count"}],
        "epsilon": 1,
        "budget": 10,
    }
    body = {"stream": "patients", "anonymizers": [private], "window": {"size": "1h"}}
    house.definitions = house.definitions.change([Document("view", "figures", body)])
    # The other views of the stream would tell what this one hides.
    told = {figure: house.told(figure) for figure in figures}
    assert list(told.values()) == [1000, 1000, 0, 0, 0, 0]
    # A fraction such as 9/1299 would give away both of its numbers.
    shares = ("prosecutor_risk_mean", "suppressed", "measured", "l_entropy", "t", "loss")
    told |= {share: house.told(share) for share in shares}
    assert told["prosecutor_risk_mean"] == 0.01
    house.publish((1, 20, "flu"))
    found = {figure: house.told(figure) for figure in told}
    assert found == told, "one record shows nowhere"
    assert house.told("lag", "figures") == 2000
    assert house.told("k") is not None, "risk is told as before"


def test_risk_is_recorded_for_charts_over_time(house: House) -> None:
    house.publish((1, 20, "flu"), (2, 20, "cold"), (3, 30, "flu"))
    house.told("k")
    (found,) = read_risks(house.control.folder / "all")
    assert (found.k, found.most) == (1, 1.0)
    assert found.mean == pytest.approx(2 / 3, abs=1e-6)
