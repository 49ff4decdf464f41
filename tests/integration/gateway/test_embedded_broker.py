"""The embedded broker as users run it: on a socket, and what others can do when it has crashed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.components import processes
from penstock.mqtt import Connack, Connect, ReasonCode
from penstock.supervisor.status import RunFolder
from tests.support.forked_commands import forked_penstock
from tests.support.gateway.pair import wait_until
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")

NOBODY = 65_534
FOREIGNER = """
import os, socket, sys
address, seen, user = sys.argv[1], sys.argv[2], int(sys.argv[3])
if user:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
host, _, port = address.rpartition(":")
try:
    if port.isdecimal():
        taken = socket.create_server((host, int(port)))
    else:
        if os.path.exists(address):
            os.unlink(address)
        taken = socket.socket(socket.AF_UNIX)
        taken.bind(address)
        os.chmod(address, 0o777)
        taken.listen()
except OSError as error:
    print("denied", type(error).__name__, flush=True)
    sys.exit()
print("taken", flush=True)
while True:
    client, _ = taken.accept()
    client.settimeout(1)
    with open(seen, "ab") as file:
        try:
            file.write(client.recv(65536))
        except OSError:
            pass
"""


class Installation:
    """Broker and gateway under a supervisor that does not start them again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = processes.free_port()
        (folder / "penstock.yaml").write_text(
            f"""
data: data
parts: [broker, gateway]
monitor: {{port: 0}}
supervisor: {{backoff: 1h, backoff_limit: 1h}}
gateway:
  monitor_port: 0
  listeners: {{mqtt: {{port: {self.port}}}}}
  authentication: {{anonymous: true}}
"""
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*forked_penstock(), *words],
            cwd=self.folder,
            env={**os.environ, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def broker(self) -> dict[str, Any]:
        found = RunFolder(self.folder / "data").read()
        assert found is not None
        part: dict[str, Any] = found.parts[0].model_dump(mode="json")
        return part

    def connect(self, name: str) -> int:
        with RawClient(self.port) as client:
            return client.connect(name).reason


@pytest.fixture
def installation() -> Iterator[Installation]:
    """Run one in a folder that everybody may enter, as one below /srv may be."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        made = Installation(Path(folder))
        up = made.run("up", "--detach")
        assert up.returncode == 0, up.stdout + up.stderr
        for it in (made.folder, made.folder / "data"):
            it.chmod(0o711)
        yield made
        made.run("down")


def take_place(address: str, seen: Path) -> subprocess.Popen[str]:
    """Let another program take the address of the broker, as another user if we can be one."""
    seen.touch()
    seen.chmod(0o666)
    user = 0 if os.geteuid() else NOBODY
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", FOREIGNER, address, str(seen), str(user)],
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )


def test_whoever_takes_the_place_of_a_crashed_broker_is_not_told_the_password(
    installation: Installation,
) -> None:
    assert installation.connect("before") == 0
    broker = installation.broker()
    os.kill(broker["pid"], signal.SIGKILL)
    wait_until(lambda: installation.broker()["state"] == "backoff")
    seen = installation.folder / "seen"
    root = os.geteuid() == 0
    address = broker["address"]
    if not root and "/" in address:
        address = "127.0.0.1:0"  # only the administrator can be another user
    foreign = take_place(address, seen)
    try:
        assert foreign.stdout is not None
        said = foreign.stdout.readline().split()
        assert installation.connect("after") == ReasonCode.SERVER_UNAVAILABLE
        key = (installation.folder / "data" / "keys" / "broker.key").read_bytes().strip()
        assert key not in seen.read_bytes()
        if root:
            assert said == ["denied", "PermissionError"]
    finally:
        foreign.kill()
        foreign.wait()


def test_many_clients_at_once_have_room_in_the_queue_of_the_socket(
    installation: Installation,
) -> None:
    """Mosquitto lets ten connections wait at a socket; the others must not be turned away."""
    clients = [RawClient(installation.port) for _ in range(150)]
    for number, client in enumerate(clients):
        client.send(Connect(f"c{number}"))
    assert {client.expect(Connack).reason for client in clients} == {0}
    clients[0].subscribe("a", qos=1)
    clients[1].publish("a", b"1", qos=1)
    assert clients[0].texts(1) == [("a", b"1")]
    for client in clients:
        client.close()


def test_no_port_leads_to_the_embedded_broker(installation: Installation) -> None:
    """Nobody but the gateway reaches it, so nobody can go around the rules."""
    pid = installation.broker()["pid"]
    assert not psutil.Process(pid).net_connections("inet")
    told = json.loads(installation.run("status", "--json").stdout)
    assert told["parts"][0]["address"].endswith("/broker/mosquitto.sock")
