"""Three domains at one broker: PITO owns the type of sightings, the Met publishes, CCS charges."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from penstock.components import MosquittoServer
from penstock.mqtt import V5
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient
from tests.support.trust.commands import key_of, run

TOPIC = "cameras/oxford-street/sighting"
SIGHTING = {"numberplate": "AB12 CDE", "location": "Oxford Street 100", "speed": 31.5}
STREAM = """\
kind: stream
name: sightings
event_type: sighting/1
from: [cameras/+/sighting]
sealed: {sealed}
"""
PATIENCE = 60.0
USER = "smith"


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


class Domain(NamedTuple):
    """An installation: its data folder, and its gateway."""

    folder: Path
    gateway: GatewayThread

    def run(self, *words: str, fails: int = 0) -> Any:
        return run(self.folder, *words, fails=fails)

    @property
    def key(self) -> str:
        return key_of(self.folder)

    def settle(self) -> int:
        """Wait until its gateway has the keys that its store has; return how many."""
        stored = {(it["attribute"], it["generation"]) for it in self.run("keys", "list")}
        wait_until(lambda: len(list(self.gateway.gateway.rules.sealing.ring)) == len(stored))
        return len(stored)


class Police(NamedTuple):
    """PITO owns the type, the Met's cameras publish, the Congestion Charge Service reads plates."""

    pito: Domain
    met: Domain
    charge: Domain
    broker: MosquittoServer
    exchanged: Path

    def pass_on(self, name: str, to: Domain) -> Any:
        """Bring a file of one domain to another, which takes it."""
        return to.run("keys", "take", str(self.exchanged / name))

    def admit(self, who: Domain, name: str, *grants: str) -> None:
        """Give a domain a capability, and the keys that follow from it."""
        to, files = f"key:{who.key}", self.exchanged
        granted, asked = str(files / f"{name}.yaml"), str(files / f"{name}-request.json")
        self.pito.run("cert", "issue", *grants, "--to", to, "--name", name, "-o", granted)
        who.run("apply", "-f", granted)
        # What the domain may do, its user may.
        own = str(files / f"{name}-user.yaml")
        who.run("cert", "delegate", name, *grants, "--to", f"user:{USER}", "--name", "u", "-o", own)
        who.run("apply", "-f", own)
        who.run("keys", "request", "sighting/1", "--capability", name, "-o", asked)
        self.pito.run("keys", "admit", asked, "-o", str(files / f"{name}-keys.json"))
        for domain in (self.met, self.charge):
            self.pass_on(f"{name}-keys.json", domain)


def connect(stack: ExitStack, port: int, name: str, **options: Any) -> RawClient:
    """Connect as the one user that each installation has."""
    client = stack.enter_context(RawClient(port, version=options.pop("version", V5)))
    assert not client.connect(name, username=USER, password=b"pw", **options).reason
    return client


def open_domain(stack: ExitStack, folder: Path, broker_port: int, **sections: Any) -> Domain:
    passwords = write_passwords(folder / "passwords", {USER: "pw"}, {USER: "*"})
    settings = {"authentication": {"passwords": str(passwords)}}
    sections.setdefault("trust", {"key_lead": "0s"})
    return Domain(
        folder, stack.enter_context(run_gateway(folder, broker_port, settings, **sections))
    )


@contextmanager
def open_police(
    mosquitto: MosquittoServer, folder: Path, stream: str, **sections: Any
) -> Iterator[Police]:
    """Run the three gateways, with the type and a stream of it, and let the Met in."""
    with ExitStack() as stack:
        pito, met, charge = domains = [
            open_domain(stack, folder / name, mosquitto.port, **sections)
            for name in ("pito", "met", "charge")
        ]
        made = Police(pito, met, charge, mosquitto, folder)
        sighting, declared = str(folder / "sighting.yaml"), folder / "stream.yaml"
        declared.write_text(stream)
        made.pito.run(
            "event-type", "create", "sighting", "numberplate:string", "location:string",
            "speed:double?", "--name", "sighting/1", "-o", sighting,
        )  # fmt: skip
        for domain in domains:
            domain.run("apply", "-f", sighting)
            domain.run("apply", "-f", str(declared))
        made.admit(made.met, "met", "type: sighting; action: publish | subscribe")
        yield made
