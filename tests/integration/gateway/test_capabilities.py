"""Types of another domain at a gateway: nothing without a capability, and no more than it says.

PITO owns the type of sightings. The Met's cameras publish such events, in the name of one gate; the
Congestion Charge Service reads numberplates, a detective all of one plate.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.model.document import Document
from penstock.model.grants import parse_grant
from penstock.mqtt import V3, V5, Will
from penstock.store.audit.entry import Outcome
from penstock.store.audit.reader import read_after
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from penstock.trust import capabilities
from penstock.trust.capabilities import Capability, Link
from penstock.trust.event_types import sign_type
from penstock.trust.keys import open_key
from tests.support.commands import run_command
from tests.support.gateway.harness import GatewayThread, run_gateway, share
from tests.support.gateway.pair import wait_until
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient
from tests.support.trust.domains import attribute, domain

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

USERS = {name: name for name in ("camera", "ccs", "smith", "eve", "boss")}
TYPE = sign_type(
    domain("pito"),
    "sighting/1",
    "sighting",
    str(uuid.uuid4()),
    [
        attribute("numberplate"),
        attribute("location", optional=True),
        attribute("gate", "int", optional=True),
    ],
)
STREAM = Document("stream", "sightings", {"event_type": "sighting/1", "from": ["cams/+/sighting"]})
TOPIC = "cams/7/sighting"
HELD = "type: sighting*; action: publish | subscribe"


class Met:
    """The Met's gateway, and what PITO lets the Met do."""

    def __init__(self, gateway: GatewayThread) -> None:
        self.gateway = gateway
        self.key = open_key(gateway.config.trust.key)
        self.clients: list[RawClient] = []
        self.held = capabilities.issue(
            domain("pito"), self.link(domain("pito").key, f"key:{self.key.key}", HELD)
        )

    def link(self, signer: str, holder: str, grant: str, until: int = 3600) -> Link:
        now = int(time.time())
        return Link(signer, holder, (parse_grant(grant),), now - 60, now + until, 0)

    def grant(self, user: str, grant: str, until: int = 3600) -> Capability:
        """Pass a part of what the Met holds on to a user, and apply it."""
        made = capabilities.delegate(
            self.held, self.key, self.link(self.key.key, f"user:{user}", grant, until)
        )
        self.change(Document("capability", f"of-{user}", {"token": made.text}))
        return made

    def change(self, *documents: Document) -> None:
        with Database.open(self.gateway.config.store.connection_url()) as database:
            epoch = CheckedDefinitions(Definitions(database)).apply(documents, actor="test").epoch
        gateway = self.gateway
        wait_until(lambda: gateway.do(lambda: gateway.gateway.rules.epoch) >= epoch)

    def login(self, user: str, *, version: int = V5, **more: Any) -> RawClient:
        client = RawClient(self.gateway.port, version=version)
        self.clients.append(client)
        name = f"{user}:{len(self.clients)}"
        assert not client.connect(name, username=user, password=user.encode(), **more).reason
        return client

    def read(self, user: str, *, version: int = V5) -> RawClient:
        client = self.login(user, version=version)
        client.subscribe("cams/+/sighting")
        return client


@pytest.fixture
def met(broker: MosquittoServer, tmp_path: Path) -> Iterator[Met]:
    sections = share(tmp_path)
    sections["store"]["lease"] = "60s"
    passwords = write_passwords(tmp_path / "passwords", USERS)
    settings = {"open_mode": False, "authentication": {"passwords": str(passwords)}}
    with run_gateway(tmp_path / "met", broker.port, settings, **sections) as gateway:
        made = Met(gateway)
        made.change(TYPE.document(), STREAM)
        yield made
        for client in made.clients:
            client.close()


def sighting(plate: str, **more: Any) -> bytes:
    return json.dumps({"numberplate": plate, "location": "Baker Street", **more}).encode()


def got(client: RawClient, count: int = 0) -> list[dict[str, Any]]:
    return [json.loads(payload) for _, payload in client.texts(count, quiet=0.4)]


def test_each_reader_gets_what_the_owner_lets_them(met: Met) -> None:
    met.grant("camera", "type: sighting; action: publish")
    met.grant("ccs", "type: sighting; action: subscribe; attributes: numberplate")
    met.grant("smith", "type: sighting; action: subscribe; attributes: * & numberplate = 'AB12'")
    readers = {name: met.read(name, version=V3) for name in ("ccs", "smith", "eve")}
    camera = met.login("camera")
    for plate in ("AB12", "CD34"):
        assert not camera.publish(TOPIC, sighting(plate, gate=3), qos=1).reason
    assert got(readers["ccs"], 2) == [{"numberplate": "AB12"}, {"numberplate": "CD34"}]
    assert got(readers["smith"], 1) == [
        {"numberplate": "AB12", "location": "Baker Street", "gate": 3}
    ]
    assert got(readers["eve"]) == []


def test_retained_messages_and_properties_are_no_way_around(met: Met) -> None:
    met.grant("camera", "type: sighting; action: publish")
    met.grant("ccs", "type: sighting; action: subscribe; attributes: numberplate")
    camera = met.login("camera")
    told = (("place", "Baker Street"),)
    camera.publish("cams/9/sighting", sighting("AB12"), qos=1, retain=True, user=told)
    reader = met.read("ccs")
    (message,) = reader.messages(1)
    assert json.loads(message.payload) == {"numberplate": "AB12"}
    assert not message.properties.user
    camera.publish("cams/9/sighting", b"", qos=1, retain=True)


