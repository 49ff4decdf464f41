"""A forecast from Spark through the gateway to the staff, and to nobody else."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.streams.forecast import command
from penstock.config import load
from penstock.eventlog import EventLog, Topic
from penstock.model.document import Document
from penstock_lab.demo.nursing_home.clients import Clients, Heard
from penstock_lab.demo.nursing_home.definitions import read_forecasts, read_people, read_rules
from penstock_lab.demo.stage import set_up

pytestmark = pytest.mark.needs("java", "mosquitto")
LISTENERS = ("physician-1", "physician-2", "patient-1", "specialist-1")


STREAM = Document(
    "stream",
    "signs",
    {
        "fields": [
            {"name": "pid", "type": "string", "category": "identifier"},
            {"name": "at", "type": "long"},
            *(
                {"name": sign, "type": "double", "optional": True}
                for sign in ("temperature", "respiratory", "saturation")
            ),
        ],
        "subject": "pid",
        "time": "at",
    },
)


def write_inputs(folder: Path, topic: Topic) -> None:
    from penstock.pipeline.forecasting import FEATURES, Model  # noqa: PLC0415 - needs Spark

    weights = dict.fromkeys(FEATURES, 0.0) | {"mean_respiratory_3": 1.0}
    Model(weights, -20.0, 0.5).save(folder / "model.json")
    records = []
    for hour in range(30):
        for patient, breaths in (("patient-1", 15 + hour / 4), ("patient-2", 15.0)):
            said = {"pid": patient, "at": hour * 3_600_000}
            signs = {"temperature": 36.5, "respiratory": breaths, "saturation": 98.0}
            records += [{**said, sign: value} for sign, value in signs.items()]
    topic.append([json.dumps(it).encode() for it in records])


def run_forecast(
    folder: Path, configuration: Path, port: int, user: str
) -> subprocess.CompletedProcess[str]:
    given = ["--model", "model.json", "--stream", "signs", "--to", f"mqtt://127.0.0.1:{port}"]
    given += ["--user", user, "--password-file", user, "--json"]
    # A process of its own: it ends its Spark session, which tests here share.
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "penstock",
            "--config",
            str(configuration),
            "forecast",
            "run",
            *given,
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_forecast_reaches_the_staff_of_the_patient_alone(tmp_path: Path) -> None:
    documents = [*read_rules(), *read_people(), *read_forecasts(), STREAM]
    with (
        set_up([*LISTENERS, "forecaster"], documents) as place,
        Clients("127.0.0.1", place.port, place.passwords.get) as clients,
    ):
        log = EventLog(load(place.configuration).pipeline.event_log)
        write_inputs(tmp_path, log.topic("signs"))
        for name in LISTENERS:
            clients.listen(name, "forecast/#")
        (tmp_path / "forecaster").touch(0o600)
        (tmp_path / "forecaster").write_text(place.passwords["forecaster"])
        done = run_forecast(tmp_path, place.configuration, place.port, "forecaster")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        heard: list[Heard] = []
        until = time.monotonic() + 60
        while not heard and time.monotonic() < until:
            time.sleep(1)  # whoever else hears it does so meanwhile
            heard += clients.take()
    assert told["published"] == 1
    (forecast,) = told["forecasts"]
    assert (forecast["pid"], forecast["hours"]) == ("patient-1", 12)
    assert heard == [Heard("physician-1", "forecast/worsening", forecast)]


def test_vital_signs_come_from_one_place(tmp_path: Path) -> None:
    model, signs = tmp_path / "model.json", tmp_path / "signs.jsonl"
    model.touch()
    signs.touch()
    for given in ([], ["--signs", str(signs), "--stream", "signs"]):
        done = CliRunner().invoke(command, ["run", "--model", str(model), *given])
        assert done.exit_code != 0
        assert "one place" in str(done.exception)
