"""The examples of the emergency model on the wire: 7 (an action), 8 to 10 (who reads what, when).

Bob and Mary have a scenario each, of one plan. A specialist reads physiological data of who is
short of breath and of oxygen, and of nobody else. Example 9 leaves specialists out of the
scenarios, whom example 10 lets read; the case study and statement 6 ask for them, so that they are
involved here, and a test shows what holds without that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.mqtt import ReasonCode
from penstock.mqtt.codes import FAILURE
from tests.support.gateway.harness import GatewayThread, run_gateway, write_config
from tests.support.gateway.pair import wait_until
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient
from tests.support.gateway.ward import define, login

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

USERS = ("sensor", "bob", "mary", "physician", "specialist", "visitor")
NOT_INVOLVED = """("patient" in s.groups && s.uid == "{name}") || "medical_personnel" in s.groups"""
INVOLVED = NOT_INVOLVED + """ || "specialist" in s.groups"""
SCENARIO = """
kind: scenario
name: {scenario}
plan: PulmonaryIssues
attribute: pid
subjects: [{name}]
subject_filter: '{text}'
---
"""
EXAMPLES = """
kind: enforcement
name: default
policies: required
---
kind: vocabulary
name: home
subject: {uid: string, groups: "list(string)"}
object: {patientId: string}
payload: {bpm: double, saturation: double, patientId: string}
---
{kind: object, name: home/patient, topics: "+patientId/physiological/#"}
---
{kind: object, name: home/criticality, topics: "criticality/#", payload: {patientId: patientId}}
---
{kind: group, name: patient, members: ["user:bob", "user:mary"]}
---
{kind: group, name: medical_personnel, members: ["user:physician"]}
---
{kind: group, name: specialist, members: ["user:specialist"]}
---
kind: event
name: RespiratoryRate
attributes: {pid: string, bpm: double, time: timestamp}
packet:
  filters: ["+/physiological/respiratory"]
  set: {pid: o.patientId, bpm: t.payload.bpm, time: e.time}
---
kind: event
name: EstimatedSpO2
attributes: {pid: string, SpO2: double, time: timestamp}
packet:
  filters: ["+/physiological/saturation"]
  set: {pid: o.patientId, SpO2: t.payload.saturation, time: e.time}
---
{kind: event, name: Breathlessness, attributes: {pid: string, bpm: double, time: timestamp},
 pattern: {event: RespiratoryRate, where: it.bpm > 25.0}}
---
{kind: event, name: NormalBreathRate, attributes: {pid: string, bpm: double, time: timestamp},
 pattern: {event: RespiratoryRate, where: it.bpm <= 25.0}}
---
{kind: event, name: BelowThresholdO2, attributes: {pid: string, SpO2: double, time: timestamp},
 pattern: {event: EstimatedSpO2, where: it.SpO2 < 95.0}}
---
{kind: event, name: NormalO2Level, attributes: {pid: string, SpO2: double, time: timestamp},
 pattern: {event: EstimatedSpO2, where: it.SpO2 >= 95.0}}
---
# Example 7: what the request of an evolution finds, restricted from Breathlessness.
kind: event
name: Asked
attributes: {pid: string}
request: {set: {pid: r.subject}}
---
kind: event
name: SevereBreathlessness
attributes: {pid: string, time: timestamp, bpm: double}
pattern:
  and:
    - {event: Asked, window: {last: 1s}, as: Q}
    - {latest: {event: Breathlessness}, by: [pid], order: time, as: B}
  by: [pid]
  where: B.bpm > 30.0
  set: {pid: B.pid, time: B.time, bpm: B.bpm}
---
kind: action
name: SevereBreathlessnessNotifier
event: SevereBreathlessness
topic: criticality/severebreathlessness
payload: {patientId: it.pid, time: it.time, bpm: it.bpm}
---
# Example 8, figure 2; the action as example 13 has it.
kind: plan
name: PulmonaryIssues
situations:
  - {id: Dyspnea, level: 1}
  - {id: LowOxygenSaturation, level: 1}
  - {id: DyspneaOxygen, level: 2}
