"""Where a gateway stands counts in conditions: `e.place`, on reading and on writing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from penstock.components import MosquittoServer
from penstock.mqtt.codes import FAILURE
from tests.support.gateway.harness import run_gateway, write_config
from tests.support.gateway.ward import define, login, settings

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

WARD = """
kind: enforcement
name: default
policies: required
---
kind: vocabulary
name: ward
environment: {place: string}
---
kind: policy
name: reading
filter: notes
allow: read
when: e.place == "ward-7"
---
kind: policy
name: writing
filter: notes
allow: write
when: e.place == "ward-7"
"""


@pytest.mark.parametrize(("place", "allowed"), [("ward-7", True), ("ward-8", False), (None, False)])
def test_a_policy_of_a_place_holds_there_alone(
    place: str | None,
    allowed: bool,  # noqa: FBT001 - a parameter of the test
    broker: MosquittoServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen: dict[str, Any] = settings(tmp_path)
    if place is not None:
        chosen["place"] = place
    define(write_config(tmp_path, broker.port, chosen), WARD)
    with (
        run_gateway(tmp_path, broker.port, chosen) as gateway,
        login(gateway.port, "nurse") as nurse,
        login(gateway.port, "sensor") as sensor,
    ):
        nurse.subscribe("notes", qos=1)
        answer = sensor.publish("notes", b"{}", qos=1)
        assert (answer.reason < FAILURE) is allowed
        nurse.settle()
        assert bool(nurse.texts()) is allowed
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["check", "--subject", "nurse", "--topic", "notes", "--json"])
    assert ended.value.code == (0 if allowed else 1)
    assert json.loads(capsys.readouterr().out)["allowed"] is allowed
