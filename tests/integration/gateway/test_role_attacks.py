"""Who has lost a role tries to go on using it: by what the broker keeps, by groups, by wills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.components import MosquittoServer
from penstock.definitions import read_text
from penstock.model.document import Document
from penstock.mqtt import ReasonCode, Will
from tests.integration.gateway.test_roles import HOUSE, USERS, Site, appoint
from tests.support.gateway.harness import run_gateway, share
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

TOPIC = "home/p1/prescribe"
RULES = """
kind: authorisation-rule
name: doctors-prescribe
role: treating-doctor(_, o.patientId)
publish: [home/+/prescribe]
---
{kind: authorisation-rule, name: reservers, role: 'treating-doctor(_, "p1")', reserve: [home/#]}
---
{kind: role, name: visitor}
---
kind: activation-rule
name: visitors
role: visitor
requires: [{appointment: invited}]
---
{kind: authorisation-rule, name: visitors, role: visitor, subscribe: [garden/#]}
---
{kind: policy, name: news, subject: anyone, filter: news/#, allow: read}
"""


@pytest.fixture
def site(broker: MosquittoServer, tmp_path: Path) -> Iterator[Site]:
    sections = share(tmp_path)
    sections["store"]["lease"] = "60s"
    passwords = write_passwords(tmp_path / "passwords", USERS)
    settings = {"open_mode": False, "authentication": {"passwords": str(passwords)}}
    with (
        run_gateway(tmp_path / "one", broker.port, settings, **sections) as one,
        run_gateway(tmp_path / "two", broker.port, settings, **sections) as two,
    ):
        made = Site((one, two))
        made.change(*read_text(f"{HOUSE}---{RULES}", "house").documents)
        made.change(
            appoint("q", 'qualified("ann")', "ann"),
            appoint("t", 'treats("ann", "p1")', "ann"),
            appoint("i", "invited", "ann"),
        )
        yield made
        for client in made.clients:
            client.close()


def resume(site: Site, name: str, at: int, *, answers: bool = True) -> RawClient:
    client = RawClient(site.gateways[at].port, answers=answers)
    site.clients.append(client)
    found = client.connect(name, clean=False, expiry=600, username="ann", password=b"a")
    assert not found.reason
    return client


@pytest.mark.parametrize("qos", [1, 2])
def test_what_the_broker_keeps_for_a_session_does_not_outlive_the_role(
    site: Site, qos: int
) -> None:
    """Queued while away, or sent and not acknowledged: resumed at either gateway, it is gone."""
    names = [f"ann:queued{qos}", f"ann:unacked{qos}"]
    for name in names:
        reader = resume(site, name, 0, answers=False)
        assert reader.subscribe("home/+/prescribe", qos=qos).reasons[0] < 3
        if name == names[0]:
            reader.close()
    device = site.login("dev")
    device.publish(TOPIC, b"secret", qos=qos)
    (unacked,) = reader.messages(1)
    assert unacked.payload == b"secret"
    reader.vanish()
    # To be sure that there is something to resume.
    again = resume(site, names[1], 1, answers=False)
    assert [it.payload for it in again.messages(1)] == [b"secret"]
    again.vanish()
    site.change(delete=("t",))
    for at, name in enumerate(names):
        late = resume(site, name, 1 - at)
        assert late.texts() == []
        device.publish(TOPIC, b"later", qos=qos)
        assert late.texts() == []
        late.close()


def test_no_group_and_no_other_gateway_keeps_a_role(site: Site) -> None:
    members = [site.login("ann", at) for at in (0, 1, 0)]
    for member in members:
        assert member.subscribe("$share/all/home/+/prescribe", qos=1).reasons[0] < 3
    device = site.login("dev")
    for _ in range(6):
        device.publish(TOPIC, b"1", qos=1)
    assert sum(len(it.texts()) for it in members) == 6
    site.change(delete=("q",))
    for _ in range(6):
        device.publish(TOPIC, b"2", qos=1)
    assert [it.texts() for it in members] == [[], [], []]
    joining = site.login("ann", 1)
    joining.subscribe("$share/all/home/+/prescribe", qos=1)
    device.publish(TOPIC, b"3", qos=1)
    assert joining.texts() == []


def test_writing_wills_and_commands_end_with_the_role(site: Site) -> None:
    reader = site.login("ann", 1)
    assert reader.subscribe("home/+/prescribe", qos=1).reasons[0] < 3
    ann = site.login("ann", will=Will(TOPIC, b"will", 1))
    assert not ann.publish(TOPIC, b"1", qos=1).failed
    assert not ann.publish("!RESERVE/home/p1/x{care}", b"", qos=1).failed
    assert reader.texts(1) == [(TOPIC, b"1")]
    site.change(delete=("t",))
    assert ann.publish(TOPIC, b"2", qos=1).reason == ReasonCode.NOT_AUTHORIZED
    assert ann.publish("!RESERVE/home/p1/x{}", b"", qos=1).reason == ReasonCode.NOT_AUTHORIZED
    ann.vanish()
    site.change(appoint("t", 'treats("ann", "p1")', "ann"))
    site.login("dev").publish(TOPIC, b"3", qos=1)
    assert reader.texts(1) == [(TOPIC, b"3")]


def test_an_untagged_condition_counts_for_one_connection(site: Site) -> None:
    """What was looked at when a role was activated is looked at again by the next session."""
    reader = site.login("ann", 1, roles=("visitor",))
    assert reader.subscribe("garden/#", qos=1).reasons[0] < 3
    chief = site.login("chief")
    site.change(delete=("i",))
    chief.publish("garden/x", b"1", qos=1)
    assert reader.texts(1) == [("garden/x", b"1")]
    _, reason = site.connect("ann", 0, roles=("visitor",))
    assert reason == ReasonCode.NOT_AUTHORIZED
    # The same client identifier at the other gateway ends the session, and its role with it.
    again = RawClient(site.gateways[0].port)
    site.clients.append(again)
    name = f"ann:{site.clients.index(reader) + 1}"
    assert not again.connect(name, username="ann", password=b"a").reason
    again.subscribe("garden/#", qos=1)
    chief.publish("garden/x", b"2", qos=1)
    assert again.texts() == []


def test_what_limits_a_role_with_values_limits_who_has_it(site: Site) -> None:
    reader, other, device = site.login("ann"), site.login("ann", 1), site.login("dev")
    for client in (reader, other):
        assert client.subscribe("home/+/prescribe", qos=1).reasons[0] < 3
    kept = {"filter": "home/#", "subject": 'role:treating-doctor("ann", _)', "deny": "true"}
    device.publish(TOPIC, b"1", qos=1)
    site.change(Document("restriction", "ann", kept))
    device.publish(TOPIC, b"2", qos=1)
    site.change(
        Document("restriction", "ann", {**kept, "subject": 'role:treating-doctor("bob", _)'})
    )
    device.publish(TOPIC, b"3", qos=1)
    for client in (reader, other):
        assert client.texts(2) == [(TOPIC, b"1"), (TOPIC, b"3")]


@pytest.mark.parametrize("who", ["role:visitor", "role:treating-doctor", "role:doctor(_)"])
def test_nobody_sheds_a_limit_by_choosing_other_roles(site: Site, who: str) -> None:
    """What limits a role limits whoever would have it; what exempts it, who uses it."""
    chief = site.login("chief")
    chosen = "doctor" if who == "role:visitor" else "visitor"
    sessions = [site.login("ann", at, roles=(chosen,)) for at in (0, 1)]
    for session in sessions:
        assert session.subscribe("news/#", qos=1).reasons[0] < 3
    rule = {"filter": "news/#", "deny": "true"}
    chief.publish("news/x", b"1", qos=1)
    site.change(Document("restriction", "limit", {**rule, "subject": who}))
    chief.publish("news/x", b"2", qos=1)
    site.change(Document("restriction", "limit", {**rule, "exempt": [who]}))
    chief.publish("news/x", b"3", qos=1)
    # Who is none any more is limited no more.
    site.change(Document("restriction", "limit", {**rule, "subject": who}), delete=("i", "q"))
    chief.publish("news/x", b"4", qos=1)
    for session in sessions:
        assert session.texts(2) == [("news/x", b"1"), ("news/x", b"4")]