evolutions:
  - {event: Breathlessness, to: Dyspnea, actions: [SevereBreathlessnessNotifier]}
  - {event: BelowThresholdO2, to: LowOxygenSaturation}
  - {event: NormalBreathRate, from: Dyspnea}
  - {event: NormalO2Level, from: LowOxygenSaturation}
  - {event: BelowThresholdO2, from: Dyspnea, to: DyspneaOxygen}
  - {event: NormalO2Level, from: DyspneaOxygen, to: Dyspnea}
  - {event: Breathlessness, from: LowOxygenSaturation, to: DyspneaOxygen}
  - {event: NormalBreathRate, from: DyspneaOxygen, to: LowOxygenSaturation}
---
# Example 10: <specialist, +/physiological/#, true, read, edp = PulmonaryIssues, {DyspneaOxygen}>.
kind: emergency-policy
name: ep
subject: group:specialist
filter: +/physiological/#
allow: read
plan: PulmonaryIssues
scenario_filter: c.plan == "PulmonaryIssues"
situation_filter: c.situation == "DyspneaOxygen"
about: o.patientId
---
{kind: policy, name: sensor, subject: "user:sensor", filter: "#", allow: write}
---
{kind: policy, name: medical_personnel, subject: "group:medical_personnel", filter: "#",
 allow: read}
---
{kind: policy, name: visitor, subject: "user:visitor", filter: "#", allow: read}
"""
EXCLUSIVE = """
kind: enforcement
name: default
policies: required
exclusive: [{plan: PulmonaryIssues, ABOUT}]
"""


def scenarios(text: str) -> str:
    """Return the scenarios of example 9."""
    return "".join(
        SCENARIO.format(scenario=scenario, name=name, text=text.format(name=name))
        for scenario, name in (("es1", "bob"), ("es2", "mary"))
    )


@pytest.fixture
def home(broker: MosquittoServer, tmp_path: Path) -> Iterator[GatewayThread]:
    passwords = write_passwords(tmp_path / "passwords", dict.fromkeys(USERS, "x"))
    chosen: dict[str, Any] = {
        "open_mode": False,
        "authentication": {"passwords": str(passwords)},
        "emergencies": {"lease": "300s"},
    }
    config = write_config(tmp_path, broker.port, chosen)
    define(config, scenarios(INVOLVED) + EXAMPLES)
    with run_gateway(tmp_path, broker.port, chosen) as running:
        yield running


def change(home: GatewayThread, text: str) -> None:
    epoch = home.gateway.rules.epoch
    define(home.config, text)
    wait_until(lambda: home.do(lambda: home.gateway.rules.epoch) != epoch)


def measure(sensor: RawClient, name: str, **value: float) -> None:
    (word,) = value
    topic = f"{name}/physiological/{'respiratory' if word == 'bpm' else word}"

    def is_taken() -> bool:
        # While detection takes definitions over, a possible event is refused.
        answer = sensor.publish(topic, json.dumps(value).encode(), qos=1)
        return int(answer.reason) < FAILURE

    wait_until(is_taken)


def topics(reader: RawClient, count: int = 0) -> list[str]:
    return [it.topic for it in reader.messages(count)]


def test_example_7_an_action_tells_of_severe_breathlessness(home: GatewayThread) -> None:
    with login(home.port, "sensor") as sensor, login(home.port, "physician") as physician:
        physician.subscribe("criticality/#", qos=1)
        measure(sensor, "mary", bpm=28.0)  # short of breath, not severely
        measure(sensor, "bob", bpm=34.0)
        (told,) = physician.messages(1)
        assert told.topic == "criticality/severebreathlessness"
        said = json.loads(told.payload)
        assert (said["patientId"], said["bpm"]) == ("bob", 34.0)
        assert set(said) == {"patientId", "bpm", "time"}
        assert physician.messages() == []


def test_example_10_a_specialist_reads_of_who_is_in_dyspnea_oxygen_alone(
    home: GatewayThread,
) -> None:
    with login(home.port, "sensor") as sensor, login(home.port, "specialist") as specialist:
        specialist.subscribe("+/physiological/#", qos=1)
        measure(sensor, "bob", bpm=28.0)  # es1: Dyspnea
        measure(sensor, "mary", saturation=93.0)  # es2: LowOxygenSaturation
        assert topics(specialist) == []
        measure(sensor, "bob", saturation=93.0)  # es1: DyspneaOxygen
        assert topics(specialist, 1) == ["bob/physiological/saturation"]
        measure(sensor, "mary", saturation=92.0)
        measure(sensor, "bob", bpm=29.0)
        assert topics(specialist, 1) == ["bob/physiological/respiratory"]
        measure(sensor, "bob", saturation=98.0)  # back to Dyspnea
        measure(sensor, "bob", bpm=29.0)
        assert topics(specialist) == []


def test_a_reader_whom_no_scenario_involves_gets_nothing_by_it(home: GatewayThread) -> None:
    change(home, scenarios(NOT_INVOLVED))
    with login(home.port, "sensor") as sensor, login(home.port, "specialist") as specialist:
        specialist.subscribe("+/physiological/#", qos=1)
        measure(sensor, "bob", bpm=28.0)
        measure(sensor, "bob", saturation=93.0)
        measure(sensor, "bob", bpm=29.0)
        assert topics(specialist) == []


def test_statement_6_replaces_policies_of_readers_who_are_involved(home: GatewayThread) -> None:
    """The physician is involved and loses ordinary rights on Bob's data; the visitor is not."""
    with (
        login(home.port, "sensor") as sensor,
        login(home.port, "physician") as physician,
        login(home.port, "visitor") as visitor,
    ):
        for reader in (physician, visitor):
            reader.subscribe("+/physiological/#", qos=1)
        bob, mary = "bob/physiological/respiratory", "mary/physiological/respiratory"
        change(home, EXCLUSIVE.replace("ABOUT", "about: o.patientId"))
        measure(sensor, "bob", bpm=28.0)
        measure(sensor, "mary", bpm=20.0)
        assert topics(visitor, 2) == [bob, mary]
        assert topics(physician, 1) == [mary]
        # To the letter: who is involved in any active case has emergency policies alone.
        change(home, EXCLUSIVE.replace("ABOUT", "any_object: true"))
        measure(sensor, "mary", bpm=21.0)
        assert topics(visitor, 1) == [mary]
        assert topics(physician) == []
        measure(sensor, "bob", bpm=20.0)  # it is over, and its end is read again
        measure(sensor, "mary", bpm=22.0)
        assert topics(visitor, 2) == [bob, mary]
        assert topics(physician, 2) == [bob, mary]


