"""Domains at one broker: two data folders that share nothing but the broker's address.

PITO coordinates the network and owns a type; the Met was let in. Eve runs a gateway of her own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.components import MosquittoServer
from penstock.gateway.publishing.domains import DomainLink
from penstock.mqtt import V5, ReasonCode
from penstock.mqtt.codes import FAILURE
from tests.support.commands import run_command
from tests.support.gateway.harness import GatewayThread, make_process, run_gateway
from tests.support.gateway.pair import wait_until
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient
from tests.support.trust.commands import key_of, run

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

USERS = {it: it for it in ("camera", "smith", "billing", "eve")}
NOT_ALLOWED = ReasonCode.NOT_AUTHORIZED
CONNECT = "network: City; action: connect | install"


class Domain:
    """A data folder, and the gateway over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = key_of(folder)
        self.gateway: GatewayThread
        self.port = 0

    @property
    def link(self) -> DomainLink:
        found = self.gateway.gateway.domains
        assert found is not None
        return found

    def members(self) -> frozenset[str]:
        return self.gateway.do(lambda: self.link.members)

    def apply(self, *files: Path) -> None:
        run(self.folder, "apply", *(word for it in files for word in ("-f", str(it))))

    def names(self, kind: str) -> list[str]:
        shown = run_command(self.folder, "get", kind, "--json")
        found = json.loads(shown.stdout) if shown.stdout.strip() else []
        return [it["name"] for it in found]

    def login(self, user: str) -> RawClient:
        client = RawClient(self.port, version=V5)
        assert not client.connect(user, username=user, password=user.encode()).reason
        return client


