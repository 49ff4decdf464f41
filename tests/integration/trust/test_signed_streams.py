"""Three domains at one broker: credentials travel with messages, and each gateway verifies them.

PITO owns the type, the Met's cameras publish, the Congestion Charge Service reads. A forger has an
account at the broker, listens to everything, and repeats what it hears. On the topics of `plain`
payloads cross as they are, but by UUIDs; on those of `sealed`, sealed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import paho.mqtt.client as mqtt
import pytest
import yaml
from paho.mqtt.enums import CallbackAPIVersion

from penstock.client import ShownCapability
from penstock.components import MosquittoServer
from penstock.mqtt import V3, V5, Publish, ReasonCode, Will
from penstock.mqtt.codes import FAILURE
from penstock.trust.keys import generate_pem
from tests.support.commands import run_command
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient
from tests.support.trust.commands import key_of, run

pytestmark = pytest.mark.needs("mosquitto")
SIGHTING = {"numberplate": "AB12 CDE", "location": "Oxford Street 100"}
STREAMS = """\
kind: stream
name: plain
event_type: sighting/1
from: [plain/+/sighting]
signed: true
---
kind: stream
name: sealed
event_type: sighting/1
from: [sealed/+/sighting]
signed: true
sealed: attributes
"""
PATIENCE = 60.0
USER = "smith"
ALL = "type: sighting; action: publish | subscribe"
READS = "type: sighting; action: subscribe"


class Domain(NamedTuple):
    folder: Path
    gateway: GatewayThread
    key: str

    def run(self, *words: str) -> Any:
        return run(self.folder, *words)

    def login(self, stack: ExitStack, name: str, **options: Any) -> RawClient:
        version = options.pop("version", V5)
        client = stack.enter_context(RawClient(self.gateway.port, version=version))
        assert not client.connect(name, username=USER, password=b"pw", **options).reason
        return client

    def denials(self) -> list[str]:
        """Return why messages were not delivered, as the audit log tells."""
        shown = run_command(self.folder, "audit", "tail", "-n", "200", "--json")
        return [it for it in shown.stdout.splitlines() if "denied" in it]


class Police(NamedTuple):
    pito: Domain
    met: Domain
    charge: Domain
    broker: MosquittoServer
    files: Path

    def tap(self, stack: ExitStack, *filters: str) -> RawClient:
        client = stack.enter_context(RawClient(self.broker.port))
        assert not client.connect("").reason
        for it in filters:
            client.subscribe(it, qos=1)
        return client


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def police(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Police]:
    files = tmp_path_factory.mktemp("police")
    with ExitStack() as stack:
        broker = stack.enter_context(MosquittoServer(files / "broker"))
        coordinator = key_of(files / "pito")
        domains = []
        for name in ("pito", "met", "charge"):
            folder = files / name
            key = key_of(folder)
            passwords = write_passwords(
                folder / "passwords", {USER: "pw", "guest": "pw"}, {USER: "*", "guest": "*"}
            )
            settings = {"authentication": {"passwords": str(passwords)}}
            trust = {"network": "City", "coordinator": coordinator}
            running = run_gateway(folder, broker.port, settings, trust=trust)
            domains.append(Domain(folder, stack.enter_context(running), key))
        pito, met, charge = domains
        made = Police(pito, met, charge, broker, files)
        sighting, streams = str(files / "sighting.yaml"), files / "streams.yaml"
        streams.write_text(STREAMS)
        pito.run(
            "event-type", "create", "sighting", "numberplate:string", "location:string",
            "--name", "sighting/1", "-o", sighting,
        )  # fmt: skip
        for it in domains:
            it.run("apply", "-f", sighting)
            it.run("apply", "-f", str(streams))
        for it, grant in ((met, ALL), (charge, READS)):
            given, own = str(files / f"{it.folder.name}.yaml"), str(files / "user.yaml")
            asked = str(files / "asked.json")
            keys = str(files / f"{it.folder.name}-keys.json")
            pito.run("cert", "issue", grant, "--to", f"key:{it.key}", "--name", "held", "-o", given)
            it.run("apply", "-f", given)
            it.run(
                "cert", "delegate", "held", grant, "--to", f"user:{USER}", "--name", "u", "-o", own
            )
            it.run("apply", "-f", own)
            it.run("keys", "request", "sighting/1", "--capability", "held", "-o", asked)
            pito.run("keys", "admit", asked, "-o", keys)
            for member in (met, charge):
                member.run("keys", "take", keys)
        for it in domains:
            rules = it.gateway.gateway.rules
            stored = {(key["attribute"], key["generation"]) for key in it.run("keys", "list")}
            count = len(stored)
            wait_until(lambda rules=rules, count=count: len(list(rules.sealing.ring)) == count)  # type: ignore[misc]
            epoch = it.run("history", "--limit", "1")[0]["epoch"]
            wait_until(lambda rules=rules, epoch=epoch: rules.epoch == epoch)  # type: ignore[misc]
            wait_until(lambda rules=rules: rules.credentials.concerns("plain/1/sighting"))  # type: ignore[misc]
        yield made


def repeat(forger: RawClient, packet: Publish, **changes: Any) -> None:
    """Publish what was heard at the broker, properties included."""
    said = packet.properties
    options: dict[str, Any] = {
        "topic": packet.topic, "payload": packet.payload, "retain": False,
        "user": (*said.user, *said.reserved), **changes,
    }  # fmt: skip
    if said.content_type is not None:
        options.setdefault("content_type", said.content_type)
    forger.publish(options.pop("topic"), options.pop("payload"), qos=1, **options)


def reach(camera: RawClient, topic: str, reader: RawClient) -> None:
    """Publish until it arrives.

    A domain that joins opens what is sealed with keys made for it, and these count
    `trust.key_lead` after they were given out.
    """
    deadline = time.monotonic() + PATIENCE
    while not reader.texts(quiet=0.3):
        assert time.monotonic() < deadline, "nothing arrives"
        camera.publish(topic, json.dumps(SIGHTING).encode(), qos=1)


@pytest.mark.parametrize("topics", ["plain", "sealed"])
def test_what_was_heard_at_the_broker_is_of_no_use(police: Police, topics: str) -> None:
    topic = f"{topics}/1/sighting"
    with ExitStack() as stack:
        camera = police.met.login(stack, "camera")
        readers = [
            police.pito.login(stack, "pito"),
            police.met.login(stack, "met", version=V3),
            police.charge.login(stack, "charge"),
        ]
        for it in readers:
            it.subscribe(f"{topics}/#", qos=1)
        for it in readers:
            reach(camera, f"{topics}/0/sighting", it)
        for it in readers:
            it.texts(quiet=0.5)
        tap = police.tap(stack, f"{topics}/#")
        assert not camera.publish(topic, json.dumps(SIGHTING).encode(), qos=1).reason
        for it in readers:
            assert [json.loads(text) for _, text in it.texts(1)] == [SIGHTING]
        (heard,) = tap.messages(1)
        for word in ("numberplate", "location", *(SIGHTING.values() if topics == "sealed" else ())):
            assert word.encode() not in heard.payload
        forger = police.tap(stack)
        pairs = (*heard.properties.user, *heard.properties.reserved)
        repeat(forger, heard)
        repeat(forger, heard, topic=f"{topics}/2/sighting")
        repeat(forger, heard, retain=True)
        repeat(forger, heard, user=())
        repeat(forger, heard, user=(*pairs, ("penstock-for", "smith")))
        repeat(forger, heard, user=tuple(it for it in pairs if it[0] != "penstock-epoch"))
        repeat(forger, heard, payload=heard.payload[:-1])
        repeat(forger, heard, payload=json.dumps(SIGHTING).encode())
        late = police.charge.login(stack, "late")
        late.subscribe(f"{topics}/#", qos=1)
        again = SIGHTING | {"numberplate": "CD34 EFG"}
        camera.publish(topic, json.dumps(again).encode(), qos=1)
        for it in (*readers, late):
            assert [json.loads(text) for _, text in it.texts(1)] == [again], it
        assert not late.texts(quiet=0.5)
        tap.publish(topic, b"", retain=True)
    for reason in ("signed", "replayed"):
        wait_until(lambda it=reason: any(f'"{it}"' in line for line in police.charge.denials()))  # type: ignore[misc]


def test_wills_kept_and_queued_messages_are_vouched_for(police: Police) -> None:
    topic = "plain/kept/sighting"
    with ExitStack() as stack:
        sleeper = police.charge.login(stack, "sleeper", expiry=600)
        sleeper.subscribe("plain/kept/#", qos=1)
        sleeper.vanish()
        will = Will(topic, json.dumps(SIGHTING | {"location": "will"}).encode(), 1)
        camera = police.met.login(stack, "camera", will=will)
        tap = police.tap(stack, "plain/kept/#")
        for place in ("first", "second"):
            payload = json.dumps(SIGHTING | {"location": place}).encode()
            camera.publish(topic, payload, qos=1, retain=True)
        camera.vanish()
        heard = tap.messages(3)
        forger = police.tap(stack)
        # What was queued is queued once more, and the older of what was kept put in its place.
        for it in heard:
            repeat(forger, it)
        repeat(forger, heard[0], retain=True)
        back = police.charge.login(stack, "sleeper", clean=False, expiry=600)
        places = [json.loads(text)["location"] for _, text in back.texts(3, quiet=0.5)]
        assert places == ["first", "second", "will"]
        late = police.charge.login(stack, "late")
        late.subscribe("plain/kept/#", qos=1)
        assert not late.texts(quiet=0.5)
        tap.publish(topic, b"", retain=True)


def test_no_domain_ends_the_sessions_of_another_one(police: Police) -> None:
    """Both have a client of the same name; the third says what gateways say to each other."""
    with ExitStack() as stack:
        victim = police.met.login(stack, "sensor", expiry=600)
        victim.subscribe("home/#", qos=1)
        same = police.charge.login(stack, "sensor", expiry=600)
        same.subscribe("home/#", qos=1)
        forger = police.tap(stack, "#", "!penstock/#")
        forger.publish("!penstock/takeover", b"0" * 16 + b"f" * 16 + b"sensor", qos=1)
        thief = stack.enter_context(RawClient(police.broker.port))
        assert not thief.connect("sensor").reason
        thief.settle()
        police.met.login(stack, "publisher").publish("home/met", b"one", qos=1)
        assert victim.texts(1) == [("home/met", b"one")]
        assert same.texts(1) == [("home/met", b"one")]
        for it in (victim, same):
            it.settle()
            assert not it.closed
        # Of one domain, who comes later takes over, as ever.
        later = police.met.login(stack, "sensor", clean=False, expiry=600)
        victim.wait_closed()
        later.settle()
        # What a domain's gateways have in common, its own clients' names, is not told there.
        said = [it.payload for it in forger.messages(quiet=0.3) if it.topic != "home/met"]
        assert not [it for it in said if b"sensor" in it and not it.startswith(b"0" * 16)]


def test_a_stamp_of_another_domain_is_nobodys(police: Police) -> None:
    """Both domains have a user smith, and only ours owns the home topic."""
    for it in (police.met, police.charge):
        rules = police.files / "mine.yaml"
        rules.write_text(
            "{kind: restriction, name: mine, filter: mine/#, subject: anyone, "
            """permit: 't.user == "smith"'}"""
        )
        it.run("apply", "-f", str(rules))
    with ExitStack() as stack:
        reader = police.charge.login(stack, "reader")
        reader.subscribe("mine/#", qos=1)
        tap = police.tap(stack, "mine/#")
        police.charge.login(stack, "own").publish("mine/1", b"own", qos=1)
        assert reader.texts(1) == [("mine/1", b"own")]
        (heard,) = tap.messages(1)
        police.met.login(stack, "foreign").publish("mine/1", b"foreign", qos=1)
        repeat(tap, heard)
        repeat(tap, heard, payload=b"forged")
        stamp = tuple(it for it in heard.properties.reserved if it[0] != "penstock-credential")
        repeat(tap, heard, payload=b"forged", user=stamp)
        police.charge.login(stack, "own").publish("mine/1", b"again", qos=1)
        assert reader.texts(1) == [("mine/1", b"again")]


def show(police: Police, grant: str, **options: Any) -> tuple[ShownCapability, str]:
    """Issue a capability of PITO to a key that a camera made itself."""
    pem = generate_pem()
    camera = ShownCapability(pem, "", domain=police.met.key, **options)
    file = police.files / f"{camera.key[:8]}.yaml"
    police.pito.run(
        "cert", "issue", grant, "--to", f"key:{camera.key}", "--name", "own", "-o", str(file)
    )
    token = yaml.safe_load(file.read_text())["token"]
    return ShownCapability(pem, token, domain=police.met.key, **options), str(file)


def test_a_client_that_proves_to_have_its_key_publishes_and_others_verify_it(
    police: Police,
) -> None:
    """The user `guest` has no capability at the Met; the camera has one of its own."""
    topic = "plain/own/sighting"
    camera, file = show(police, "type: sighting; action: publish; attributes: numberplate")
    plate = {"numberplate": "AB12 CDE"}
    with ExitStack() as stack:
        reader = police.charge.login(stack, "reader")
        reader.subscribe("plain/own/#", qos=1)

        def connect(name: str, pairs: list[tuple[str, str]], domain: Domain = police.met) -> Any:
            client = stack.enter_context(RawClient(domain.gateway.port))
            told = client.connect(name, username="guest", password=b"pw", user=tuple(pairs))
            return client, told

        plain, told = connect("plain", [])
        assert not told.reason
        assert plain.publish(topic, json.dumps(plate).encode(), qos=1).reason >= FAILURE
        pairs = camera.pairs(user="guest", client="c7")
        client, told = connect("c7", pairs)
        assert not told.reason
        assert not client.publish(topic, json.dumps(plate).encode(), qos=1).reason
        assert client.publish(topic, json.dumps(SIGHTING).encode(), qos=1).reason >= FAILURE
        assert [json.loads(text) for _, text in reader.texts(1)] == [plate]
        # What was shown once is of no use: not again, not at another domain, nor for others.
        other, _ = show(police, "type: sighting; action: publish")
        for name, wrong in (
            ("c7", pairs),
            ("c8", camera.pairs(user="guest", client="c7")),
            ("c7", camera.pairs(user="smith", client="c7")),
            ("c7", [pairs[0], other.pairs(user="guest", client="c7")[1]]),
            ("c7", [pairs[0]]),
            ("c7", [*camera.pairs(user="guest", client="c7"), pairs[0]]),
        ):
            _, told = connect(name, wrong)
            assert told.reason == ReasonCode.NOT_AUTHORIZED, wrong
        old, _ = show(police, "type: sighting; action: publish", clock=lambda: time.time() - 70)
        _, told = connect("c7", old.pairs(user="guest", client="c7"))
        assert told.reason == ReasonCode.NOT_AUTHORIZED
        _, told = connect("c7", camera.pairs(user="guest", client="c7"), police.charge)
        assert told.reason == ReasonCode.NOT_AUTHORIZED
        # Who connects without it has it no more.
        again, told = connect("c7", [])
        assert not told.reason
        assert again.publish(topic, json.dumps(plate).encode(), qos=1).reason >= FAILURE
        # Taken back while it is shown.
        back, told = connect("c9", camera.pairs(user="guest", client="c9"))
        assert not back.publish(topic, json.dumps(plate).encode(), qos=1).reason
        assert reader.texts(1)
        revoked = str(police.files / "revoked-own.yaml")
        police.pito.run("cert", "revoke", file, "-o", revoked)
        police.met.run("apply", "-f", revoked)
        wait_until(lambda: back.publish(topic, json.dumps(plate).encode(), qos=1).reason >= FAILURE)
        _, told = connect("c7", camera.pairs(user="guest", client="c7"))
        assert told.reason == ReasonCode.NOT_AUTHORIZED


def test_a_paho_client_proves_anew_whenever_it_connects(police: Police) -> None:
    camera, _ = show(police, "type: sighting; action: publish")
    seen: list[int] = []
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="paho", protocol=mqtt.MQTTv5)
    client.username_pw_set("guest", "pw")
    client.on_connect = lambda *it: seen.append(it[3].value)
    camera.follow(client, user="guest")
    client.connect("127.0.0.1", police.met.gateway.port, properties=camera.properties)
    client.loop_start()
    try:
        wait_until(lambda: len(seen) == 1)
        client.reconnect()
        wait_until(lambda: len(seen) == 2)
    finally:
        client.disconnect()
        client.loop_stop()
    assert seen == [0, 0]


def test_a_capability_that_the_owner_takes_back_ends_what_others_believe(police: Police) -> None:
    """Last in this module: nobody at the Met may publish any more."""
    topic = "plain/revoked/sighting"
    with ExitStack() as stack:
        reader = police.charge.login(stack, "reader")
        reader.subscribe("plain/revoked/#", qos=1)
        camera = police.met.login(stack, "camera")
        camera.publish(topic, json.dumps(SIGHTING).encode(), qos=1)
        assert reader.texts(1)
        revoked = str(police.files / "revoked.yaml")
        police.pito.run("cert", "revoke", str(police.files / "met.yaml"), "-o", revoked)
        police.charge.run("apply", "-f", revoked)
        # The Met's own gateway has not heard of it, and vouches for what nobody believes.
        rules = police.charge.gateway.gateway.rules
        key = ("revocation-list", police.pito.key)
        wait_until(
            lambda: rules.snapshot and any(tuple(it) == key for it in rules.snapshot.documents)
        )
        assert not camera.publish(topic, json.dumps(SIGHTING).encode(), qos=1).reason
        assert not reader.texts(quiet=1.0)