def test_a_filter_that_misses_an_attribute_involves_nobody(home: GatewayThread) -> None:
    text = """s.uid == "{name}" || s.floor == 1 || "specialist" in s.groups && s.floor > 0"""
    vocabulary = """
kind: vocabulary
name: home/floors
subject: {floor: int}
---
"""
    change(home, vocabulary + scenarios(text))
    with login(home.port, "sensor") as sensor, login(home.port, "specialist") as specialist:
        specialist.subscribe("+/physiological/#", qos=1)
        measure(sensor, "bob", bpm=28.0)
        measure(sensor, "bob", saturation=93.0)
        assert topics(specialist) == []
        change(home, "kind: attributes\nname: user:specialist\nvalues: {floor: 2}\n")
        measure(sensor, "bob", saturation=92.0)
        assert topics(specialist, 1) == ["bob/physiological/saturation"]
        assert specialist.publish("bob/physiological/x", b"", qos=1).reason == (
            ReasonCode.NOT_AUTHORIZED
        )


def test_a_case_ends_when_it_no_longer_involves_its_patient(home: GatewayThread) -> None:
    """Without a list, the filter says whom a scenario is followed for; attributes change that."""
    change(
        home,
        """
kind: vocabulary
name: home/floors
subject: {floor: int}
---
{kind: attributes, name: "user:bob", values: {floor: 1}}
---
kind: scenario
name: es1
plan: PulmonaryIssues
attribute: pid
subject_filter: s.floor == 1 || "specialist" in s.groups
""",
    )
    board = home.gateway.emergencies.detection.board
    with login(home.port, "sensor") as sensor, login(home.port, "specialist") as specialist:
        specialist.subscribe("+/physiological/#", qos=1)
        for name in ("bob", "visitor"):
            measure(sensor, name, bpm=28.0)
            measure(sensor, name, saturation=93.0)
        assert topics(specialist, 1) == ["bob/physiological/saturation"]
        assert home.do(lambda: board.current("es1", "visitor")) is None
        change(home, '{kind: attributes, name: "user:bob", values: {floor: 2}}')
        measure(sensor, "bob", saturation=92.0)
        assert topics(specialist) == []
        assert home.do(lambda: board.current("es1", "bob")) is None
