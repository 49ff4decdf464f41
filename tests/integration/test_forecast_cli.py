"""A forecast from Spark through the gateway to the staff, and to nobody else."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.demo.nursing_home.clients import Clients, Heard
from penstock.demo.nursing_home.definitions import read_forecasts, read_people, read_rules
from penstock.demo.stage import set_up

pytestmark = pytest.mark.needs("java", "mosquitto")
LISTENERS = ("physician-1", "physician-2", "patient-1", "specialist-1")


def write_inputs(folder: Path) -> None:
    from penstock.pipeline.forecasting import FEATURES, Model  # noqa: PLC0415 - needs Spark

    weights = dict.fromkeys(FEATURES, 0.0) | {"mean_respiratory_3": 1.0}
    Model(weights, -20.0, 0.5).save(folder / "model.json")
    with (folder / "signs.jsonl").open("w") as file:
        for hour in range(30):
            for patient, breaths in (("patient-1", 15 + hour / 4), ("patient-2", 15.0)):
                signs = {"temperature": 36.5, "respiratory": breaths, "saturation": 98.0}
                file.write(json.dumps({"patient": patient, "hour": hour, **signs}) + "\n")


def run_forecast(folder: Path, port: int, user: str) -> subprocess.CompletedProcess[str]:
    given = ["--model", "model.json", "--signs", "signs.jsonl", "--to", f"mqtt://127.0.0.1:{port}"]
    given += ["--user", user, "--password-file", user, "--json"]
    # A process of its own: it ends its Spark session, which tests here share.
    return subprocess.run(
        [sys.executable, "-m", "penstock", "forecast", "run", *given],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_forecast_reaches_the_staff_of_the_patient_alone(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    documents = [*read_rules(), *read_people(), *read_forecasts()]
    with (
        set_up([*LISTENERS, "forecaster"], documents) as place,
        Clients("127.0.0.1", place.port, place.passwords.get) as clients,
    ):
        for name in LISTENERS:
            clients.listen(name, "forecast/#")
        (tmp_path / "forecaster").touch(0o600)
        (tmp_path / "forecaster").write_text(place.passwords["forecaster"])
        done = run_forecast(tmp_path, place.port, "forecaster")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        time.sleep(1)
        heard = clients.take()
    assert told["published"] == 1
    (forecast,) = told["forecasts"]
    assert (forecast["pid"], forecast["hours"]) == ("patient-1", 12)
    assert heard == [Heard("physician-1", "forecast/worsening", forecast)]
