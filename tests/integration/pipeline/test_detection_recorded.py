"""What a gateway records is enough for Spark to find what the gateway found."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.config import load
from penstock.definitions import DefinitionSet, read_text
from penstock.eventlog import EventLog
from penstock.model.document import Document
from penstock.pipeline.sinks.commits import ViewFolder
from penstock.pipeline.sinks.published import read_published
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.database import Database
from penstock.store.detection.situations import Situations
from penstock_lab.demo.nursing_home.clients import Clients
from penstock_lab.demo.nursing_home.definitions import make_documents, read_rules
from penstock_lab.demo.stage import Place, set_up
from penstock_lab.generate.nursing_home import House

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.needs("java")]

SECONDS = 90
STREAM = Document(
    "stream",
    "house",
    {
        "fields": [
            {"name": "channel", "type": "string"},
            {"name": "who", "type": "string", "category": "identifier", "optional": True},
            {"name": "pid", "type": "string", "category": "identifier"},
            {"name": "temperature", "type": "double", "optional": True},
            {"name": "respiratory", "type": "double", "optional": True},
            {"name": "saturation", "type": "double", "optional": True},
            {"name": "location", "type": "string", "optional": True},
            {"name": "result", "type": "boolean", "optional": True},
            {"name": "testDate", "type": "string", "optional": True},
            {"name": "reqId", "type": "long", "optional": True},
        ],
        "subject": "pid",
        "from": ["physiological/+", "location", "closecontact", "warning"],
        "adds": {"topic": "channel", "publisher": "who"},
    },
)
WORN = """
kind: event
name: Worn
description: Somebody wears sensor 2; known by who publishes.
attributes: {pid: string}
packet:
  when: s.uid == "sensor-2"
  set: {pid: o.patientId}
---
{kind: plan, name: worn, situations: [{id: On, level: 1}], evolutions: [{event: Worn, to: On}]}
---
{kind: scenario, name: worn, plan: worn, attribute: pid}
"""


def rules() -> list[Document]:
    """Return the case study's rules; any contact is close, as nobody waits for 15 minutes."""
    made = []
    for it in read_rules():
        body = dict(it.body)
        if it.name == "CloseContact":
            body["pattern"] = {**body["pattern"], "where": "it.duration > 0.0"}
        made.append(Document(it.kind, it.name, body))
    return [*made, *read_text(WORN).documents, STREAM]


def read_history(place: Place) -> dict[tuple[str, str], list[tuple[Any, ...]]]:
    config = load(place.configuration)
    with Database.open(place.store_url) as database:
        log = AuditLog.open(database, config.audit.signing_key)
        people = Pseudonyms.open(config.audit.pseudonym_key)
        steps = Situations(database, log, people).history(limit=1000)
        log.close()
    found: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    for it in reversed(steps):
        found.setdefault((it.scenario, it.subject), []).append((it.source, it.target, it.event))
    return found


def publish(clients: Clients, room: str) -> int:
    """Let things happen; return how many messages clients published."""
    count = 0

    def vital_sign(number: int, word: str, value: float, **more: Any) -> None:
        nonlocal count
        payload = {"pid": f"patient-{number}", word: value, **more}
        assert clients.publish(f"sensor-{number}", f"physiological/{word}", payload)
        count += 1

    for number in (1, 2, 3, 4):
        for word, value in (("temperature", 36.6), ("respiratory", 15.0), ("saturation", 98.0)):
            vital_sign(number, word, value)
    began = time.monotonic()
    rounds = 0
    while rounds < 10 or time.monotonic() < began + 3:
        for patient in ("patient-1", "patient-2"):
            assert clients.publish(room, "location", {"pid": patient, "location": room})
            count += 1
        rounds += 1
    # A payload says what it likes of topic and publisher: it does not count.
    vital_sign(3, "respiratory", 16.0, channel="physiological/temperature", temperature=41.0)
    vital_sign(3, "saturation", 97.0, who="sensor-2")
    vital_sign(1, "temperature", 38.7)
    vital_sign(3, "respiratory", 28.0)
    vital_sign(4, "saturation", 91.0)
    vital_sign(3, "saturation", 92.0)
    return count


@pytest.mark.timeout(400)
def test_spark_finds_in_the_recorded_stream_what_the_gateway_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    from penstock.pipeline.detection.runner import DetectionRunner  # noqa: PLC0415 - loads Spark
    from penstock.pipeline.detection.tasks import DetectionPlan  # noqa: PLC0415
    from penstock.pipeline.sources.event_log import TopicSource  # noqa: PLC0415

    house = House(4, 1, 1, rooms_every=3_600_000)
    documents = [*rules(), *make_documents(house.people.documents())]
    with set_up(house.people.publishers(), documents) as place:
        log = EventLog(load(place.configuration).pipeline.event_log)
        with Clients("127.0.0.1", place.port, place.passwords.get) as clients:
            sent = publish(clients, house.people.rooms[0])
        # Four cases are opened, each is warned of, and one is told to be a contact.
        until = time.monotonic() + SECONDS
        while len(list(log.topic("house").read())) < sent + 5 and time.monotonic() < until:
            time.sleep(0.05)
        records = [json.loads(it.value) for it in log.topic("house").read()]
        history = read_history(place)
        plan = DetectionPlan.find(DefinitionSet.build(documents), "house")
        source = TopicSource(log.topic("house"))
        runner = DetectionRunner(spark, plan, source, tmp_path, rows=200, parts=2)
        runner.open()
        runner.catch_up()
        runner.close()
    assert {it["who"] for it in records if it["channel"].startswith("physio")} == {
        f"sensor-{number}" for number in (1, 2, 3, 4)
    }
    assert {it["who"] for it in records if it["channel"] in {"warning", "closecontact"}} == {None}
    found: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    rows = sorted(
        read_published(ViewFolder(tmp_path)), key=lambda it: (it["part"], it["step"], it["place"])
    )
    for it in rows:
        if it["kind"] == "transition":
            step = it["source"], it["target"], it["event"]
            found.setdefault((it["name"], it["subject"]), []).append(step)
    assert found == history
    assert history["covid", "patient-1"] == [(None, "Suspected", "NewSymptom")]
    assert history["covid", "patient-2"] == [(None, "Possible", "ContactNotice")]
    assert history["pulmonary", "patient-3"] == [
        (None, "Dyspnea", "Breathlessness"),
        ("Dyspnea", "DyspneaOxygen", "BelowThresholdO2"),
    ]
    assert {key for key in history if key[0] == "worn"} == {("worn", "patient-2")}
