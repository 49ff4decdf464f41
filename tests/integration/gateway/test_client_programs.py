"""Independent client libraries and our own commands, through the gateway as it is run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from penstock.components import MosquittoServer, processes
from tests.support.gateway.certificates import Authority
from tests.support.gateway.harness import GatewayProcess, make_process
from tests.support.gateway.passwords import write_passwords
from tests.support.gateway.raw import RawClient
from tests.support.store.installation import until

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)
WAIT = 60


@pytest.fixture(scope="module")
def process(
    broker: MosquittoServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    with make_process(tmp_path_factory.mktemp("process"), broker.port) as running:
        yield running


make_properties: Callable[[int], Any] = Properties


class Paho:
    """A Paho client with what it received."""

    def __init__(self, port: int, version: int, name: str) -> None:
        self.got: list[tuple[str, bytes, int]] = []
        self.answers: list[Any] = []
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion(version)
        )
        self.client.on_message = self._take
        self.client.on_subscribe = lambda *given: self.answers.append(given[3])
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        self.wait(self.client.is_connected)

    def _take(self, *given: Any) -> None:
        message = given[2]
        self.got.append((message.topic, bytes(message.payload), message.qos))

    def subscribe(self, *filters: tuple[str, int], **options: Any) -> list[int]:
        before = len(self.answers)
        self.client.subscribe(list(filters), **options)
        self.wait(lambda: len(self.answers) > before)
        return [code.value for code in self.answers[-1]]

    def publish(self, topic: str, payload: bytes, qos: int, **options: Any) -> None:
        self.client.publish(topic, payload, qos, **options).wait_for_publish(WAIT)

    def wait(self, true: Any) -> None:
        deadline = time.monotonic() + WAIT
        while not true():
            assert time.monotonic() < deadline, self.got
            time.sleep(0.01)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.mark.parametrize(
    "version", [paho.MQTTv31, paho.MQTTv311, paho.MQTTv5], ids=["v31", "v3", "v5"]
)
def test_paho(process: GatewayProcess, topic: str, version: int) -> None:
    reader = Paho(process.port, version, f"reader-{version}")
    writer = Paho(process.port, version, f"writer-{version}")
    writer.publish(f"!RESERVE/{topic}/HASH{{billing}}", b"", 1)
    codes = reader.subscribe((f"!AP/{topic}/a/HASH{{billing}}", 2), (f"!AP/{topic}/b{{ads}}", 1))
    assert codes == [2, 1]
    for qos in (0, 1, 2):
        writer.publish(f"{topic}/a/x", b"%d" % qos, qos)
        writer.publish(f"{topic}/b", b"%d" % qos, qos)
    reader.wait(lambda: len(reader.got) >= 3)
    time.sleep(0.2)
    assert reader.got == [(f"{topic}/a/x", b"%d" % qos, qos) for qos in (0, 1, 2)]
    reader.close()
    writer.close()


def test_paho_with_user_properties(process: GatewayProcess, topic: str) -> None:
    reader = Paho(process.port, paho.MQTTv5, "reader-properties")
    writer = Paho(process.port, paho.MQTTv5, "writer-properties")
    wanted: Any = make_properties(PacketTypes.SUBSCRIBE)
    wanted.UserProperty = [("purpose-ap", "billing")]
    assert reader.subscribe((topic, 1), properties=wanted) == [1]
    narrowed: Any = make_properties(PacketTypes.PUBLISH)
    narrowed.UserProperty = [("purpose-aip", "ads")]
    writer.publish(topic, b"for ads", 1, properties=narrowed)
    narrowed.UserProperty = [("purpose-aip", "billing")]
    writer.publish(topic, b"for billing", 1, properties=narrowed)
    reader.wait(lambda: bool(reader.got))
    assert [payload for _, payload, _ in reader.got] == [b"for billing"]
    reader.close()
    writer.close()


@pytest.mark.needs("mosquitto-clients")
@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
def test_libmosquitto(process: GatewayProcess, topic: str, version: str) -> None:
    """The second library: the C client that comes with Mosquitto."""
    listen, say = "mosquitto_sub", "mosquitto_pub"
    common = ["-h", "127.0.0.1", "-p", str(process.port), "-V", version]
    with RawClient(process.port) as admin:
        admin.connect("admin")
        admin.publish(f"!RESERVE/{topic}/HASH{{billing}}", qos=1)
        filters = ["-t", f"!AP/{topic}/PLUS{{billing}}", "-t", f"{topic}/no"]
        reader = subprocess.Popen(
            [listen, *common, *filters, "-q", "2", "-C", "3", "-W", "20", "-F", "%t %p %q"],
            stdout=subprocess.PIPE,
            text=True,
        )
        time.sleep(0.7)
        for qos in ("0", "1", "2"):
            subprocess.run([say, *common, "-t", f"{topic}/yes", "-m", qos, "-q", qos], check=True)
            for wrong in (f"!AIP/{topic}/yes{{ads}}", "!BROKEN"):
                subprocess.run([say, *common, "-t", wrong, "-m", "x", "-q", qos], check=False)
        got, _ = reader.communicate(timeout=WAIT)
    assert got.splitlines() == [f"{topic}/yes {qos} {qos}" for qos in (0, 1, 2)]


def run_cli(process: GatewayProcess, *arguments: str, **options: Any) -> Any:
    file = process.config.file
    code = "import sys; from penstock.cli import main; main(sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", code, "--config", str(file), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        **options,
    )


def test_tail(process: GatewayProcess, topic: str) -> None:
    with RawClient(process.port) as writer:
        writer.connect("writer")
        writer.publish(f"!RESERVE/{topic}/HASH{{billing}}", qos=1)
        writer.publish(f"{topic}/a", b'{"km": 7}', qos=1, retain=True)
        writer.publish(f"{topic}/b", b"\xff\x00", qos=1, retain=True)
        tail = run_cli(process, "tail", f"{topic}/#", "--purpose", "billing", "-n", "2", "--json")
        out, err = tail.communicate(timeout=WAIT)
        assert tail.returncode == 0, err
        got = sorted((json.loads(line) for line in out.splitlines()), key=lambda it: it["topic"])
        assert got == [
            {
                "topic": f"{topic}/a",
                "qos": 1,
                "retain": True,
                "payload": '{"km": 7}',
                "payload_json": {"km": 7},
            },
            {"topic": f"{topic}/b", "qos": 1, "retain": True, "base64": "/wA="},
        ]
        shown = run_cli(process, "tail", f"{topic}/a", "--purpose", "billing", "-n", "1")
        out, _ = shown.communicate(timeout=WAIT)
        assert out.strip() == f'{topic}/a retained {{"km": 7}}'
        waits = run_cli(process, "tail", f"{topic}/c", "--purpose", "billing", "-n", "1")
        assert waits.stderr.readline() == f"subscribed to {topic}/c for billing\n"
        writer.publish(f"{topic}/c", b"now", qos=1)
        out, _ = waits.communicate(timeout=WAIT)
        assert out.strip() == f"{topic}/c now"


def test_tail_says_why_it_is_refused(process: GatewayProcess) -> None:
    tail = run_cli(process, "tail", "a/#/b", "-n", "1")
    _, err = tail.communicate(timeout=WAIT)
    assert tail.returncode == 1
    assert "a/#/b" in err


def test_tail_says_what_to_give_where_nobody_may_be_anonymous(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    passwords = write_passwords(tmp_path / "passwords", {"alice": "secret"})
    login = {"authentication": {"passwords": str(passwords), "anonymous": False}}
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    secret.chmod(0o644)
    with make_process(tmp_path / "g", broker.port, login) as process:
        tail = run_cli(process, "tail", "a", "-n", "1")
        _, err = tail.communicate(timeout=WAIT)
        assert tail.returncode == 1
        assert "give --user and --password-file" in err
        named = ("--user", "alice", "--password-file", str(secret))
        tail = run_cli(process, "tail", "a", "-n", "1", *named)
        _, err = tail.communicate(timeout=WAIT)
        assert tail.returncode != 0
        assert str(secret) in err
        secret.chmod(0o600)
        with RawClient(process.port) as writer:
            writer.connect("alice", username="alice", password=b"secret")
            writer.publish("a", b"x", qos=1, retain=True)
            tail = run_cli(process, "tail", "a", "-n", "1", *named)
            out, err = tail.communicate(timeout=WAIT)
            writer.publish("a", b"", qos=1, retain=True)
        assert (tail.returncode, out.strip()) == (0, "a retained x"), err


def test_tail_by_every_transport_with_certificates_that_change(
    broker: MosquittoServer, tmp_path: Path, topic: str
) -> None:
    """Neither SIGHUP nor a changed file ends a connection; new ones see the new certificate."""
    first, second = Authority(tmp_path / "first"), Authority(tmp_path / "second")
    certificate, key = first.issue("server")
    files = {"transport": "tls", "certificate": str(certificate), "key": str(key)}
    ports = {name: processes.free_port() for name in ("tls", "websocket", "websocket-tls")}
    plain = processes.free_port()
    listeners: dict[str, Any] = {"plain": {"port": plain}}
    for number, (transport, port) in enumerate(ports.items()):
        more = files if transport.endswith("tls") else {}
        listeners[f"l{number}"] = {**more, "port": port, "transport": transport}
    made = make_process(tmp_path / "g", broker.port, {"listeners": listeners})
    made.port = plain
    with made as process, RawClient(plain) as writer:
        writer.connect("writer")
        writer.publish(topic, b"x", qos=1, retain=True)

        def tail(transport: str, authority: Authority) -> str:
            told = ("--transport", transport, "--port", str(ports[transport]))
            trusts = ("--ca", str(authority.path)) if transport.endswith("tls") else ()
            found = run_cli(process, "tail", topic, "-n", "1", *told, *trusts)
            out, err = found.communicate(timeout=WAIT)
            return str(out).strip() if found.returncode == 0 else str(err)

        for transport in ports:
            assert tail(transport, first) == f"{topic} retained x"
        assert "not trusted" in tail("tls", second)

        def replace(authority: Authority) -> None:
            new = authority.issue("renewed")
            for old, path in zip((certificate, key), new, strict=True):
                path.replace(old)

        replace(second)
        process.send_signal(signal.SIGHUP)
        until(lambda: tail("tls", second) == f"{topic} retained x", "the new certificate")
        assert tail("websocket-tls", second) == f"{topic} retained x"
        replace(first)
        until(lambda: tail("tls", first) == f"{topic} retained x", "the changed file")
        # What cannot be used changes nothing.
        certificate.write_text("no certificate")
        process.send_signal(signal.SIGHUP)
        assert tail("tls", first) == f"{topic} retained x"
        assert writer.publish(topic, b"", qos=1, retain=True).reason in {0, 0x10}


def test_the_log_of_the_gateway_as_json(broker: MosquittoServer, tmp_path: Path) -> None:
    process = make_process(tmp_path, broker.port)
    started = run_cli(process, "gateway", "--json")
    try:
        line = started.stderr.readline()
    finally:
        started.terminate()
        started.communicate(timeout=WAIT)
    assert isinstance(json.loads(line), dict)


def test_password(process: GatewayProcess, tmp_path: Path) -> None:
    from penstock.gateway.connection.authentication import PasswordFile  # noqa: PLC0415

    file = tmp_path / "keys" / "passwords"
    made = run_cli(process, "password", "alice", "--file", str(file), "--client-ids", "sensor-*")
    _, err = made.communicate("correct horse\n", timeout=WAIT)
    assert made.returncode == 0, err
    users = PasswordFile(file)
    users.load()
    assert users.verify(users.user("alice"), b"correct horse")
    assert not users.verify(users.user("alice"), b"wrong")
    assert users.patterns("alice") == ("sensor-*",)
    gone = run_cli(process, "password", "alice", "--file", str(file), "--remove")
    gone.communicate(timeout=WAIT)
    users.load()
    assert not users.verify(users.user("alice"), b"correct horse")
