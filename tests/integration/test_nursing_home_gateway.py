"""Two days of a nursing home through a real gateway, as quickly as it takes them."""

from __future__ import annotations

import pytest

from penstock.config import load
from penstock.demo.nursing_home.clients import Clients
from penstock.demo.nursing_home.definitions import make_documents, read_rules
from penstock.demo.nursing_home.through_gateway import GatewaySimulation
from penstock.demo.stage import Place, set_up
from penstock.errors import DeniedError
from penstock.generate.nursing_home import House
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.database import Database
from penstock.store.situations import Situations

pytestmark = pytest.mark.needs("mosquitto")


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
            ("Symptom", "Suspected"),
            ("PositiveWithSymptoms", "Symptomatic"),
        ]
    assert ("pulmonary", "patient-8", "Breathlessness", "Dyspnea") in history
    assert ("pulmonary", "patient-9", "BelowThresholdO2", "LowOxygenSaturation") in history
    # The specialist is shown what is published while one of the two is symptomatic.
    assert 0 < told["received"]["specialist physiological/temperature"] < 48
    # The relative of patient 1 gets the second day's bulletin, not the first.
    assert told["messages"]["bulletin"] == 20
    assert told["received"]["relative bulletin"] == 1
