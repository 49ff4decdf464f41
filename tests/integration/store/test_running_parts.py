"""Parts that run learn of what command lines change, on a file as on a server.

The whole installation runs as users run it: broker, gateway and pipeline under the supervisor, a
detection beside them, every command a process of its own. One installation for each kind of store
serves all tests here; each leaves it as it was, except that epochs go on.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.components import PostgresServer
from penstock.components.processes import free_port
from penstock.mqtt import ReasonCode
from penstock.pipeline.sinks.commits import ViewFolder
from penstock.pipeline.sinks.published import read_published
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient
from tests.support.store.installation import (
    FileStore,
    Installation,
    ServerStore,
    Store,
    ask_ready,
    until,
)

# Spark starts twice, and each command is a process, which takes long on a busy machine.
pytestmark = [
    pytest.mark.needs("java", "mosquitto", "postgresql"),
    pytest.mark.timeout(900),
]

USERS = ("sensor", "nurse", "doctor", "ann")
DEFINITIONS = """
{kind: enforcement, name: default, policies: required}
---
{kind: purpose, name: research}
---
kind: vocabulary
name: ward
object: {patientId: string}
payload: {value: double}
---
{kind: object, name: ward, topics: "ward/+patientId/#"}
---
kind: event
name: Reading
attributes: {pid: string, value: double}
packet: {filters: ["ward/+/pulse"], set: {pid: o.patientId, value: t.payload.value}}
---
kind: plan
name: alert
situations: [{id: Alert, level: 1}]
evolutions: [{event: Peak, to: Alert}]
---
{kind: scenario, name: alert, plan: alert, attribute: pid}
---
{kind: policy, name: sensor, subject: "user:sensor", filter: "ward/#", allow: write}
---
kind: emergency-policy
name: doctor
subject: user:doctor
filter: ward/#
allow: read
plan: alert
about: o.patientId
---
{kind: right, name: officer, subjects: ["user:ann"], administer: true, break_glass: [alert]}
---
kind: stream
name: pulses
subject: pid
from: ["ward/+pid/pulse"]
adds: {topic: channel}
fields:
  - {name: channel, type: string}
  - {name: pid, type: string, category: identifier}
  - {name: value, type: double}
"""
POLICY = '{{kind: policy, name: nurse, subject: "user:{}", filter: "ward/#", allow: read}}'
PEAK = """
kind: event
name: Peak
attributes: {{pid: string, value: double}}
pattern: {{event: Reading, where: it.value > {}}}
"""
VIEW = """
kind: view
name: rough
stream: pulses
purposes: [research]
anonymizers: [{{anonymizer: bucketizing, keys: [value], bucket_size: {}}}]
"""
PROOF = ("--as", "ann", "--password-file", "ann")


class Ward(Installation):
    """An installation in which all parts run."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.port, self.gateway, self.pipeline = free_port(), free_port(), free_port()
        passwords = write_passwords(folder / "passwords", dict.fromkeys(USERS, "x"))
        super().__init__(
            folder,
            store,
            {
                "parts": ["broker", "gateway", "pipeline"],
                "gateway": {
                    "listeners": {"mqtt": {"port": self.port}},
                    "authentication": {"passwords": str(passwords)},
                    "emergencies": {"lease": "3s"},
                    "monitor_port": self.gateway,
                },
                "pipeline": {"monitor_port": self.pipeline, "interval": "200ms"},
            },
        )
        (folder / "ann").touch(0o600)
        (folder / "ann").write_text("x\n")
        self.clients: list[RawClient] = []
        # Idle connections to a file that was replaced; they are closed when they are next used.
        self.left: set[str] = set()

    def start(self) -> None:
        self.apply(
            "\n---\n".join(
                (DEFINITIONS, POLICY.format("nurse"), PEAK.format("100.0"), VIEW.format(10))
            )
        )
        self.run("views", "start", "rough")
        self.start_beside("pipeline", "detect", "--stream", "pulses")
        self.run("up", "--detach")

    def login(self, user: str) -> RawClient:
        client = RawClient(self.port)
        assert not client.connect(f"{user}:{uuid.uuid4().hex}", username=user, password=b"x").reason
        self.clients.append(client)
        return client

    def measure(self, patient: str, value: float) -> ReasonCode:
        """Let the sensor publish, and return what the gateway says to it."""
        with self.login("sensor") as sensor:
            told = json.dumps({"value": value}).encode()
            return ReasonCode(sensor.publish(f"ward/{patient}/pulse", told, qos=1).reason)

    def reaches(self, reader: RawClient, value: float, patient: str = "p") -> bool:
        """Say whether what a sensor publishes now arrives at a reader."""
        assert self.measure(patient, value) == ReasonCode.SUCCESS
        reader.settle()
        return any(json.loads(it.payload)["value"] == value for it in reader.messages())

    def published(self, patient: str) -> list[Any]:
        """Return what the view tells of a patient, the newest first."""
        folder = ViewFolder(self.data / "views" / "rough")
        return [it["value"] for it in read_published(folder) if it["pid"] == patient]

    def detected(self, patient: str) -> bool:
        """Say whether Spark has seen a patient come into the situation."""
        folder = ViewFolder(self.data / "views" / ".detection" / "pulses")
        return any(
            it["kind"] == "transition" and it["subject"] == patient for it in read_published(folder)
        )

    def wait_ready(self) -> list[dict[str, Any]]:
        """Wait until gateway and pipeline are ready; return what they say."""

        def look(port: int) -> dict[str, Any] | None:
            is_ready, said = ask_ready(port)
            return said if is_ready else None

        return [until(partial(look, port)) for port in (self.gateway, self.pipeline)]

    def wait_stale(self) -> list[dict[str, Any]]:
        """Wait until gateway and pipeline say that definitions are stale; return what they say."""

        def look(port: int) -> dict[str, Any] | None:
            # What else a part is not ready for, it may notice sooner.
            said = ask_ready(port)[1]
            return said if "definitions" in said["failing"] else None

        return [until(partial(look, port)) for port in (self.gateway, self.pipeline)]

    def confirms(self, port: int, epoch: int) -> bool:
        """Say whether a part has an epoch as the newest one that the store has confirmed."""
        details = ask_ready(port)[1].get("details", {})
        return bool(details.get("definitions", {}).get("epoch") == epoch)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def ward(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: PostgresServer,
) -> Iterator[Ward]:
    folder = tmp_path_factory.mktemp("ward")
    store: Store = FileStore(folder)
    if request.param == "postgresql":
        store = ServerStore(postgres_server, f"ward-{uuid.uuid4().hex[:8]}")
    made = Ward(folder, store)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(autouse=True)
