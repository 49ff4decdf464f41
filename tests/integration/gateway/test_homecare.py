"""The homecare scenario with real clients: who sees which attribute of which event, and when.

Ann treats the patient p1, Bob treats p2. The pharmacy gets a Prescription, the auditor a
Controlled_Drug_Auth without the patient and of class A alone, the carer where patients are: to
about ten kilometres, and exactly while they need help.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.definitions import read_text
from penstock.model.document import Document, Key
from penstock.mqtt import V3, V5, Will
from penstock.store.audit.entry import Entry
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.reader import read_after
from penstock.store.audit.signatures import Signer
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from tests.support.gateway.harness import GatewayThread, run_gateway, share
from tests.support.gateway.pair import wait_until
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

PEOPLE = ("ann", "bob", "pharmacy", "auditor", "carer")
USERS = {name: name[0] for name in (*PEOPLE, "sensor", "eve")}
APPOINTMENTS = {
    "ann": ('qualified("ann")', 'treats("ann", "p1")'),
    "bob": ('qualified("bob")', 'treats("bob", "p2")'),
}
Seen = dict[str, list[tuple[str, dict[str, Any]]]]


def definitions() -> list[Document]:
    text = importlib.resources.files("penstock_lab.demo").joinpath("homecare.yaml").read_text()
    found = list(read_text(text, "homecare").documents)
    for user, credentials in APPOINTMENTS.items():
        for at, credential in enumerate(credentials):
            body = {"credential": credential, "holder": f"user:{user}"}
            found.append(Document("appointment", f"{user}-{at}", body))
    return found


class Homes:
    """A gateway with the homecare definitions, and its clients."""

    def __init__(self, gateway: GatewayThread) -> None:
        self.gateway = gateway
        self.clients: list[RawClient] = []

    def change(self, *documents: Document, delete: tuple[Key, ...] = ()) -> None:
        signer = Signer.open(self.gateway.config.audit.signing_key)
        with Database.open(self.gateway.config.store.connection_url()) as database:
            checked = CheckedDefinitions(Definitions(database), signer=signer)
            epoch = 0
            if documents:
                epoch = checked.apply(documents, actor="test").epoch
            if delete:
                epoch = checked.delete(delete, actor="test").epoch
        gateway = self.gateway
        wait_until(lambda: gateway.do(lambda: gateway.gateway.rules.epoch) >= epoch)

    def login(self, user: str, name: str = "", *, version: int = V5, **more: Any) -> RawClient:
        client = RawClient(self.gateway.port, version=version)
        self.clients.append(client)
        known = client.connect(
            name or f"{user}:{len(self.clients)}",
            username=user,
            password=USERS[user].encode(),
            **more,
        )
        assert not known.reason
        return client


@pytest.fixture
def homes(broker: MosquittoServer, tmp_path: Path) -> Iterator[Homes]:
    sections = share(tmp_path)
    sections["store"]["lease"] = "60s"
    passwords = write_passwords(tmp_path / "passwords", USERS)
    settings = {"open_mode": False, "authentication": {"passwords": str(passwords)}}
    sections["pipeline"] = {"event_log": str(tmp_path / "eventlog")}
    with run_gateway(tmp_path / "one", broker.port, settings, **sections) as gateway:
        made = Homes(gateway)
        made.change(*definitions())
        yield made
        for client in made.clients:
            client.close()


def prescription(patient: str, drug: str) -> bytes:
    said = {"patient": patient, "drug": drug, "dose": "5 mg", "pharmacy": "north", "note": "pain"}
    return json.dumps(said).encode()


def place(patient: str) -> bytes:
    return json.dumps({"patient": patient, "lat": 52.2053, "lon": 0.1218}).encode()


def collect(readers: Mapping[str, RawClient], probe: RawClient) -> Seen:
    """Return what everybody got up to now: a message to all says that no more is on its way."""
    probe.settle()
    return {
        name: [(topic, json.loads(payload)) for topic, payload in reader.texts(quiet=0.4)]
        for name, reader in readers.items()
    }


def fields(seen: list[tuple[str, dict[str, Any]]]) -> set[tuple[str, str, Any]]:
    """Return each attribute that somebody saw: the event, the attribute, its value."""
    return {(topic, name, value) for topic, body in seen for name, value in body.items()}


def attributes(topic: str, **values: Any) -> set[tuple[str, str, Any]]:
    return {(topic, name, value) for name, value in values.items()}


FUZZED = {"lat": "[52.2 - 52.3]", "lon": "[0.1 - 0.2]"}
EXACT = {"lat": 52.2053, "lon": 0.1218}


def expected(*, fallen: bool) -> dict[str, set[tuple[str, str, Any]]]:
    """The matrix: who sees which attribute of which event, where p1 has fallen and p2 has not."""

    def located(patient: str) -> set[tuple[str, str, Any]]:
        at = EXACT if fallen and patient == "p1" else FUZZED
        return attributes(f"home/{patient}/location", patient=patient, **at)

    def prescribed(patient: str, drug: str) -> set[tuple[str, str, Any]]:
        said = json.loads(prescription(patient, drug))
        return attributes(f"home/{patient}/prescribe", **said)

    def handed_out(patient: str, drug: str) -> set[tuple[str, str, Any]]:
        said = {"patient": patient, "drug": drug, "dose": "5 mg", "pharmacy": "north"}
        return attributes("pharmacy/north/prescription", **said)

    return {
        "ann": prescribed("p1", "morphine") | prescribed("p1", "aspirin") | located("p1"),
        "bob": prescribed("p2", "codeine") | located("p2"),
        "pharmacy": (
            handed_out("p1", "morphine") | handed_out("p1", "aspirin") | handed_out("p2", "codeine")
        ),
        "auditor": attributes(
            "audit/controlled-drug-auth", **{"drug": "morphine", "class": "A", "dose": "5 mg"}
        ),
        "carer": located("p1") | located("p2"),
        "eve": set(),
    }


def publish_all(homes: Homes) -> None:
    ann, bob, sensor = homes.login("ann"), homes.login("bob"), homes.login("sensor")
    assert not ann.publish("home/p1/prescribe", prescription("p1", "morphine"), qos=1).reason
    assert not ann.publish("home/p1/prescribe", prescription("p1", "aspirin"), qos=2).reason
    assert not bob.publish("home/p2/prescribe", prescription("p2", "codeine"), qos=1).reason
    for patient in ("p1", "p2"):
        sensor.publish(f"home/{patient}/location", place(patient), qos=1)


@pytest.mark.parametrize("version", [V5, V3], ids=["5", "3.1.1"])
def test_who_sees_which_attribute_of_which_event_in_which_context(
    homes: Homes, version: int
) -> None:
    readers = {name: homes.login(name, version=version) for name in (*PEOPLE, "eve")}
    for reader in readers.values():
        assert all(code < 3 for code in reader.subscribe("home/#", qos=1).reasons)
        reader.subscribe("pharmacy/#", qos=1)
        reader.subscribe("audit/#", qos=2)
    sensor = homes.login("sensor")
    for fallen in (False, True, False):
        if fallen:
            assert not sensor.publish("home/p1/alarm", b"{}", qos=1).reason
        else:
            sensor.publish("home/p1/over", b"{}", qos=1)
        publish_all(homes)
        seen = collect(readers, sensor)
        assert {name: fields(got) for name, got in seen.items()} == expected(fallen=fallen)
    # She treats p1 no more: nothing that he is prescribed reaches her, however exact.
    homes.change(delete=(Key("appointment", "ann-1"),))
    bob = homes.login("bob")
    bob.publish("home/p2/prescribe", prescription("p2", "morphine"), qos=1)
    sensor.publish("home/p1/location", place("p1"), qos=1)
    seen = collect(readers, sensor)
    assert not seen["ann"]
    assert len(seen["auditor"]) == 1
    refused = homes.login("ann").publish("home/p1/prescribe", prescription("p1", "x"), qos=1)
    assert refused.reason


def test_what_is_changed_leaves_changed_in_every_way(homes: Homes, broker: MosquittoServer) -> None:
    """Retained, queued, sent again with QoS 1 and 2, to a shared group, as a will."""
    fuzzed = {"patient": "p1", **FUZZED}
    sensor = homes.login("sensor")
    for qos in (0, 1, 2):
        sensor.publish(f"home/p{qos}/location", place("p1"), qos=qos, retain=True)
    sensor.settle()
    # Retained.
    early = homes.login("carer")
    early.subscribe("home/+/location", qos=2)
    assert [json.loads(it.payload) for it in early.messages(3)] == [fuzzed] * 3
    # Queued while away; then sent again, as nothing is acknowledged.
    for qos in (1, 2):
        name = f"carer:kept{qos}"
        away = homes.login("carer", name, clean=False, expiry=600)
        away.subscribe("home/far/location", qos=qos)
        away.close()
        sensor.publish("home/far/location", place("p1"), qos=qos)
        for _ in range(2):
            back = RawClient(homes.gateway.port, answers=False)
            back.connect(name, clean=False, expiry=600, username="carer", password=b"c")
            (again,) = back.messages(1)
            assert json.loads(again.payload) == fuzzed
            back.vanish()
    # A shared group, and a will.
    member = homes.login("carer")
    member.subscribe("$share/all/home/shared/location", qos=1)
    lost = homes.login("sensor", will=will("home/shared/location", place("p1")))
    lost.vanish()
    assert [json.loads(it.payload) for it in member.messages(1)] == [fuzzed]
    # At the broker it is what was published: nobody but the gateway reads there.
    with RawClient(broker.port) as inside:
        inside.connect("inside")
        inside.subscribe("home/p1/location")
        assert json.loads(inside.messages(1)[0].payload)["lat"] == EXACT["lat"]
    for qos in (0, 1, 2):
        assert not sensor.publish(f"home/p{qos}/location", b"", qos=1, retain=True).reason


def will(topic: str, payload: bytes) -> Will:
    return Will(topic, payload, 1)


def test_what_is_changed_on_publication_is_never_at_the_broker_or_in_the_event_log(
    homes: Homes, broker: MosquittoServer
) -> None:
    homes.change(
        Document(
            "transformation",
            "coarse-location",
            {
                "at": "publication",
                "filter": "home/+/location",
                "stream": "location",
                "anonymizers": [
                    {"anonymizer": "bucketizing", "keys": ["lat", "lon"], "bucket_size": 0.1}
                ],
            },
        ),
        Document(
            "stream",
            "location",
            {
                "from": ["home/+/location"],
                "fields": [
                    {"name": "patient", "type": "string", "category": "identifier"},
                    {"name": "lat", "type": "double"},
                    {"name": "lon", "type": "double"},
                ],
            },
        ),
    )
    fuzzed = {"patient": "p1", **FUZZED}
    with RawClient(broker.port) as inside:
        inside.connect("inside")
        inside.subscribe("home/+/location", qos=1)
        sensor = homes.login("sensor")
        sent = 0
        for qos in (0, 1, 2):  # QoS 0 goes over a publish lane
            for _ in range(3):
                sensor.publish(f"home/q{qos}/location", place("p1"), qos=qos, retain=True)
                sent += 1
        lost = homes.login("sensor", will=will("home/will/location", place("p1")))
        lost.vanish()
        assert [json.loads(it.payload) for it in inside.messages(sent + 1)] == [fuzzed] * (sent + 1)
        # What cannot be changed is refused, and an empty message takes back what is retained.
        assert sensor.publish("home/q1/location", b'{"patient": "p1"}', qos=1).reason
        assert sensor.publish("home/q1/location", b"52.2 0.1", qos=1).reason
        for qos in (0, 1, 2):
            assert not sensor.publish(f"home/q{qos}/location", b"", qos=1, retain=True).reason
        # One that carries something beside its payload is refused as well.
        said = (("patient", "p1"),)
        assert sensor.publish("home/q1/location", b"", qos=1, retain=True, user=said).reason
        assert sensor.publish("home/q1/location", b"", qos=1).reason
        # That it may pass says nothing of what comes behind it.
        for qos in (0, 1, 2):
            sensor.publish(f"home/q{qos}/location", place("p1"), qos=qos)
        told = [it.payload for it in inside.messages(6)]
        assert [json.loads(it) for it in told if it] == [fuzzed] * 3
    with RawClient(broker.port) as later:
        later.connect("later")
        later.subscribe("home/q1/location")
        assert not later.messages()
    gateway = homes.gateway
    wait_until(lambda: gateway.do(lambda: gateway.gateway.recorder.durable) > sent)
    written = b"".join(
        it.read_bytes() for it in Path(gateway.config.pipeline.event_log).rglob("*") if it.is_file()
    )
    assert b"[52.2 - 52.3]" in written
    assert b"52.2053" not in written


def test_silent_filters_answer_as_if_nothing_had_been_sent(homes: Homes) -> None:
    auditor, ann = homes.login("auditor"), homes.login("ann")
    plain = auditor.subscribe("audit/other", qos=1)
    filtered = auditor.subscribe("audit/controlled-drug-auth", qos=1)
    assert (plain.reasons, plain.properties) == (filtered.reasons, filtered.properties)
    answers = [
        ann.publish("home/p1/prescribe", prescription("p1", drug), qos=1)
        for drug in ("morphine", "codeine", "aspirin")
    ]
    # 16: the broker knows no reader of what she published (MQTT5 3.4.2.1), and that is all.
    assert {(it.reason, it.properties) for it in answers} == {(16, answers[0].properties)}
    assert [body["class"] for _, body in collect({"a": auditor}, ann)["a"]] == ["A"]


def test_a_subscription_is_permitted_by_context_and_ends_with_it(homes: Homes) -> None:
    carer, sensor = homes.login("carer"), homes.login("sensor")
    assert carer.subscribe("home/+/location", qos=1).reasons[0] < 3
    rule = {
        "at": "subscription",
        "subject": "role:carer",
        "filter": "home/+/location",
        "permit": 's.uid == "nobody"',
    }
    homes.change(Document("restriction", "carers", rule))
    sensor.publish("home/p1/location", place("p1"), qos=1)
    assert not collect({"c": carer}, sensor)["c"]
    refused = homes.login("carer").subscribe("home/p1/location", qos=1)
    assert refused.reasons[0] >= 0x80
    assert "carers" not in str(refused.properties)
    # A wider filter is let in, and gets nothing of these topics.
    wide = homes.login("carer")
    assert wide.subscribe("home/#", qos=1).reasons[0] < 3
    sensor.publish("home/p1/location", place("p1"), qos=1)
    assert not collect({"w": wide}, sensor)["w"]
    homes.change(delete=(Key("restriction", "carers"),))
    sensor.publish("home/p1/location", place("p1"), qos=1)
    assert len(collect({"c": carer}, sensor)["c"]) == 1


def test_wills_and_actions_are_turned_into_other_types_too(homes: Homes) -> None:
    """What the gateway publishes itself takes the same way as what clients publish."""
    homes.change(
        Document(
            "action",
            "prescribe",
            {
                "event": "Alarm",
                "topic": "home/{pid}/prescribe",
                "payload": {
                    "patient": "it.pid",
                    "drug": '"codeine"',
                    "dose": '"1"',
                    "pharmacy": '"south"',
                },
            },
        ),
        Document(
            "plan",
            "help",
            {
                "situations": [{"id": "Fallen", "level": 1}],
                "evolutions": [
                    {"event": "Alarm", "to": "Fallen", "actions": ["prescribe"]},
                    {"event": "Over", "from": "Fallen"},
                ],
            },
        ),
    )
    pharmacy = homes.login("pharmacy")
    pharmacy.subscribe("pharmacy/#", qos=1)
    lost = homes.login("ann", will=will("home/p1/prescribe", prescription("p1", "morphine")))
    lost.vanish()
    handed_out = {"patient": "p1", "drug": "morphine", "dose": "5 mg", "pharmacy": "north"}
    assert [json.loads(it.payload) for it in pharmacy.messages(1)] == [handed_out]
    # She may not prescribe for p2: neither by a message nor by a will.
    lost = homes.login("ann", will=will("home/p2/prescribe", prescription("p2", "morphine")))
    lost.vanish()
    homes.login("sensor").publish("home/p2/alarm", b"{}", qos=1)
    (by_action,) = pharmacy.messages(1)
    assert (by_action.topic, json.loads(by_action.payload)["drug"]) == (
        "pharmacy/south/prescription",
        "codeine",
    )


def test_each_disclosure_of_a_changed_message_is_in_the_audit_log(homes: Homes) -> None:
    carer, sensor, auditor, ann = (homes.login(it) for it in ("carer", "sensor", "auditor", "ann"))
    carer.subscribe("home/+/location", qos=1)
    auditor.subscribe("audit/#", qos=1)
    for _ in range(3):
        sensor.publish("home/p1/location", place("p1"), qos=1)
    ann.publish("home/p1/prescribe", prescription("p1", "codeine"), qos=1)
    # Who may not write has disclosed nothing, whatever the message would have been turned into.
    assert carer.publish("home/p1/prescribe", prescription("p1", "codeine"), qos=1).reason >= 0x80
    collect({"c": carer}, sensor)
    wanted = {
        "delivery.transformed": 3,
        "publication.transformed": 1,
        "publication.denied": 1,
        "delivery.denied": 1,
    }
    # It is written once a second, and counted until then.
    wait_until(lambda: wanted.items() <= entries(homes).items())
    people = Pseudonyms.load(homes.gateway.config.audit.pseudonym_key)
    told = {it.rule for it in entries_of(homes) if it.kind == "delivery.transformed"}
    assert told == {people.rule("transformation coarse-location")}
    assert all(str(it).startswith("transformation r_") for it in told)


def entries(homes: Homes) -> dict[str, int]:
    """Return how often the audit log tells of each kind of event."""
    found: dict[str, int] = {}
    for entry in entries_of(homes):
        times = json.loads(entry.details).get("count", 1)
        found[entry.kind] = found.get(entry.kind, 0) + times
    return found


def entries_of(homes: Homes) -> list[Entry]:
    url = homes.gateway.config.store.connection_url()
    with Database.open(url) as database, database.read() as connection:
        return [it.entry for it in read_after(connection, -1, 100_000)]
