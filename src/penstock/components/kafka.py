"""A Kafka cluster of our own on loopback, for development, tests and benchmarks.

One to some nodes, each broker and controller at once (KRaft), in one folder:

    folder/cluster.json          ports and passwords (mode 0600), so that it can start again
    folder/admin.properties      the administrator for Kafka's own tools (mode 0600)
    folder/admin.password        the administrator's password alone (mode 0600)
    folder/node-1/               server.properties, data, and the log `kafka.log`

Rules that hold here:
- Only who logs in gets in: clients with SCRAM-SHA-512, the nodes among themselves with a
  password of their own. What no ACL allows is denied; the administrator and the nodes
  alone are above the ACLs. Topics are made on purpose, never by asking for them.
- Passwords stand in files of mode 0600, never on a command line.
- KAFKA_JVM_PERFORMANCE_OPTS chooses garbage collector and compiler of the nodes, as it does
  for Kafka's own scripts.
- Every process is ended by the id that we started. What is in a temporary folder goes with
  the cluster.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.components import processes
from penstock.components.finders import JAR_SETS, find_java
from penstock.errors import UnavailableError, UsageError, quote

MECHANISM = "SCRAM-SHA-512"
MOST_BROKERS = 9
READY_SECONDS = 120.0
FORMAT_SECONDS = 60.0
_MAIN = "kafka.Kafka"
_FORMAT = "kafka.tools.StorageTool"
_API_VERSIONS = 18
# A program that ends after a moment never earns what the optimizing compiler costs.
_SHORT_LIVED = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@dataclass(frozen=True, slots=True)
class Passwords:
    """The passwords of a cluster: of its administrator, and of the nodes among themselves."""

    admin: str
    nodes: str


class KafkaCluster(processes.Server):
    """A cluster that lives as long as the `with` block; its nodes are numbered from 1."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        brokers: int = 1,
        heap: str = "384m",
        reauthentication: float = 60.0,
    ) -> None:
        if not 1 <= brokers <= MOST_BROKERS:
            raise UsageError(
                f"{brokers} is not a number of brokers", fix=f"choose 1 to {MOST_BROKERS}"
            )
        self._temporary = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="penstock-kafka-"))
        self.heap = heap
        self._reauthentication = reauthentication
        self._java, self._jars = _find_programs()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._take_up(brokers)

    @property
    def bootstrap(self) -> str:
        """The addresses that clients begin with."""
        return ",".join(f"{HOST}:{node.client}" for node in self.nodes)

    @property
    def admin_password_file(self) -> Path:
        """The file of the administrator's password, for settings."""
        return self.folder / "admin.password"

    @property
    def admin_properties_file(self) -> Path:
        """The administrator's settings, for Kafka's own tools."""
        return self.folder / "admin.properties"

    @property
    def pids(self) -> dict[int, int]:
        """The process ids of the nodes that were started and not ended."""
        return {number: process.pid for number, process in self._processes.items()}

    def log(self, number: int) -> Path:
        """Return the log of a node."""
        return self._node_folder(number) / "kafka.log"

    def start(self) -> None:
        """Start all nodes and wait until each of them answers clients."""
        self._format_missing()
        for node in self.nodes:
            self._launch(node)
        try:
            for node in self.nodes:
                self._await(node)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all nodes; a temporary folder is removed."""
        for process in self._processes.values():
            if process.poll() is None:
                # What is thrown away need not be put in order first.
                process.send_signal(signal.SIGKILL if self._temporary else signal.SIGTERM)
        for process in self._processes.values():
            _end(process)
        self._processes.clear()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _take_up(self, brokers: int) -> None:
        """Read what the folder holds of a cluster, or make a new one there."""
        file = self.folder / "cluster.json"
        if file.exists():
            held = json.loads(file.read_text())
            if len(held["nodes"]) != brokers:
                raise UsageError(
                    f"the folder {quote(self.folder)} holds a cluster of {len(held['nodes'])}, "
                    f"not of {brokers}",
                    fix="name another folder, or that number of brokers",
                )
            self.cluster_id: str = held["id"]
            self.passwords = Passwords(**held["passwords"])
            self.nodes = [KafkaNode(**node) for node in held["nodes"]]
            return
        # A leading hyphen would be read as an option.
        self.cluster_id = "P" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode()[1:22]
        self.passwords = Passwords(secrets.token_urlsafe(24), secrets.token_urlsafe(24))
        self.nodes = [
            KafkaNode(number, *(processes.free_port() for _ in range(3)))
            for number in range(1, brokers + 1)
        ]
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(self.admin_password_file, self.passwords.admin + "\n")
        write_private(
            self.admin_properties_file,
            client_properties(self.bootstrap, ADMIN, self.passwords.admin),
        )
        write_logging(self.folder / "log4j2.properties", "INFO")
        held = {
            "id": self.cluster_id,
            "passwords": {"admin": self.passwords.admin, "nodes": self.passwords.nodes},
            "nodes": [node.as_data() for node in self.nodes],
        }
        write_private(file, json.dumps(held))

    def _format_missing(self) -> None:
        """Make the storage of nodes that have none; all at once, for a JVM starts slowly."""
        started = []
        for node in self.nodes:
            folder = self._node_folder(node.number)
            if (folder / "data" / "meta.properties").exists():
                continue
            folder.mkdir(parents=True, exist_ok=True)
            properties = folder / "server.properties"
            write_private(
                properties,
                server_properties(
                    node,
                    self.nodes,
                    data=folder / "data",
                    password=self.passwords.nodes,
                    reauthentication=self._reauthentication,
                ),
            )
            scram = f"{MECHANISM}=[name={ADMIN},password={self.passwords.admin}]"
            # In a file, so that no password is seen in the list of processes.
            words = [
                *_SHORT_LIVED, "-cp", f"{self._jars}/*", _FORMAT, "format",
                "--cluster-id", self.cluster_id, "--config", str(properties),
                "--add-scram", scram,
            ]  # fmt: skip
            arguments = folder / "format.arguments"
            write_private(arguments, "".join(f'"{word}"\n' for word in words))
            process = subprocess.Popen(
                [str(self._java), f"@{arguments}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
            started.append((process, arguments))
        for process, arguments in started:
            output, _ = process.communicate(timeout=FORMAT_SECONDS)
            arguments.unlink()
            if process.returncode:
                raise UnavailableError(
                    "Kafka's storage could not be made; its last words: "
                    + " | ".join(output.decode(errors="replace").splitlines()[-3:]),
                    fix=f"check that {self.folder} can be written",
                )

    def _launch(self, node: KafkaNode) -> None:
        folder = self._node_folder(node.number)
        command = [
            str(self._java),
            f"-Xms{self.heap}",
            f"-Xmx{self.heap}",
            *shlex.split(os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", "-XX:+UseSerialGC")),
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            "-cp",
            f"{self._jars}/*",
            _MAIN,
            str(folder / "server.properties"),
        ]
        with self.log(node.number).open("ab") as output:
            self._processes[node.number] = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                # A Ctrl-C at the terminal is ours to handle, in order.
                start_new_session=True,
            )

    def _await(self, node: KafkaNode) -> None:
        process = self._processes[node.number]
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            if answers(node.client):
                return
            time.sleep(0.05)
        # The frames of a trace push out what was the matter.
        lines = [
            line
            for line in self.log(node.number).read_text(errors="replace").splitlines()
            if not line.startswith("\tat ")
        ]
        raise UnavailableError(
            f"node {node.number} of Kafka did not become ready; its last words: "
            + " | ".join(lines[-processes.TAIL_LINES :]),
            fix=f"see {self.log(node.number)}, and `penstock doctor`",
        )

    def _node_folder(self, number: int) -> Path:
        return self.folder / f"node-{number}"


def answers(port: int) -> bool:
    """Whether a Kafka broker on loopback answers requests at `port`.

    A broker listens before it knows the cluster's users and ACLs; it answers only after.
    """
    client = b"penstock"
    header = struct.pack(f">hhih{len(client)}s", _API_VERSIONS, 0, 1, len(client), client)
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            connection.sendall(struct.pack(">i", len(header)) + header)
            answer = connection.recv(8, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(answer) == 8 and struct.unpack(">i", answer[4:])[0] == 1  # noqa: PLR2004


def end_processes(pids: dict[int, int]) -> None:
    """End nodes that another process of ours started, by their ids, politely first."""
    for how, seconds in ((signal.SIGTERM, processes.STOP_SECONDS), (signal.SIGKILL, 2.0)):
        deadline = time.monotonic() + seconds
        for pid in pids.values():
            if is_node(pid):
                os.kill(pid, how)
        while any(is_node(pid) for pid in pids.values()) and time.monotonic() < deadline:
            time.sleep(0.05)


def is_node(pid: int) -> bool:
    """Whether this process runs, and is a node of Kafka: ids are given out again."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return _MAIN.encode() in words


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(processes.STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(processes.STOP_SECONDS)


def _find_programs() -> tuple[Path, Path]:
    java = find_java()
    if java.path is None:
        raise UnavailableError("Java was not found, which runs Kafka", fix=java.fix)
    broker = next(jars for jars in JAR_SETS if jars.name == "kafka-broker")
    if broker.version() is None:
        raise UnavailableError(
            "the jars of Kafka were not found", fix="fetch them: make setup (needs Maven)"
        )
    return java.path, broker.folder


HOST = "127.0.0.1"
ADMIN = "admin"
NODES_USER = "node"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@dataclass(frozen=True, slots=True)
class KafkaNode:
    """One node: its number and its ports for clients, other nodes and controllers."""

    number: int
    client: int
    nodes: int
    controller: int

    def as_data(self) -> dict[str, int]:
        """Return it as JSON can hold it."""
        return asdict(self)


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read, from its first moment."""
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as target:
        target.write(text)


def write_logging(file: Path, level: str) -> None:
    """Write the settings of log4j: everything to standard output, a line each."""
    lines = [
        "status=error",
        "appender.out.type=Console",
        "appender.out.name=out",
        "appender.out.layout.type=PatternLayout",
        "appender.out.layout.pattern=[%d] %p %m (%c)%n%throwable",
        f"rootLogger.level={level}",
        "rootLogger.appenderRef.out.ref=out",
        # One line for each group and partition is too much for a node that lives shortly.
        "logger.groups.name=org.apache.kafka.coordinator",
        "logger.groups.level=WARN",
    ]
    file.write_text("\n".join(lines) + "\n")


def client_properties(bootstrap: str, user: str, password: str) -> str:
    """Return the settings of one user for Kafka's own tools."""
    return _write(
        {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{_SCRAM} username="{user}" password="{password}";',
        }
    )


def server_properties(
    node: KafkaNode,
    nodes: Sequence[KafkaNode],
    *,
    data: Path,
    password: str,
    reauthentication: float,
) -> str:
    """Return the settings of one node."""
    copies = min(3, len(nodes))
    listeners = {"CLIENT": node.client, "NODES": node.nodes, "CONTROLLER": node.controller}
    login = (
        f'{_PLAIN} username="{NODES_USER}" password="{password}" user_{NODES_USER}="{password}";'
    )
    return _write(
        {
            "process.roles": "broker,controller",
            "node.id": node.number,
            "controller.quorum.voters": ",".join(
                f"{other.number}@{HOST}:{other.controller}" for other in nodes
            ),
            "log.dirs": data,
            "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items()),
            "advertised.listeners": f"CLIENT://{HOST}:{node.client},NODES://{HOST}:{node.nodes}",
            "listener.security.protocol.map": ",".join(
                f"{name}:SASL_PLAINTEXT" for name in listeners
            ),
            "inter.broker.listener.name": "NODES",
            "controller.listener.names": "CONTROLLER",
            # The controllers need a password that is there before the cluster knows users.
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.nodes.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.nodes.plain.sasl.jaas.config": login,
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.controller.plain.sasl.jaas.config": login,
            "listener.name.client.sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256",
            "listener.name.client.scram-sha-512.sasl.jaas.config": f"{_SCRAM};",
            "listener.name.client.scram-sha-256.sasl.jaas.config": f"{_SCRAM};",
            # A user who is gone at the cluster loses connections that are open, too.
            "listener.name.client.connections.max.reauth.ms": int(reauthentication * 1000),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "false",
            "super.users": f"User:{ADMIN};User:{NODES_USER}",
            "auto.create.topics.enable": "false",
            "default.replication.factor": copies,
            "min.insync.replicas": max(1, copies - 1),
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": max(1, copies - 1),
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": max(1, copies - 1),
            # A node that is gone is noticed sooner than the nine seconds of a large cluster.
            "broker.heartbeat.interval.ms": 1000,
            "broker.session.timeout.ms": 5000,
            "group.initial.rebalance.delay.ms": 0,
            "num.network.threads": 2,
            "num.io.threads": 4,
            "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
        }
    )


def _write(properties: dict[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in properties.items())
