"""Three domains at one broker that nobody trusts: what each reads, and what the broker sees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.components import MosquittoServer
from penstock.mqtt import V3, Will
from penstock.mqtt.codes import FAILURE
from penstock.trust.sealed_messages import read_sealed
from tests.support.commands import run_command
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.trust.police import (
    SIGHTING,
    STREAM,
    TOPIC,
    Police,
    connect,
    open_police,
    wait_until,
)

pytestmark = pytest.mark.needs("mosquitto")


@pytest.fixture(params=["whole", "attributes"])
def police(
    request: pytest.FixtureRequest, mosquitto: MosquittoServer, tmp_path: Path
) -> Iterator[Police]:
    with open_police(mosquitto, tmp_path, STREAM.format(sealed=request.param)) as made:
        yield made


@pytest.mark.parametrize("police", ["attributes"], indirect=True)
def test_each_domain_reads_the_attributes_that_it_has_keys_for(police: Police) -> None:
    police.admit(
        police.charge, "charge", "type: sighting; action: subscribe; attributes: numberplate"
    )
    police.met.settle()
    assert police.charge.settle() == 1
    police.pito.settle()
    with ExitStack() as stack:
        tap = connect(stack, police.broker.port, "tap")
        tap.subscribe("cameras/#", qos=1)
        met = connect(stack, police.met.gateway.port, "met", version=V3)
        charge = connect(stack, police.charge.gateway.port, "charge")
        pito = connect(stack, police.pito.gateway.port, "pito")
        for reader in (met, charge, pito):
            reader.subscribe("cameras/#", qos=1)
        will = Will(TOPIC, json.dumps(SIGHTING | {"speed": 0.0}).encode(), 1)
        camera = connect(stack, police.met.gateway.port, "camera", will=will)
        for qos in (0, 1, 2):
            camera.publish(TOPIC, json.dumps(SIGHTING).encode(), qos=qos, retain=qos == 1)
        camera.vanish()
        seen = {it: [json.loads(text) for _, text in it.texts(4)] for it in (met, charge, pito)}
        plate = {"numberplate": SIGHTING["numberplate"]}
        assert seen[charge] == [plate] * 4
        assert seen[met] == [SIGHTING] * 3 + [SIGHTING | {"speed": 0.0}]
        # The owner's own gateways have keys of groups that somebody is in.
        assert seen[pito] == seen[met]
        late = connect(stack, police.charge.gateway.port, "late")
        late.subscribe("cameras/#", qos=1)
        assert [json.loads(text) for _, text in late.texts(1)] == [plate]
        crossed = b"".join(payload for _, payload in tap.texts(4))
        for value in ("AB12", "Oxford Street 100", "31.5", "numberplate", "location"):
            assert value.encode() not in crossed


def test_without_keys_nothing_is_read_and_nothing_is_published(police: Police) -> None:
    with ExitStack() as stack:
        reader = connect(stack, police.charge.gateway.port, "reader")
        reader.subscribe("cameras/#", qos=1)
        own = connect(stack, police.met.gateway.port, "own")
        own.subscribe("cameras/#", qos=1)
        police.met.settle()
        tap = connect(stack, police.broker.port, "tap")
        tap.subscribe("cameras/#", qos=1)
        camera = connect(stack, police.met.gateway.port, "camera")
        camera.publish(TOPIC, json.dumps(SIGHTING).encode(), qos=1)
        ((_, sealed),) = tap.texts(1)
        assert [json.loads(text) for _, text in own.texts(1)] == [SIGHTING]
        # Who has no key cannot publish there, and neither clear text nor a copy passes.
        refused = connect(stack, police.charge.gateway.port, "refused")
        assert refused.publish(TOPIC, json.dumps(SIGHTING).encode(), qos=1).reason
        forger = connect(stack, police.broker.port, "forger")
        forger.publish(TOPIC, json.dumps(SIGHTING).encode(), qos=1)
        forger.publish("cameras/other/sighting", sealed, qos=1)
        forger.publish(TOPIC, sealed[:-1] + bytes([sealed[-1] ^ 1]), qos=1)
        camera.publish(TOPIC, json.dumps(SIGHTING | {"speed": 1.0}).encode(), qos=1)
        assert [json.loads(text) for _, text in own.texts(1)] == [SIGHTING | {"speed": 1.0}]
        assert not reader.texts(quiet=1.0)


def test_an_expelled_domain_reads_nothing_that_comes_later(police: Police) -> None:
    police.admit(police.charge, "charge", "type: sighting; action: subscribe")
    police.charge.settle()
    before = police.met.settle()
    with ExitStack() as stack:
        reader = connect(stack, police.charge.gateway.port, "reader")
        own = connect(stack, police.met.gateway.port, "own")
        for it in (reader, own):
            it.subscribe("cameras/#", qos=1)
        camera = connect(stack, police.met.gateway.port, "camera")
        camera.publish(TOPIC, json.dumps(SIGHTING).encode(), qos=1)
        assert reader.texts(1)
        assert own.texts(1)
        groups = len({it["attribute"] for it in police.met.run("keys", "list")})
        said = police.pito.run(
            "keys", "expel", police.charge.key, "-o", str(police.exchanged / "expelled.json")
        )
        assert "still reads what was sealed before" in said["left"]
        assert police.pass_on("expelled.json", police.met)["taken"] == groups
        file = str(police.exchanged / "expelled.json")
        taken = run_command(police.charge.folder, "keys", "take", file, "--json")
        assert json.loads(taken.stdout)["taken"] == 0
        assert police.met.settle() > before
        camera.publish(TOPIC, json.dumps(SIGHTING | {"speed": 1.0}).encode(), qos=1)
        assert [json.loads(text) for _, text in own.texts(1)] == [SIGHTING | {"speed": 1.0}]
        assert not reader.texts(quiet=1.0)


@pytest.mark.parametrize("police", ["whole"], indirect=True)
def test_a_revoked_capability_ends_with_the_next_keys_and_old_files_change_nothing(
    police: Police,
) -> None:
    police.admit(police.charge, "charge", "type: sighting; action: subscribe")
    files = police.exchanged
    held = {it["generation"] for it in police.met.run("keys", "list")}
    police.pito.run("cert", "revoke", str(files / "charge.yaml"), "-o", str(files / "revoked.yaml"))
    police.pito.run("keys", "refresh", "-o", str(files / "new.json"))
    assert police.pass_on("new.json", police.met)["taken"]
    taken = run_command(police.charge.folder, "keys", "take", str(files / "new.json"), "--json")
    assert json.loads(taken.stdout)["taken"] == 0
    newest = {it["generation"] for it in police.met.run("keys", "list")}
    assert max(newest) > max(held)
    # What was taken before, and what is not the latest, leaves a member where it is.
    for name in ("met-keys.json", "charge-keys.json", "new.json"):
        police.pass_on(name, police.met)
        assert {it["generation"] for it in police.met.run("keys", "list")} == newest
    police.pito.run("keys", "refresh", "--now", "-o", str(files / "newer.json"))
    assert police.pass_on("newer.json", police.met)["taken"]


@pytest.mark.parametrize("police", ["attributes"], indirect=True)
def test_who_may_not_have_keys_gets_none(police: Police) -> None:
    files = police.exchanged
    to, asked = f"key:{police.charge.key}", str(files / "asked.json")
    # A key would open, and seal, all other values, too.
    fixed = "type: sighting; action: publish | subscribe; attributes: numberplate = 'AB12 CDE'"
    police.pito.run(
        "cert", "issue", fixed, "--to", to, "--name", "one", "-o", str(files / "one.yaml")
    )
    police.charge.run("apply", "-f", str(files / "one.yaml"))
    for capability, why in (
        ("one", "gives no right to a key"),
        # Another domain's capability is of no use.
        (str(files / "met.yaml"), "for somebody else"),
    ):
        police.charge.run("keys", "request", "sighting/1", "--capability", capability, "-o", asked)
        words = ("keys", "admit", asked, "-o", str(files / "out.json"))
        refused = run_command(police.pito.folder, *words)
        assert refused.returncode == 1
        assert why in refused.stderr
    document = Path(asked).read_text()
    Path(asked).write_text(document.replace(police.charge.key, police.met.key))
    forged = run_command(police.pito.folder, *words)
    assert forged.returncode == 2
    assert "not signed" in forged.stderr


def test_a_message_opens_with_the_properties_that_it_was_published_with_only(
    police: Police,
) -> None:
    with ExitStack() as stack:
        own = connect(stack, police.met.gateway.port, "own")
        own.subscribe("cameras/#", qos=1)
        police.met.settle()
        tap = connect(stack, police.broker.port, "tap")
        tap.subscribe("cameras/#", qos=1)
        camera = connect(stack, police.met.gateway.port, "camera")
        narrow = {"user": (("purpose-aip", "tolls"), ("shift", "night"))}
        payload = json.dumps(SIGHTING).encode()
        assert not camera.publish(TOPIC, payload, qos=1, content_type="json", **narrow).reason
        (crossed,) = tap.messages(1)
        own.texts()
        pairs = (*crossed.properties.user, *crossed.properties.reserved)
        assert ("penstock-aip", "tolls") in pairs
        forger = connect(stack, police.broker.port, "forger")
        changed = [
            {"user": tuple(it for it in pairs if it[0] != "penstock-aip"), "content_type": "json"},
            {"user": (*pairs, ("penstock-for", "smith")), "content_type": "json"},
            {"user": tuple(reversed(pairs)), "content_type": "json"},
            {"user": pairs, "content_type": "text"},
            {"user": pairs, "content_type": "json", "response_topic": "cameras/mine"},
            {},
        ]
        for properties in changed:
            forger.publish(TOPIC, crossed.payload, qos=1, **properties)
        camera.publish(TOPIC, json.dumps(SIGHTING | {"speed": 1.0}).encode(), qos=1)
        assert [json.loads(text)["speed"] for _, text in own.texts(1)] == [1.0]


def test_nothing_plain_is_on_the_brokers_disk_and_no_nonce_comes_twice(tmp_path: Path) -> None:
    """Retained, queued and will messages, of two gateways of one domain, one begun anew."""
    broker = MosquittoServer(tmp_path / "broker", persistent=True)
    payload = json.dumps(SIGHTING).encode()
    with ExitStack() as stack:
        stack.enter_context(broker)
        police = stack.enter_context(
            open_police(broker, tmp_path, STREAM.format(sealed="attributes"))
        )
        police.met.settle()
        settings = {"authentication": {"passwords": str(police.met.folder / "passwords")}}
        trust = {"key_lead": "0s"}

        def run_second() -> GatewayThread:
            made = run_gateway(police.met.folder, broker.port, settings, trust=trust)
            return stack.enter_context(made)

        tap = connect(stack, broker.port, "tap")
        tap.subscribe("cameras/#", qos=1)
        sleeper = connect(stack, police.met.gateway.port, "sleeper", clean=False, expiry=3600)
        # What a content filter asks for stays with the gateway; the broker keeps subscriptions.
        asked = (("content-filter", "r.numberplate == 'AB12 CDE'"),)
        assert sleeper.subscribe("cameras/+/sighting", qos=1, user=asked).reasons == (1,)
        sleeper.vanish()
        second = run_second()
        ports = [police.met.gateway.port, second.port]
        for number in range(2):
            for at, port in enumerate(ports):
                will = Will(TOPIC, payload, 1)
                camera = connect(stack, port, f"camera-{number}-{at}", will=will)
                wait_until(
                    lambda camera=camera: (
                        camera.publish(TOPIC, payload, qos=1, retain=True).reason  # type: ignore[misc]
                        < FAILURE
                    )
                )
                camera.vanish()
            if not number:
                second.stop()
                ports[1] = run_second().port
        crossed = [read_sealed(it) for _, it in tap.texts(8)]
        assert len({(it.sealer, it.number) for it in crossed}) == 8
        assert len({it.sealer for it in crossed}) == 3
        # Mosquitto writes all that it keeps when it ends.
        broker.stop()
        held = b"".join(it.read_bytes() for it in (tmp_path / "broker").rglob("*.db"))
        broker.start()
    assert held.count(TOPIC.encode()) > 1
    assert b"cameras/+/sighting" in held
    assert held.count(crossed[0].head[:21]) >= 8
    for value in ("AB12", "Oxford Street 100", "31.5", "numberplate", "location"):
        assert value.encode() not in held
