"""Anonymous clients: nobody gets what is somebody's by choosing a client identifier.

`desk` belongs to the user `ward`; `kiosk` belongs to nobody, and definitions name both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.mqtt import ReasonCode, Will
from penstock.mqtt.codes import FAILURE
from tests.support.commands import run_command
from tests.support.gateway.harness import GatewayThread, run_gateway, write_config
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient
from tests.support.gateway.ward import define

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

Enter = Callable[..., RawClient]

DEFINITIONS = """
kind: enforcement
name: default
policies: required
---
kind: vocabulary
name: house
subject: {cid: string, rank: int, uid: string}
---
kind: group
name: terminals
members: [client:desk, client:kiosk]
---
kind: right
name: terminals
subjects: [client:desk, client:kiosk]
reserve: [own/#]
administer: true
---
kind: attributes
name: client:desk
values: {rank: 1}
---
kind: attributes
name: client:kiosk
values: {rank: 1}
on_behalf_of: pat
---
kind: preference
name: pat
user: pat
filter: worn/#
when: s.uid == "ward"
---
{kind: policy, name: desk, subject: "client:desk", filter: own/client, allow: read}
---
{kind: policy, name: kiosk, subject: "client:kiosk", filter: own/client, allow: read}
---
{kind: policy, name: group, subject: "group:terminals", filter: own/group, allow: read}
---
{kind: policy, name: rank, filter: own/rank, allow: read, when: s.rank == 1}
---
{kind: policy, name: cid, filter: own/cid, allow: read, when: 's.cid in ["desk", "kiosk"]'}
---
{kind: policy, name: others, filter: own/cid, allow: read, when: 's.cid != "desk" && s.rank == 1'}
---
{kind: policy, name: sender, filter: sent, allow: read, when: 't.clientId in ["desk", "kiosk"]'}
---
{kind: policy, name: worn, filter: worn/#, allow: read}
---
{kind: policy, name: write-desk, subject: "client:desk", filter: told/#, allow: write}
---
{kind: policy, name: write-kiosk, subject: "client:kiosk", filter: told/#, allow: write}
---
{kind: policy, name: write-own, filter: own/#, allow: write}
---
{kind: policy, name: write-sent, filter: sent, allow: write}
---
{kind: policy, name: write-worn, filter: worn/#, allow: write}
---
{kind: policy, name: told, filter: told/#, allow: read}
"""
OWN = ("own/client", "own/group", "own/rank", "own/cid")


@pytest.fixture(scope="module")
def gateway(
    broker: MosquittoServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayThread]:
    folder = tmp_path_factory.mktemp("anonymous")
    path = write_passwords(folder / "passwords", {"ward": "w"}, {"ward": "desk"})
    settings: dict[str, Any] = {
        "open_mode": False,
        "authentication": {"passwords": str(path), "anonymous": True},
    }
    define(write_config(folder, broker.port, settings), DEFINITIONS)
    with run_gateway(folder, broker.port, settings) as running:
        yield running


@pytest.fixture
def enter(gateway: GatewayThread) -> Iterator[Enter]:
    """Connect: `desk` as a user, everybody else without a name."""
    with ExitStack() as stack:

        def connect(client_id: str, **options: Any) -> RawClient:
            client = stack.enter_context(RawClient(gateway.port))
            if client_id in {"desk", "ward:other"}:
                options |= {"username": "ward", "password": b"w"}
            assert client.connect(client_id, **options).reason == 0
            return client

        yield connect


def test_an_identifier_alone_reads_nothing_of_what_definitions_give_it(enter: Enter) -> None:
    desk, kiosk, writer = enter("desk"), enter("kiosk"), enter("writer")
    for client in (desk, kiosk):
        client.subscribe("own/#", qos=1)
    for topic in OWN:
        assert writer.publish(topic, b"x", qos=1).reason < FAILURE
    assert [topic for topic, _ in desk.texts(len(OWN))] == list(OWN)
    assert kiosk.texts() == []


def test_an_identifier_alone_writes_and_commands_nothing(enter: Enter) -> None:
    desk, kiosk = enter("desk"), enter("kiosk")
    assert desk.publish("told/x", b"1", qos=1).reason < FAILURE
    assert kiosk.publish("told/x", b"2", qos=1).reason == ReasonCode.NOT_AUTHORIZED
    for command in ("!RESERVE/own/x{a}", "!PBAC/SET/hybrid_tag"):
        assert kiosk.publish(command, b"true", qos=1).reason == ReasonCode.NOT_AUTHORIZED, command
        assert desk.publish(command, b"true", qos=1).reason < FAILURE, command
    assert desk.publish("!RESERVE/own/x{}", qos=1).reason < FAILURE


def test_the_will_of_an_identifier_alone_is_not_sent(enter: Enter) -> None:
    reader = enter("reader")
    reader.subscribe("told/#", qos=1)
    enter("kiosk", will=Will("told/will", b"kiosk", qos=1)).vanish()
    enter("desk", will=Will("told/will", b"desk", qos=1)).vanish()
    assert reader.texts(1) == [("told/will", b"desk")]
    assert reader.texts() == []


def test_conditions_do_not_see_the_identifier_of_an_anonymous_publisher(enter: Enter) -> None:
    reader = enter("reader")
    reader.subscribe("sent", qos=1)
    assert enter("kiosk").publish("sent", b"kiosk", qos=1).reason < FAILURE
    assert enter("desk").publish("sent", b"desk", qos=1).reason < FAILURE
    assert reader.texts(1) == [("sent", b"desk")]
    assert reader.texts() == []


def test_a_preference_limits_what_the_wearers_sensor_sends_without_a_name(enter: Enter) -> None:
    """What limits counts on the word of a client: a mere claim must not open anything."""
    ward, reader = enter("ward:other"), enter("reader")
    for client in (ward, reader):
        client.subscribe("worn/#", qos=1)
    assert enter("kiosk").publish("worn/pulse", b"pat's", qos=1).reason < FAILURE
    assert enter("other").publish("worn/pulse", b"other's", qos=1).reason < FAILURE
    assert ward.texts(2) == [("worn/pulse", b"pat's"), ("worn/pulse", b"other's")]
    assert reader.texts(1) == [("worn/pulse", b"other's")]
    assert reader.texts() == []


def test_a_kept_session_of_an_identifier_alone_holds_nothing_of_anybody(enter: Enter) -> None:
    kiosk = enter("kiosk", expiry=60)
    kiosk.subscribe("own/#", qos=1)
    kiosk.close()
    writer = enter("writer")
    for topic in OWN:
        writer.publish(topic, b"x", qos=1)
    assert enter("kiosk", clean=False, expiry=60).texts() == []


def test_check_says_what_the_gateway_does(gateway: GatewayThread) -> None:
    folder = Path(str(gateway.config.file)).parent

    def ask(*words: str) -> tuple[int, str]:
        told = run_command(folder, "check", "--topic", "own/client", *words)
        return told.returncode, " ".join(told.stdout.split())

    assert ask("--client", "desk", "--subject", "ward")[0] == 0
    for nobody in ((), ("--subject", "anonymous")):
        code, text = ask("--client", "kiosk", *nobody)
        assert code == 1
        assert "anybody can choose a client identifier" in text