def _nothing_is_lost(ward: Ward) -> Iterator[None]:
    yield
    for client in ward.clients:
        client.close()
    ward.clients.clear()
    assert set(ward.lost_files()) <= ward.left
    assert ward.restarts() == {"broker": 0, "gateway": 0, "pipeline": 0}, ward.log()


@pytest.fixture
def patient() -> str:
    return f"p-{uuid.uuid4().hex[:8]}"


def test_a_changed_view_holds_from_the_next_batch_on(ward: Ward, patient: str) -> None:
    ward.measure(patient, 47)
    before = until(lambda: ward.published(patient), "a record in the view")
    ward.apply(VIEW.format(20))
    ward.measure(patient, 47)
    until(lambda: len(ward.published(patient)) == 2, "a record in the changed view")
    assert ward.published(patient)[0] != before[0]
    ward.run("get", "view/rough")
    ward.apply(VIEW.format(10))
    ward.measure(patient, 47)
    until(lambda: len(ward.published(patient)) == 3, "a record in the view of before")
    assert ward.published(patient)[0] == before[0]


def test_an_opt_out_holds_from_the_next_batch_on(ward: Ward, patient: str) -> None:
    other = f"{patient}-other"
    ward.measure(patient, 50)
    until(lambda: ward.published(patient))
    ward.run("consent", "opt-out", patient, "research", *PROOF)
    ward.measure(patient, 51)
    ward.measure(other, 52)
    until(lambda: ward.published(other))
    assert len(ward.published(patient)) == 1
    ward.run("consent", "opt-in", patient, "research", *PROOF)
    ward.measure(patient, 53)
    until(lambda: len(ward.published(patient)) == 2)
    recorded = ward.run("audit", "tail", "--json", "--person", patient)
    assert [json.loads(line)["kind"] for line in recorded.splitlines()] == [
        "consent.opt-out",
        "consent.opt-in",
    ]


def test_a_changed_policy_holds_at_the_gateway(ward: Ward) -> None:
    nurse = ward.login("nurse")
    nurse.subscribe("ward/#", qos=1)
    assert ward.reaches(nurse, 60)
    ward.apply(POLICY.format("somebody"))
    until(lambda: not ward.reaches(nurse, 61), "the policy without the nurse")
    ward.run("audit", "tail", "-n", "3")
    assert not ward.reaches(nurse, 62)
    ward.apply(POLICY.format("nurse"))
    until(lambda: ward.reaches(nurse, 63), "the policy with the nurse")


