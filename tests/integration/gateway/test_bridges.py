"""Another broker that connects as a bridge, in MQTT 3.1.1 and 5."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.components import MosquittoServer, find, processes
from penstock.model.document import Document
from penstock.telemetry import configure
from tests.support.gateway.definitions import apply
from tests.support.gateway.harness import GatewayThread, run_gateway
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient
from tests.support.store.installation import until

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

ROUNDS = 20


@pytest.fixture(scope="module")
def gateway(
    broker: MosquittoServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayThread]:
    folder = tmp_path_factory.mktemp("bridged")
    passwords = write_passwords(folder / "passwords", dict.fromkeys(("branch", "ann"), "x"))
    settings = {"authentication": {"passwords": str(passwords)}}
    with run_gateway(folder / "g", broker.port, settings) as running:
        granted = {"ann": "#", "branch": "ward/#"}
        definitions = [
            Document(
                "policy",
                f"{name}-{allow}",
                {"subject": f"user:{name}", "filter": it, "allow": allow},
            )
            for name, it in granted.items()
            for allow in ("read", "write")
        ]
        counted = Document("enforcement", "default", {"policies": "required"})
        apply(running.config, [counted, *definitions])
        yield running


@contextmanager
def bridge(folder: Path, gateway: GatewayThread, version: str) -> Iterator[int]:
    """Run a broker with a bridge to the gateway; yield the port for its own clients."""
    folder.mkdir()
    port = processes.free_port()
    configuration = folder / "mosquitto.conf"
    configuration.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nuser root\nlog_type all\n"
        f"connection penstock\naddress 127.0.0.1:{gateway.port}\n"
        f"bridge_protocol_version {version}\nremote_username branch\nremote_password x\n"
        "remote_clientid branch:bridge\nnotifications_local_only true\nrestart_timeout 1\n"
        "try_private false\n"
        "topic ward/# both 1\ntopic secret/# both 1\n"
    )
    running = processes.start(
        [str(find("mosquitto").path), "-c", str(configuration)],
        log=folder / "log",
        ready=lambda: processes.accepts(port),
    )
    try:
        yield port
    finally:
        processes.stop(running)


def connected(port: int, name: str, password: bytes | None) -> RawClient:
    client = RawClient(port)
    username = name if password else None
    assert client.connect(name, username=username, password=password).reason == 0
    return client


def arrives(send: Callable[[], object], reader: RawClient, payload: bytes) -> bool:
    """Say whether something arrives that is sent again until it does: bridges take a moment."""

    def look() -> bool:
        send()
        reader.settle()
        return any(it.payload == payload for it in reader.messages())

    return until(look, payload.decode())


@pytest.mark.parametrize("version", ["mqttv311", "mqttv50"])
def test_a_bridge_carries_what_its_user_may(
    gateway: GatewayThread, tmp_path: Path, version: str
) -> None:
    with (
        bridge(tmp_path / "far", gateway, version) as port,
        connected(port, "far", None) as far,
        connected(gateway.port, "ann", b"x") as near,
    ):
        near.subscribe("#", qos=1)
        far.subscribe("#", qos=1)
        assert arrives(lambda: far.publish("ward/far", b"from far", qos=1), near, b"from far")
        assert arrives(lambda: near.publish("ward/near", b"from near", qos=1), far, b"from near")
        before = far.messages()
        far.unsubscribe("#")
        far.subscribe("secret/#", qos=1)
        # Nobody subscribes there now: a bridge of MQTT 5 answers with 0x10, and is not cut off.
        for number in range(ROUNDS):
            near.publish("ward/near", f"{number}".encode(), qos=1)
            near.publish("secret/near", b"secret", qos=1)
            far.publish("secret/far", b"secret", qos=1)
        assert arrives(lambda: far.publish("ward/far", b"still", qos=1), near, b"still")
        assert not any(it.payload == b"secret" and it.topic == "secret/near" for it in before)
        assert {it.topic for it in far.messages()} <= {"secret/far"}
        log = (tmp_path / "far" / "log").read_text(errors="replace")
        assert log.count("Connecting bridge (step 1)") == 1, log[-2000:]


def test_a_bridge_that_is_cut_off_leaves_a_line(
    gateway: GatewayThread, capfd: pytest.CaptureFixture[str]
) -> None:
    configure(level="info", style="json")
    with connected(gateway.port, "branch", b"x") as client:
        # A PUBACK with a reason that no side may give.
        client.send_bytes(b"\x40\x03\x00\x01\x11")
        client.wait_closed()
    said: list[dict[str, object]] = []

    def look() -> bool:
        lines = capfd.readouterr().err.splitlines()
        said.extend(json.loads(line) for line in lines if "connections were ended" in line)
        return bool(said)

    until(look, "a line")
    assert said[0]["reason"] == "protocol"
    assert "0x11" in str(said[0]["error_text"])
