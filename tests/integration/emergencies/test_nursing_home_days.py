"""Two days of a nursing home through a real gateway, as quickly as it takes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.components import MosquittoServer
from penstock.config import load
from penstock.errors import DeniedError
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.database import Database
from penstock.store.detection.situations import Situations
from penstock_lab.cli.simulate import command
from penstock_lab.demo.nursing_home.clients import Clients
from penstock_lab.demo.nursing_home.definitions import make_documents, read_rules
from penstock_lab.demo.stage import Place, set_up
from penstock_lab.generate.nursing_home import House
from penstock_lab.simulation.through_gateway import GatewaySimulation
from tests.support.gateway.harness import run_gateway, write_config
from tests.support.gateway.ward import define

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)


def read_history(place: Place) -> list[tuple[str, str, str | None, str | None]]:
    config = load(place.configuration)
    with Database.open(place.store_url) as database:
        log = AuditLog.open(database, config.audit.signing_key)
        people = Pseudonyms.open(config.audit.pseudonym_key)
        steps = Situations(database, log, people).history(limit=1000)
        log.close()
    return [(it.scenario, it.subject, it.event, it.target) for it in reversed(steps)]


def test_a_house_lives_through_a_gateway() -> None:
    house = House(10, 2, 1, rooms_every=3_600_000)
    others = [*house.people.specialists, *house.people.relatives]
    users = [*house.people.publishers(), *others]
    documents = [*read_rules(), *make_documents(house.people.documents())]
    with set_up(users, documents) as place:
        with Clients("127.0.0.1", place.port, place.passwords.get) as clients:
            simulation = GatewaySimulation(house, clients)
            simulation.run()
        told = simulation.as_dict()
        with (
            Clients("127.0.0.1", place.port, lambda _: "wrong") as strangers,
            pytest.raises(DeniedError, match="does not let sensor-1 in"),
        ):
            strangers.publish("sensor-1", "physiological/temperature", {"pid": "patient-1"})
        history = read_history(place)
    assert told["refused"] == {}
    assert told["messages"]["physiological/saturation"] == 10 * 2 * 24
    # Warnings reach the staff, and lead to tests; some results are still to come.
    assert told["messages"]["result"] >= 2
    assert told["warnings_answered"] >= told["messages"]["result"]
    for patient in ("patient-1", "patient-5"):
        assert [it[2:] for it in history if it[:2] == ("covid", patient)] == [
            ("NewSymptom", "Suspected"),
            ("PositiveWithSymptoms", "Symptomatic"),
        ]
    assert ("pulmonary", "patient-8", "Breathlessness", "Dyspnea") in history
    assert ("pulmonary", "patient-9", "BelowThresholdO2", "LowOxygenSaturation") in history
    # The specialist is shown what is published while one of the two is symptomatic.
    assert 0 < told["received"]["specialist physiological/temperature"] < 48
    # The relative of patient 1 gets the second day's bulletin, not the first.
    assert told["messages"]["bulletin"] == 20
    assert told["received"]["relative bulletin"] == 1


def test_refused_messages_are_told_and_fail_the_run(
    broker: MosquittoServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    house = tmp_path / "house"
    days = ["nursing-home", "--patients", "10", "--days", "1", "--rooms-every", "3600"]
    assert command.main([*days, "--prepare", str(house)], standalone_mode=False) == 0
    documents = json.loads((house / "definitions.json").read_text())
    kept = [it for it in documents if it["name"] != "medical_personnel/write-bulletin"]
    assert len(kept) == len(documents) - 1
    chosen = {"open_mode": False, "authentication": {"passwords": str(house / "passwords")}}
    define(write_config(tmp_path, broker.port, chosen), json.dumps(kept))
    with run_gateway(tmp_path, broker.port, chosen) as gateway:
        address = ["--to", f"mqtt://127.0.0.1:{gateway.port}"]
        password = ["--password-file", str(house / "password")]
        assert command.main([*days, *address, *password], standalone_mode=False) == 1
    assert "the gateway refused 10 of " in capsys.readouterr().out