def test_a_fixed_value_is_forced_and_the_request_accepted(met: Met) -> None:
    met.grant("camera", "type: sighting; action: publish; attributes: * & gate = 500")
    met.grant("boss", "type: sighting; action: subscribe")
    reader, camera = met.read("boss"), met.login("camera")
    for more in ({}, {"gate": 3}, {"gate": 500}):
        assert not camera.publish(TOPIC, sighting("AB12", **more), qos=1).reason
    assert [it["gate"] for it in got(reader, 3)] == [500, 500, 500]


def test_nobody_publishes_without_a_capability_or_more_than_it_says(met: Met) -> None:
    met.grant("camera", "type: sighting; action: publish; attributes: numberplate")
    met.grant("boss", "type: sighting; action: subscribe")
    reader = met.read("boss")
    camera, eve = met.login("camera"), met.login("eve")
    plain = json.dumps({"numberplate": "AB12"}).encode()
    assert not camera.publish(TOPIC, plain, qos=1).reason
    for client, payload in (
        (eve, plain),
        (met.login("boss"), plain),  # may only read
        (camera, sighting("AB12")),  # the location is not granted
        (camera, json.dumps({"numberplate": "AB12", "owner": "x"}).encode()),  # not of the type
        (camera, b"no object"),
    ):
        assert client.publish(TOPIC, payload, qos=1).reason == 0x87
    assert got(reader, 1) == [{"numberplate": "AB12"}]
    assert got(reader) == []


def test_a_will_is_as_good_as_its_publisher(met: Met) -> None:
    met.grant("camera", "type: sighting; action: publish; attributes: * & gate = 500")
    met.grant("boss", "type: sighting; action: subscribe")
    reader = met.read("boss")
    for user in ("eve", "camera"):
        met.login(user, will=Will(TOPIC, sighting(user), 1, False)).vanish()  # noqa: FBT003
    assert [it["gate"] for it in got(reader, 1)] == [500]
    assert got(reader) == []


def test_revoking_a_link_above_ends_live_subscriptions(met: Met) -> None:
    met.grant("camera", "type: sighting; action: publish")
    made = met.grant("ccs", "type: sighting; action: subscribe")
    reader, camera = met.read("ccs"), met.login("camera")
    assert not camera.publish(TOPIC, sighting("AB12"), qos=1).reason
    assert len(got(reader, 1)) == 1
    found = capabilities.revoke(domain("pito"), [made.links[0].id], int(time.time()))
    body = capabilities.write_revocations(found)
    met.change(Document("revocation-list", body.pop("signer"), body))
    assert camera.publish(TOPIC, sighting("AB12"), qos=1).reason == 0x87
    assert got(reader) == []


def test_a_capability_ends_by_itself(met: Met) -> None:
    met.grant("boss", "type: sighting; action: subscribe")
    met.grant("camera", "type: sighting; action: publish", until=3)
    camera = met.login("camera")
    wait_until(lambda: camera.publish(TOPIC, sighting("AB12"), qos=1).reason == 0x87)


def test_at_home_roles_are_enough(met: Met) -> None:
    own = sign_type(met.key, "own/1", "own", str(uuid.uuid4()), [attribute("x", "int")])
    stream = Document("stream", "own", {"event_type": "own/1", "from": ["own/+"]})
    met.change(own.document(), stream)
    reader, eve = met.login("ccs"), met.login("eve")
    reader.subscribe("own/#")
    assert not eve.publish("own/a", b'{"x":1}', qos=1).reason
    assert got(reader, 1) == [{"x": 1}]


def test_check_and_explain_name_the_capability(met: Met) -> None:
    met.grant("ccs", "type: sighting; action: subscribe; attributes: numberplate")
    folder = met.gateway.config.file
    assert folder is not None
    payload = ("--payload", sighting("AB12").decode())
    words = ("check", "--topic", TOPIC, *payload, "--json")
    allowed = run_command(folder.parent, *words, "--subject", "ccs")
    assert allowed.returncode == 0, allowed.stderr
    assert '"capability of-ccs"' in allowed.stdout
    denied = run_command(folder.parent, *words, "--subject", "eve")
    assert denied.returncode == 1
    assert json.loads(denied.stdout)["rule"] == "capability"
    shown = run_command(folder.parent, "explain", TOPIC)
    assert "the type of another domain" in shown.stdout
    assert "of-ccs" in shown.stdout


def test_denials_are_audited_without_names(met: Met) -> None:
    met.grant("camera", "type: sighting; action: publish")
    reader, camera = met.read("eve"), met.login("camera")
    assert not camera.publish(TOPIC, sighting("AB12"), qos=1).reason
    assert got(reader) == []

    def denials() -> list[Any]:
        url = met.gateway.config.store.connection_url()
        with Database.open(url) as database, database.read() as connection:
            found = [it.entry for it in read_after(connection, -1)]
        return [it for it in found if it.outcome == Outcome.DENIED.value and "deliver" in it.kind]

    wait_until(lambda: bool(denials()))
    assert {it.rule for it in denials()} == {"capability"}
    assert all("AB12" not in str(it) for it in denials())