class City:
    """The network of domains."""

    def __init__(self, broker: MosquittoServer, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._broker = broker
        self._stack = stack
        self.pito = Domain(folder / "pito")

    def start(self, domain: Domain) -> None:
        settings, trust = self._settings(domain)
        domain.gateway = self._stack.enter_context(
            run_gateway(domain.folder, self._broker.port, settings, trust=trust)
        )
        domain.port = domain.gateway.port

    def start_process(self, domain: Domain) -> None:
        """Run the gateway of a domain in a process of its own."""
        settings, trust = self._settings(domain)
        process = make_process(domain.folder, self._broker.port, settings, trust=trust)
        self._stack.enter_context(process)
        domain.port = process.port

    def _settings(self, domain: Domain) -> tuple[dict[str, Any], dict[str, Any]]:
        passwords = write_passwords(domain.folder / "passwords", USERS)
        settings = {"open_mode": False, "authentication": {"passwords": str(passwords)}}
        return settings, {"network": "City", "coordinator": self.pito.key, "refresh": "2s"}

    def issue(self, holder: Domain, *grants: str, name: str = "connect", by: str = "pito") -> Path:
        file = self.folder / f"{name}-{holder.folder.name}.yaml"
        to = ("--to", f"key:{holder.key}", "--name", name, "-o", str(file))
        run(self.folder / by, "cert", "issue", *grants, *to)
        return file


@pytest.fixture
def city(broker: MosquittoServer, tmp_path: Path) -> Iterator[City]:
    with ExitStack() as stack:
        yield City(broker, tmp_path, stack)


def pass_round(domain: Domain) -> None:
    """Wait until a gateway has looked after the network twice."""
    wait_until(lambda: domain.gateway.do(lambda: domain.link.open))
    for _ in range(2):
        due = domain.gateway.do(lambda: domain.link._due)
        wait_until(lambda due=due: domain.gateway.do(lambda: domain.link._due) > due)  # type: ignore[misc]


def join(city: City, *grants: str) -> tuple[Domain, Domain, Path]:
    """Let the Met in, and run both gateways until both believe each other."""
    pito, met = city.pito, Domain(city.folder / "met")
    file = city.issue(met, *(grants or (CONNECT,)))
    met.apply(file)
    for it in (pito, met):
        city.start(it)
    wait_until(lambda: pito.members() == {met.key} and met.members() == {pito.key})
    return pito, met, file


def test_domains_join_exchange_types_and_one_is_expelled(city: City) -> None:
    pito, met, file = join(city)
    made = city.folder / "sighting.yaml"
    words = ("numberplate:string", "location:string?", "--name", "sighting/1", "-o", str(made))
    run(pito.folder, "event-type", "create", "sighting", *words)
    pito.apply(made)
    wait_until(lambda: met.names("event-type") == ["sighting/1"])
    assert run(met.folder, "event-type", "inspect", "sighting/1")["believed"] is True

    run(pito.folder, "cert", "revoke", str(file))
    wait_until(lambda: not pito.members())
    # The Met learns it over the broker, and holds no capability any more.
    wait_until(lambda: met.names("revocation-list") == [pito.key])
    assert run(met.folder, "cert", "inspect", "connect", fails=1)["holds"] is False
    wait_until(lambda: not met.members())
    # What is signed after that does not reach it.
    later = city.folder / "chase.yaml"
    run(pito.folder, "event-type", "create", "chase", "unit:string", "--name", "chase/1",
        "-o", str(later))  # fmt: skip
    assert met.names("event-type") == ["sighting/1"]


class Reader:
    """A client, and all that it got."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self._got: list[dict[str, Any]] = []

    def seen(self) -> list[dict[str, Any]]:
        """Return all that came up to now."""
        self._got += [json.loads(payload) for _, payload in self.client.texts(quiet=0.3)]
        return self._got


STREAM = {"kind": "stream", "name": "sightings", "from": ["cams/+/sighting"]}


def test_the_police_scenario_over_three_domains(city: City) -> None:
    """PITO owns the type, the Met's cameras publish, the Congestion Charge Service charges.

    Three gateways in processes of their own; types come over the broker, capabilities as files.
    """
    pito, met, ccs = city.pito, Domain(city.folder / "met"), Domain(city.folder / "ccs")
    held = {
        met: "type: sighting; action: publish | subscribe",
        ccs: "type: sighting; action: subscribe; attributes: numberplate",
    }
    users = {
        met: {
            "camera": "type: sighting; action: publish",
            "smith": "type: sighting; action: subscribe; attributes: * & numberplate = 'AB12 CDE'",
        },
        ccs: {"billing": held[ccs]},
    }
    for domain, grant in held.items():
        # Nobody passes on more: the Congestion Charge Service has no location to give.
        rights = city.issue(domain, CONNECT, grant, name="rights")
        domain.apply(rights)
    for domain in (pito, met, ccs):
        city.start_process(domain)
    made = city.folder / "sighting.yaml"
    words = ("numberplate:string", "location:string?", "--name", "sighting/1", "-o", str(made))
    run(pito.folder, "event-type", "create", "sighting", *words)
    pito.apply(made)
    for domain, known in users.items():
        wait_until(lambda domain=domain: domain.names("event-type") == ["sighting/1"])  # type: ignore[misc]
        stream = domain.folder / "stream.yaml"
        stream.write_text(json.dumps({**STREAM, "event_type": "sighting/1"}))
        domain.apply(stream)
        for user, grant in known.items():
            file = domain.folder / f"{user}.yaml"
            to = ("--to", f"user:{user}", "--name", user, "-o", str(file))
            run(domain.folder, "cert", "delegate", "rights", grant, *to)
            domain.apply(file)
    readers = {"billing": ccs, "smith": met, "eve": ccs}
    for domain in users:
        # Its gateway has learned of the type when strangers may not publish any more.
        with domain.login("eve") as eve:
            wait_until(lambda: eve.publish("cams/7/sighting", b"{}", qos=1).reason == NOT_ALLOWED)
    with ExitStack() as stack:
        clients = {
            user: Reader(stack.enter_context(domain.login(user)))
            for user, domain in readers.items()
        }
        for it in clients.values():
            it.client.subscribe("cams/+/sighting")
        camera = stack.enter_context(met.login("camera"))

        def publish(plate: str) -> int:
            said = json.dumps({"numberplate": plate, "location": "gate 3"}).encode()
            return int(camera.publish("cams/7/sighting", said, qos=1).reason)

        # They learn of capabilities in their own time, too.
        wait_until(lambda: not publish("warm") and bool(clients["billing"].seen()))
        wait_until(lambda: not publish("AB12 CDE") and bool(clients["smith"].seen()))
        assert not publish("CD34 EFG")
        wait_until(lambda: {"numberplate": "CD34 EFG"} in clients["billing"].seen())
        got = {user: it.seen() for user, it in clients.items()}
    assert {it["numberplate"] for it in got["billing"]} == {"warm", "AB12 CDE", "CD34 EFG"}
    assert all(it.keys() == {"numberplate"} for it in got["billing"])
    sighting = {"numberplate": "AB12 CDE", "location": "gate 3"}
    assert all(it == sighting for it in got["smith"])
    assert got["eve"] == []


def test_who_was_not_let_in_is_no_member_and_registers_nothing(city: City) -> None:
    pito, met, _ = join(city)
    eve = Domain(city.folder / "eve")
    eve.apply(city.issue(eve, CONNECT, by="eve"))  # her own say-so
    forged = city.folder / "forged.yaml"
    run(eve.folder, "event-type", "create", "bait", "x:string", "--name", "bait/1",
        "-o", str(forged))  # fmt: skip
    eve.apply(forged)
    city.start(eve)
    for it in (eve, pito, met):
        pass_round(it)
    assert eve.key not in pito.members() | met.members()
    assert not eve.members()
    assert pito.names("event-type") == met.names("event-type") == []


def test_types_are_taken_from_those_who_may_install_only(city: City) -> None:
    pito, met, _ = join(city, "network: City; action: connect")
    made = city.folder / "own.yaml"
    run(met.folder, "event-type", "create", "own", "x:string", "--name", "own/1", "-o", str(made))
    met.apply(made)
    wait_until(lambda: bool(met.gateway.do(lambda: met.link._sent)))
    pass_round(pito)
    assert pito.members() == {met.key}
    assert pito.names("event-type") == []


def test_a_silent_domain_is_no_member(city: City) -> None:
    pito, met, _ = join(city)
    met.gateway.stop()
    wait_until(lambda: not pito.members())


def test_clients_neither_hear_nor_forge_what_domains_tell_each_other(city: City) -> None:
    pito, _, _ = join(city)
    with pito.login("smith") as client:
        client.subscribe("#", "+/#", "!penstock/#", "!penstock/domain/City/+/+")
        topic = f"!penstock/domain/City/{pito.key}/{'0' * 16}"
        assert client.publish(topic, b"{}", qos=1).reason >= FAILURE
        pass_round(pito)
        client.settle()
        assert client.texts(quiet=0.2) == []