def test_a_situation_begins_and_ends_by_hand(ward: Ward, patient: str) -> None:
    doctor = ward.login("doctor")
    doctor.subscribe("ward/#", qos=1)
    assert not ward.reaches(doctor, 60, patient)
    asked = ("--reason", "fell", *PROOF, "--wait", "120")
    ward.run("situation", "start", "alert", patient, "Alert", "--yes", *asked)
    assert ward.reaches(doctor, 61, patient)
    listed = json.loads(ward.run("situation", "list", "--json"))["situations"]
    assert (patient, "Alert") in [(it["subject"], it["situation"]) for it in listed]
    ward.run("situation", "end", "alert", patient, *asked)
    assert not ward.reaches(doctor, 62, patient)


def test_a_changed_event_holds_at_the_gateway_and_in_a_running_detection(
    ward: Ward, patient: str
) -> None:
    doctor = ward.login("doctor")
    doctor.subscribe("ward/#", qos=1)
    high, low = f"{patient}-high", f"{patient}-low"
    assert ward.reaches(doctor, 120, high)
    until(lambda: ward.detected(high), "a detection on Spark")
    assert not ward.reaches(doctor, 80, low)
    ward.apply(PEAK.format("70.0"))
    until(lambda: ward.reaches(doctor, 80, low), "the changed event at the gateway")
    until(lambda: ward.measure(low, 80) == 0 and ward.detected(low), "the changed event on Spark")
    ward.apply(PEAK.format("100.0"))


def test_readiness_tells_the_epoch_that_was_confirmed(ward: Ward) -> None:
    ward.wait_ready()
    for purpose in ("first", "second"):
        epoch = ward.apply(f"{{kind: purpose, name: {purpose}}}")
        for port in (ward.gateway, ward.pipeline):
            until(partial(ward.confirms, port, epoch), "the epoch of the change")
        for told in ward.wait_ready():
            assert told["details"]["definitions"]["epoch"] == epoch
            assert told["details"]["definitions"]["age_seconds"] < 2


def test_a_store_that_is_away_denies_until_it_is_back(ward: Ward, patient: str) -> None:
    nurse, sensor = ward.login("nurse"), ward.login("sensor")
    nurse.subscribe("ward/#", qos=1)
    assert ward.reaches(nurse, 60, patient)
    until(lambda: ward.published(patient))
    ward.store.take_away()
    try:
        at_gateway, _ = ward.wait_stale()
        assert at_gateway["details"]["definitions"]["age_seconds"] > 0
        told = sensor.publish(f"ward/{patient}/pulse", b'{"value": 61}', qos=1)
        assert told.reason == ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        with RawClient(ward.port) as late:
            refused = late.connect("sensor:late", username="sensor", password=b"x")
            assert refused.reason == ReasonCode.SERVER_UNAVAILABLE
        assert nurse.messages() == []
    finally:
        ward.store.bring_back()
    ward.wait_ready()
    assert ward.reaches(nurse, 62, patient)
    until(lambda: len(ward.published(patient)) == 2, "a record after the store was away")


def test_a_store_that_is_set_back_is_followed(ward: Ward, patient: str) -> None:
    """A copy of before takes the place of the store, under running parts."""
    nurse = ward.login("nurse")
    nurse.subscribe("ward/#", qos=1)
    ward.measure(patient, 47)
    before = until(lambda: ward.published(patient))
    ward.store.copy()
    changed = ward.apply("\n---\n".join((POLICY.format("somebody"), VIEW.format(20))))
    until(lambda: not ward.reaches(nurse, 61), "the policy without the nurse")
    ward.store.replace()
    ward.forget_newest_head()
    for port in (ward.gateway, ward.pipeline):
        until(partial(ward.confirms, port, changed - 1), "the epoch of before")
    ward.wait_ready()
    nurse = ward.login("nurse")
    nurse.subscribe("ward/#", qos=1)
    until(lambda: ward.reaches(nurse, 62), "the policy of before")
    ward.measure(patient, 47)
    until(lambda: len(ward.published(patient)) == 2)
    assert ward.published(patient)[0] == before[0]
    # And what is changed from there on.
    assert ward.apply(POLICY.format("somebody")) == changed
    until(lambda: not ward.reaches(nurse, 63), "a change of the restored store")
    ward.apply(POLICY.format("nurse"))
    ward.left = set(ward.lost_files())


def test_all_that_was_written_is_there(ward: Ward) -> None:
    epochs = [it["epoch"] for it in json.loads(ward.run("history", "--json", "--limit", "1000"))]
    assert epochs == list(range(max(epochs), -1, -1))
    ward.run("audit", "verify")
    ward.run("doctor")
    status = json.loads(ward.run("status", "--json"))
    assert {it["state"] for it in status["parts"]} == {"running"}
