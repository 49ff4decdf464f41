"""Keys that come and change by themselves: through the broker that nobody trusts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from penstock.components import MosquittoServer, find, processes
from penstock.mqtt.codes import FAILURE
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.trust.commands import key_of
from tests.support.trust.police import (
    SIGHTING,
    STREAM,
    TOPIC,
    USER,
    Domain,
    connect,
    open_domain,
    wait_until,
)

pytestmark = pytest.mark.needs("mosquitto")
ALL = "type: sighting; action: publish | subscribe"
CONNECT = "network: City; action: connect | install"


class City:
    """PITO owns the type and coordinates; whoever is let in has its keys by itself."""

    def __init__(self, broker: MosquittoServer, folder: Path, stack: ExitStack) -> None:
        self.broker, self.folder, self.stack = broker, folder, stack
        self.trust = {
            "network": "City", "coordinator": key_of(folder / "pito"),
            "refresh": "1s", "key_lead": "4s",
        }  # fmt: skip
        self.pito = self.open("pito")
        made = str(folder / "sighting.yaml")
        self.pito.run(
            "event-type", "create", "sighting", "numberplate:string", "location:string",
            "speed:double?", "--name", "sighting/1", "-o", made,
        )  # fmt: skip
        self.pito.run("apply", "-f", made)

    def open(self, name: str, port: int | None = None) -> Domain:
        port = port or self.broker.port
        return open_domain(self.stack, self.folder / name, port, trust=self.trust)

    def let_in(self, name: str, *grants: str, port: int | None = None) -> Domain:
        """Give a new domain one capability as a file; all else comes by itself."""
        folder = self.folder / name
        key, file = key_of(folder), str(self.folder / f"{name}.yaml")
        words = ("--to", f"key:{key}", "--name", "rights", "-o", file)
        self.pito.run("cert", "issue", CONNECT, *grants, *words)
        domain = self.open(name, port)
        domain.run("apply", "-f", file)
        wait_until(lambda: domain.run("get", "event-type"))
        stream = folder / "stream.yaml"
        stream.write_text(STREAM.format(sealed="attributes"))
        domain.run("apply", "-f", str(stream))
        own = str(folder / "user.yaml")
        domain.run("cert", "delegate", "rights", *grants, "--to", f"user:{USER}", "--name", "u",
                   "-o", own)  # fmt: skip
        domain.run("apply", "-f", own)
        return domain

    def wait_for_start(self, domain: Domain) -> None:
        """Wait until all keys that a gateway holds count."""
        sealing = domain.gateway.gateway.rules.sealing
        newest = max(it.start for it in domain.gateway.do(lambda: list(sealing.ring)))
        wait_until(lambda: sealing._clock() > newest)

    def generations(self, domain: Domain) -> dict[str, int]:
        """Return the newest generation that a gateway holds of each attribute, by its UUID."""
        ring = domain.gateway.gateway.rules.sealing.ring
        found: dict[str, int] = {}
        for key in domain.gateway.do(lambda: list(ring)):
            name = str(key.resource)
            found[name] = max(found.get(name, 0), key.generation)
        return found


@pytest.fixture
def city(mosquitto: MosquittoServer, tmp_path: Path) -> Iterator[City]:
    with ExitStack() as stack:
        yield City(mosquitto, tmp_path, stack)


@contextmanager
def bridge(folder: Path, broker: MosquittoServer) -> Iterator[int]:
    """Run a second broker with a bridge to the first, in MQTT 5; yield its port."""
    folder.mkdir()
    port = processes.free_port()
    configuration = folder / "mosquitto.conf"
    configuration.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nuser root\n"
        f"persistence true\npersistence_location {folder}/\n"
        f"connection city\naddress 127.0.0.1:{broker.port}\nbridge_protocol_version mqttv50\n"
        "notifications false\nrestart_timeout 1\ntopic # both 1\n"
    )
    command = [str(find("mosquitto").path), "-c", str(configuration)]
    log = folder / "mosquitto.log"
    process = processes.start(command, log=log, ready=lambda: processes.accepts(port))
    try:
        yield port
    finally:
        processes.stop(process)


def speeds(client: Any, count: int) -> list[float]:
    return [json.loads(text)["speed"] for _, text in client.texts(count)]


def test_keys_come_and_change_by_themselves_and_no_message_is_lost(city: City) -> None:
    met = city.let_in("met", ALL)
    wait_until(lambda: len(city.generations(met)) == 4)
    other = city.let_in("other", "type: sighting; action: subscribe; attributes: numberplate")
    wait_until(lambda: len(city.generations(other)) == 1)
    # Who joins reads from the next key on.
    city.wait_for_start(other)
    with ExitStack() as stack:
        reader = connect(stack, met.gateway.port, "reader")
        plates = connect(stack, other.gateway.port, "plates")
        for it in (reader, plates):
            it.subscribe("cameras/#", qos=1)
        camera = connect(stack, met.gateway.port, "camera")

        def publish(number: int) -> None:
            payload = json.dumps(SIGHTING | {"speed": float(number)}).encode()
            assert camera.publish(TOPIC, payload, qos=1).reason < FAILURE

        # The key changes while messages are on their way.
        before = city.generations(met)
        number = 0
        city.pito.run("keys", "refresh", "--now", "-o", str(city.folder / "unused"))
        sealing = met.gateway.gateway.rules.sealing
        held = next(iter(before))

        def current() -> int:
            return sealing.ring.newest(UUID(held), sealing._clock()).generation

        started = current()
        while met.gateway.do(current) == started:
            publish(number)
            number += 1
            time.sleep(0.02)
        for _ in range(5):
            publish(number)
            number += 1
        assert speeds(reader, number) == [float(it) for it in range(number)]
        plate = {"numberplate": SIGHTING["numberplate"]}
        assert [json.loads(text) for _, text in plates.texts(number)] == [plate] * number


def test_who_is_expelled_stays_out_and_whose_right_is_revoked_goes(city: City) -> None:
    met, other = city.let_in("met", ALL), city.let_in("other", ALL)
    for it in (met, other):
        wait_until(lambda it=it: len(city.generations(it)) == 4)  # type: ignore[misc]
    wait_until(lambda: city.generations(met) == city.generations(other))
    held = city.generations(met)
    city.pito.run("keys", "expel", other.key, "-o", str(city.folder / "unused"))
    wait_until(lambda: all(city.generations(met)[it] > number for it, number in held.items()))
    # It asks again and again, and gets nothing.
    asked = other.gateway.gateway._exchange
    assert asked is not None
    first = dict(asked._asked)
    wait_until(lambda: asked._asked and asked._asked != first)
    assert city.generations(other) == held
    # A capability that is revoked ends with the next keys, which come at once.
    before = city.generations(met)
    wait_until(lambda: city.generations(city.pito) == before)
    city.pito.run("cert", "revoke", str(city.folder / "met.yaml"))
    wait_until(lambda: all(city.generations(city.pito)[it] > n for it, n in before.items()))
    assert city.generations(met) == before


def test_where_one_manager_ends_another_goes_on(city: City) -> None:
    first = city.pito.gateway
    second: GatewayThread = city.stack.enter_context(
        run_gateway(
            city.pito.folder, city.broker.port,
            {"authentication": {"passwords": str(city.pito.folder / "passwords")}},
            trust=city.trust,
        )
    )  # fmt: skip
    met = city.let_in("met", ALL)
    wait_until(lambda: len(city.generations(met)) == 4)
    first.stop()
    late = city.let_in("late", ALL)
    wait_until(lambda: len(city.generations(late)) == 4)
    assert second.gateway.domains is not None
    wait_until(lambda: city.generations(met) == city.generations(late))
    with ExitStack() as stack:
        reader = connect(stack, late.gateway.port, "reader")
        reader.subscribe("cameras/#", qos=1)
        camera = connect(stack, met.gateway.port, "camera")
        city.wait_for_start(late)
        assert camera.publish(TOPIC, json.dumps(SIGHTING).encode(), qos=1).reason < FAILURE
        assert [json.loads(text) for _, text in reader.texts(1)] == [SIGHTING]


def test_domains_at_two_brokers_with_a_bridge(city: City) -> None:
    port = city.stack.enter_context(bridge(city.folder / "bridge", city.broker))
    met = city.let_in("met", ALL)
    other = city.let_in("other", "type: sighting; action: subscribe; attributes: numberplate",
                        port=port)  # fmt: skip
    wait_until(lambda: len(city.generations(met)) == 4)
    wait_until(lambda: len(city.generations(other)) == 1)
    wait_until(lambda: all(city.generations(met)[it] >= n
                           for it, n in city.generations(other).items()))  # fmt: skip
    city.wait_for_start(other)
    plate = {"numberplate": SIGHTING["numberplate"]}
    with ExitStack() as stack:
        tap = connect(stack, port, "tap")
        reader = connect(stack, other.gateway.port, "reader")
        for it in (tap, reader):
            it.subscribe("cameras/#", qos=1)
        camera = connect(stack, met.gateway.port, "camera")
        for retain in (True, False):
            payload = json.dumps(SIGHTING).encode()
            assert camera.publish(TOPIC, payload, qos=1, retain=retain).reason < FAILURE
        assert [json.loads(text) for _, text in reader.texts(2)] == [plate] * 2
        crossed = b"".join(payload for _, payload in tap.texts(2))
        assert len(crossed) > 200
        for value in ("AB12", "Oxford Street 100", "31.5", "numberplate", "location"):
            assert value.encode() not in crossed
        late = connect(stack, other.gateway.port, "late")
        late.subscribe("cameras/#", qos=1)
        assert [json.loads(text) for _, text in late.texts(1)] == [plate]
        # Expelled over the bridge as at one broker.
        held = city.generations(met)
        city.pito.run("keys", "expel", other.key, "-o", str(city.folder / "unused"))
        wait_until(lambda: all(city.generations(met)[it] > n for it, n in held.items()
                               if it in city.generations(other)))  # fmt: skip
        camera.publish(TOPIC, json.dumps(SIGHTING).encode(), qos=1)
        tap.texts(1)
        assert not reader.texts(quiet=0.5)
