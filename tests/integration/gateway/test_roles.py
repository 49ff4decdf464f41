"""Roles with parameters at two gateways on one store: what they give, and when it ends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.definitions import read_text
from penstock.errors import DeniedError
from penstock.model.document import Document, Key
from penstock.mqtt import V3, V5, ReasonCode
from penstock.store.audit.signatures import Signer
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions, sign_documents
from penstock.store.definitions.history import Definitions
from tests.support.gateway.harness import GatewayThread, run_gateway, share
from tests.support.gateway.pair import wait_until
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient
from tests.support.scale import scaled

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

USERS = {"ann": "a", "eve": "e", "dev": "d", "chief": "c"}
HOUSE = """
kind: vocabulary
name: house
subject: {uid: string, activeRoles: list(string)}
object: {patientId: string}
---
kind: object
name: prescriptions
topics: home/+patientId/prescribe
---
{kind: enforcement, name: default, policies: required}
---
{kind: role, name: doctor, parameters: [doctor]}
---
{kind: role, name: treating-doctor, parameters: [doctor, patient]}
---
{kind: role, name: device}
---
{kind: role, name: officer}
---
kind: activation-rule
name: doctors
role: doctor(d)
bind: {d: s.uid}
requires: [{appointment: qualified(d), membership: true}]
---
kind: activation-rule
name: treating
role: treating-doctor(d, p)
requires:
- {role: doctor(d), membership: true}
- {appointment: "treats(d, p)", membership: true}
---
kind: authorisation-rule
name: prescriptions
role: treating-doctor(_, o.patientId)
subscribe: [home/+/prescribe]
---
{kind: policy, name: devices, subject: "role:device", filter: "#", allow: write}
---
{kind: authorisation-rule, name: officers, role: officer, monitor: [$SYS/#], reserve: [home/#]}
---
{kind: user, name: dev, roles: [device]}
---
{kind: user, name: chief, roles: [officer, device]}
"""


def appoint(name: str, credential: str, user: str, **times: str) -> Document:
    return Document(
        "appointment", name, {"credential": credential, "holder": f"user:{user}", **times}
    )


def epoch_of(gateway: GatewayThread) -> int:
    return gateway.do(lambda: gateway.gateway.rules.epoch)


class Site:
    """Two gateways that share a store and a broker, and an officer with the key."""

    def __init__(self, gateways: tuple[GatewayThread, GatewayThread]) -> None:
        self.gateways = gateways
        self.config = gateways[0].config
        self.clients: list[RawClient] = []

    def change(
        self, *documents: Document, delete: tuple[str, ...] = (), signed: bool = True
    ) -> None:
        """Change definitions, and wait until both gateways know."""
        signer = Signer.open(self.config.audit.signing_key) if signed else None
        with Database.open(self.config.store.connection_url()) as database:
            checked = CheckedDefinitions(Definitions(database), signer=signer)
            if documents:
                epoch = checked.apply(documents, actor="test").epoch
            if delete:
                keys = [Key("appointment", name) for name in delete]
                epoch = checked.delete(keys, actor="test").epoch
        wait_until(lambda: all(epoch_of(it) >= epoch for it in self.gateways))

    def connect(
        self, user: str, at: int = 0, *, roles: tuple[str, ...] = (), version: int = V5, **more: Any
    ) -> tuple[RawClient, int]:
        client = RawClient(self.gateways[at].port, version=version)
        self.clients.append(client)
        pairs = tuple(("penstock-role", it) for it in roles)
        name = f"{user}:{len(self.clients)}"
        answer = client.connect(
            name, username=user, password=USERS[user].encode(), user=pairs, **more
        )
        return client, answer.reason

    def login(self, user: str, at: int = 0, **more: Any) -> RawClient:
        client, reason = self.connect(user, at, **more)
        assert not reason
        return client


STORES = pytest.mark.parametrize(
    "site",
    ["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgresql"))],
    indirect=True,
)


@pytest.fixture
def site(request: pytest.FixtureRequest, broker: MosquittoServer, tmp_path: Path) -> Iterator[Site]:
    sections = share(tmp_path)
    if getattr(request, "param", "") == "postgres":
        sections["store"]["url"] = request.getfixturevalue("postgres_url")
    sections["store"]["lease"] = "60s"
    passwords = write_passwords(tmp_path / "passwords", USERS)
    settings = {
        "open_mode": False,
        "authentication": {"passwords": str(passwords), "anonymous": True},
    }
    with (
        run_gateway(tmp_path / "one", broker.port, settings, **sections) as one,
        run_gateway(tmp_path / "two", broker.port, settings, **sections) as two,
    ):
        made = Site((one, two))
        made.change(*read_text(HOUSE, "house").documents)
        yield made
        for client in made.clients:
            client.close()


def read(client: RawClient, count: int = 0) -> list[tuple[str, bytes]]:
    return client.texts(count)


@STORES
def test_a_revoked_appointment_ends_live_subscriptions_at_all_gateways(site: Site) -> None:
    site.change(
        appoint("q", 'qualified("ann")', "ann"),
        appoint("t1", 'treats("ann", "p1")', "ann"),
        appoint("t2", 'treats("ann", "p2")', "ann"),
    )
    readers = [site.login("ann", 0), site.login("ann", 1, version=V3)]
    eve, device = site.login("eve", 1), site.login("dev")
    for client in (*readers, eve):
        assert client.subscribe("home/+/prescribe").reasons[0] < 3

    def publish() -> None:
        for patient in ("p1", "p2", "p3"):
            device.publish(f"home/{patient}/prescribe", patient.encode(), qos=1)

    publish()
    both = [("home/p1/prescribe", b"p1"), ("home/p2/prescribe", b"p2")]
    for client in readers:
        assert read(client, 2) == both
    site.change(delete=("t1",))
    publish()
    for client in readers:
        assert read(client, 1) == both[1:]
    # The prerequisite goes, and with it what depends on it.
    site.change(delete=("q",))
    publish()
    assert [read(client) for client in (*readers, eve)] == [[], [], []]
    site.change(appoint("q", 'qualified("ann")', "ann"))
    publish()
    for client in readers:
        assert read(client, 1) == both[1:]


def test_nothing_is_delivered_after_a_revocation_under_load(site: Site) -> None:
    site.change(appoint("q", 'qualified("ann")', "ann"))
    reader, device = site.login("ann", 1), site.login("dev")
    assert reader.subscribe("home/+/prescribe", qos=0).reasons[0] < 3
    ended = threading.Event()
    sent = [0]

    def publish() -> None:
        while not ended.is_set():
            sent[0] += 1
            device.publish("home/p1/prescribe", str(sent[0]).encode())
            if not sent[0] % 50:
                time.sleep(0.005)

    writer = threading.Thread(target=publish)
    writer.start()
    try:
        for _ in range(scaled(5)):
            site.change(appoint("t", 'treats("ann", "p1")', "ann"))
            assert reader.messages(20)
            site.change(delete=("t",))
            mark = sent[0]
            while sent[0] < mark + 500:
                time.sleep(0.01)
            late = [int(payload) for _, payload in reader.texts()]
            assert max(late, default=0) <= mark
    finally:
        ended.set()
        writer.join()


@STORES
def test_appointments_begin_and_end_by_themselves(site: Site) -> None:
    now = datetime.now(UTC)
    begin, end = now + timedelta(seconds=2), now + timedelta(seconds=5)
    site.change(
        appoint("q", 'qualified("ann")', "ann"),
        appoint(
            "t",
            'treats("ann", "p1")',
            "ann",
            valid_from=begin.isoformat(),
            valid_until=end.isoformat(),
        ),
    )
    reader, device = site.login("ann", 1), site.login("dev")
    assert reader.subscribe("home/+/prescribe").reasons[0] < 3
    seen: list[tuple[float, bytes]] = []
    number = 0
    while time.time() < end.timestamp() + 1.5:
        number += 1
        device.publish("home/p1/prescribe", str(number).encode(), qos=1)
        seen += [(time.time(), it[1]) for it in reader.texts(quiet=0.05)]
    moments = [moment for moment, _ in seen]
    assert moments
    assert begin.timestamp() <= min(moments)
    # A message takes its time from one gateway to the other.
    assert max(moments) < end.timestamp() + 0.5


def forge(real: Document, how: str) -> Document:
    """Return an appointment to another patient, or of somebody else."""
    body = dict(real.body)
    other = 'treats("ann", "p2")'
    if how == "unsigned":
        del body["signature"]
        return Document(real.kind, "forged", {**body, "credential": other})
    if how == "other key":
        return sign_documents([appoint("forged", other, "ann")], Signer.generate())[0]
    if how == "changed":
        return Document(real.kind, "forged", {**body, "credential": other})
    return Document(real.kind, "forged", {**body, "holder": "user:eve"})


def test_a_forged_appointment_gives_nothing(site: Site) -> None:
    site.change(appoint("q", 'qualified("ann")', "ann"), appoint("t", 'treats("ann", "p1")', "ann"))
    with Database.open(site.config.store.connection_url()) as database:
        real = Definitions(database).snapshot().documents[Key("appointment", "t")]
    ann, eve, device = site.login("ann"), site.login("eve", 1), site.login("dev")
    for client in (ann, eve):
        assert client.subscribe("home/+/prescribe").reasons[0] < 3
    for how in ("unsigned", "other key", "changed", "copied"):
        # Whoever writes to the database goes round the door that signs.
        site.change(forge(real, how), signed=False)
        for patient in ("p1", "p2"):
            device.publish(f"home/{patient}/prescribe", b"x", qos=1)
        assert read(eve) == [], how
        assert read(ann, 1) == [("home/p1/prescribe", b"x")], how
        with (
            pytest.raises(DeniedError, match="applying it signs it")
            if how != "unsigned"
            else (nullcontext())
        ):
            site.change(forge(real, how))
        site.change(delete=("forged",))


def test_a_session_uses_the_roles_that_it_chose(site: Site) -> None:
    for version in (V3, V5):
        everything = site.login("chief", version=version)
        assert everything.subscribe("$SYS/broker/uptime").reasons[0] < 3
        assert site.login("chief", roles=()).publish("home/p1/prescribe", b"", qos=1).reason < 0x80
    narrow = site.login("chief", roles=("device",))
    assert narrow.subscribe("$SYS/broker/uptime").reasons[0] == ReasonCode.NOT_AUTHORIZED
    assert narrow.publish("home/p1/prescribe", b"", qos=1).reason < 0x80
    other = site.login("chief", 1, roles=("officer",))
    assert other.subscribe("$SYS/broker/uptime").reasons[0] < 3
    assert other.publish("home/p1/prescribe", b"", qos=1).reason == ReasonCode.NOT_AUTHORIZED
    for named in (("doctor",), ("device", "nobody"), ("officer", 'x") || true'), ("",)):
        assert site.connect("chief", roles=named)[1] == ReasonCode.NOT_AUTHORIZED
    assert site.connect("eve", roles=("device",))[1] == ReasonCode.NOT_AUTHORIZED
    many = tuple(f"device{at}" for at in range(200))
    assert site.connect("chief", roles=("device", *many))[1] == ReasonCode.NOT_AUTHORIZED


def test_values_of_parameters_are_text_and_nothing_else(site: Site) -> None:
    ann, device = site.login("ann"), site.login("dev")
    assert ann.subscribe("home/#").reasons[0] < 3
    values = ["+", "#", "p1/prescribe", '"', "'", "p1\\", "ü", " "]
    site.change(
        appoint("q", 'qualified("ann")', "ann"),
        *(
            appoint(f"t{at}", f'treats("ann", {json.dumps(value)})', "ann")
            for at, value in enumerate(values)
        ),
    )
    for patient in ("p1", "p2", "ü"):
        device.publish(f"home/{patient}/prescribe", b"x", qos=1)
    assert read(ann, 1) == [("home/ü/prescribe", b"x")]
