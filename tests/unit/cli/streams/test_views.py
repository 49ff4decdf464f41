"""`penstock views`, as far as no Spark is needed: import, control, list, feed, read, dead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest

from penstock.cli.entry import penstock
from penstock.cli.streams.views import command
from penstock.errors import InvalidError, UsageError
from penstock.eventlog import EventLog
from penstock.pipeline.sinks.commits import Commit, Totals, ViewWriter

REQUIREMENTS = {
    "globalConfig": {
        "bootstrapServer": "kafka:9092",
        "topic": "patients",
        "dataSchema": {
            "schemaType": "AVRO",
            "name": "Patient",
            "fields": [{"name": "pid", "type": "int"}, {"name": "name", "type": "string"}],
        },
    },
    "streamProperties": [
        {"applicationId": "doctor", "anonymizers": []},
        {
            "applicationId": "nurse",
            "category": "VALUE_BASED",
            "anonymizers": [{"anonymizer": "suppression", "parameters": [{"keys": ["pid"]}]}],
        },
    ],
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_ACTOR", "tester")
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "dash.json").write_text(json.dumps(REQUIREMENTS))


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    command.main([*arguments, "--json"], standalone_mode=False)
    return json.loads(capsys.readouterr().out)


def test_from_a_requirements_file_to_views_that_are_wanted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = _json(capsys, "import", "dash.json", "--log", "files")
    assert made["created"] == ["stream/patients", "view/doctor", "view/nurse"]
    assert made["notes"] == []
    assert _json(capsys, "import", "dash.json", "--log", "files")["created"] == []
    assert _json(capsys, "initialize", "nurse") == {"nurse": "initialized"}
    assert _json(capsys, "start", "--all") == {"doctor": "running", "nurse": "running"}
    assert _json(capsys, "pause", "nurse") == {"nurse": "paused"}
    assert _json(capsys, "start", "--all") == {"doctor": "running"}
    listed = _json(capsys, "list")
    assert [(row["view"], row["state"], row["wanted"]) for row in listed] == [
        ("doctor", "waiting", "running"),
        ("nurse", "paused", "paused"),
    ]
    Path("p.csv").write_text("pid,name\n1,Ott\n2,Lieb\n")
    fed = {"fed": {"p.csv": 2}, "csv": {"p.csv": "utf-8, comma, a header"}, "next": 2}
    assert _json(capsys, "feed", "patients", "p.csv") == fed
    assert [row["lag"] for row in _json(capsys, "list")] == [2, 2]


def test_a_file_with_a_broker_leads_to_the_cluster_of_the_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = _json(capsys, "import", "dash.json")
    assert made["created"] == ["stream/patients", "view/doctor", "view/nurse"]
    (note,) = made["notes"]
    assert "'kafka:9092'" in note
    assert "kafka.bootstrap" in note
    penstock.main(["get", "stream", "patients", "--json"], standalone_mode=False)
    (stream,) = json.loads(capsys.readouterr().out)
    assert stream["source"] == "kafka"
    command.main(["import", "dash.json"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "note" in shown
    assert "kafka:9092" in shown


def test_who_a_record_is_about_can_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["import", "dash.json", "--subject", "who"]
    with pytest.raises(InvalidError, match="who"):
        _json(capsys, *wrong)
    _json(capsys, "import", "dash.json", "--subject", "pid")
    penstock.main(["get", "stream", "patients", "--json"], standalone_mode=False)
    (stream,) = json.loads(capsys.readouterr().out)
    assert stream["subject"] == "pid"


def test_what_is_wrong_with_a_file_is_told_and_nothing_is_applied(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = json.loads(json.dumps(REQUIREMENTS).replace('["pid"]', '["zip"]'))
    Path("dash.json").write_text(json.dumps(wrong))
    with pytest.raises(InvalidError, match="there is no field 'zip'"):
        _json(capsys, "import", "dash.json")
    assert _json(capsys, "list") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["start"], "name the views, or --all"),
        (["start", "x", "--all"], "name the views, or --all"),
        (["start", "x"], "there is no view 'x'"),
        (["feed", "x", "p.csv"], "there is no stream 'x'"),
        (["import", "no.json"], "cannot be read"),
        (["read", "x"], "there is no view 'x'"),
    ],
)
def test_wrong_calls_are_told(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _json(capsys, "import", "dash.json")
    with pytest.raises(UsageError, match=message):
        _json(capsys, *arguments)


def test_what_was_published_and_what_was_not_can_be_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _json(capsys, "import", "dash.json")
    writer = ViewWriter(Path("penstock-data/views/nurse").absolute())
    writer.open()
    staged = writer.stage()
    (staged / "data").mkdir()
    rows = pa.table({"pid": [None], "name": ["Ott"]})
    pyarrow.parquet.write_table(rows, staged / "data" / "part-0.parquet")
    writer.commit(Commit(0, "p", totals=Totals(2, 1, 1)), [{"offset": 1, "reason": "no JSON"}])
    writer.close()
    assert _json(capsys, "read", "nurse") == [{"pid": None, "name": "Ott"}]
    assert _json(capsys, "read", "doctor") == []
    assert _json(capsys, "dead", "nurse") == {"no JSON": 1}
    command.main(["dead", "nurse"], standalone_mode=False)
    assert capsys.readouterr().out.split()[-4:] == ["1", "1", "no", "JSON"], "count, offset, reason"
    command.main(["dead", "doctor"], standalone_mode=False)
    assert capsys.readouterr().out == "no dead letters; 0 records were read\n"
    command.main(["read", "nurse"], standalone_mode=False)
    assert "Ott" in capsys.readouterr().out
    topic = EventLog(Path("penstock-data/eventlog").absolute()).topic("patients-nurse")
    topic.append([b'{"pid": null, "name": "Lieb"}', b'{"pid": null, "name": "Alt"}'])
    read = _json(capsys, "read", "nurse", "--rows", "3")
    assert [row["name"] for row in read] == ["Alt", "Lieb", "Ott"]


def test_records_too_wide_for_a_line_are_shown_in_blocks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _json(capsys, "import", "dash.json")
    topic = EventLog(Path("penstock-data/eventlog").absolute()).topic("patients-nurse")
    topic.append([b'{"pid": 1, "name": "[b]Ott"}'])
    command.main(["read", "nurse"], standalone_mode=False)
    assert capsys.readouterr().out.splitlines()[1].split() == ["1", "[b]Ott"]
    monkeypatch.setenv("COLUMNS", "9")
    command.main(["read", "nurse"], standalone_mode=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["pid", "1"] in lines


def test_stopping_tells_what_is_still_held_and_how_it_leaves(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _json(capsys, "import", "dash.json")
    _json(capsys, "start", "nurse")
    writer = ViewWriter(tmp_path / "penstock-data" / "views" / "nurse")
    writer.open()
    writer.stage()
    writer.commit(Commit(0, "p", held=7, totals=Totals(9, 2)))
    writer.close()
    command.main(["stop", "nurse"], standalone_mode=False)
    told = " ".join(capsys.readouterr().out.split())
    assert "nurse still holds 7 records → they leave when views run" in told


def test_the_list_can_be_read_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _json(capsys, "import", "dash.json")
    _json(capsys, "start", "--all")
    writer = ViewWriter(tmp_path / "penstock-data" / "views" / "doctor")
    writer.open()
    writer.stage()
    many = Totals(12_345_678, 12_345_000, 678, 1_234_500.0)
    writer.commit(Commit(0, "plan", held=9_999, totals=many))
    writer.close()
    monkeypatch.setenv("COLUMNS", "80")
    command.main(["list"], standalone_mode=False)
    head, doctor, nurse = capsys.readouterr().out.splitlines()
    assert " ".join(head.split()) == "view state rate lag published rejected held loss"
    assert " ".join(doctor.split()) == "doctor waiting 0.0 0 12.3M 678 9,999 0.1"
    assert nurse.split()[:2] == ["nurse", "waiting"]
    monkeypatch.setenv("COLUMNS", "120")
    command.main(["list"], standalone_mode=False)
    assert "12,345,678" in capsys.readouterr().out


def test_beside_private_figures_commands_count_in_thousands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _json(capsys, "import", "dash.json")
    private = {
        "kind": "view",
        "name": "figures",
        "stream": "patients",
        "window": {"size": "1h"},
        "anonymizers": [
            {
                "anonymizer": "differential_privacy",
                "aggregates": [{"name": "patients", "mode": "count"}],
                "epsilon": 1,
                "budget": 10,
            }
        ],
    }
    stream = {"kind": "stream", "name": "patients", "subject": "pid"}
    stream["fields"] = REQUIREMENTS["globalConfig"]["dataSchema"]["fields"]  # type: ignore[index]
    writer = ViewWriter(tmp_path / "penstock-data" / "views" / "nurse")
    writer.open()
    letters = [{"offset": n, "reason": "late"} for n in range(1234)]
    writer.stage()
    writer.commit(Commit(0, "p", held=17, totals=Totals(2999, 1748, 1234)), letters)
    writer.close()

    def counts() -> list[int]:
        (row,) = (it for it in _json(capsys, "list") if it["view"] == "nurse")
        return [row[name] for name in ("read", "published", "rejected", "held")]

    assert counts() == [2999, 1748, 1234, 17]
    assert _json(capsys, "dead", "nurse") == {"late": 1234}
    Path("all.yaml").write_text("\n---\n".join(map(json.dumps, [stream, private])))
    penstock.main(["apply", "-f", "all.yaml"], standalone_mode=False)
    capsys.readouterr()
    assert counts() == [2000, 1000, 1000, 0]
    assert _json(capsys, "dead", "nurse") == {"late": 1000}
    command.main(["dead", "nurse"], standalone_mode=False)
    assert "1,000+" in capsys.readouterr().out
