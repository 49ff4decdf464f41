"""Whether this machine has what an installation needs: the findings of `penstock doctor`.

Ports, servers and clients here; programs, folders, secrets and the store in `installation_checks`.

Rules that hold here:
- Each check looks at one thing and yields findings. None of them changes anything: no
  file is made, no table is upgraded, no port stays open.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum, auto
from pathlib import Path

import psutil

from penstock.components.finders import find_master_trouble, try_address
from penstock.components.mosquitto import find_listener, make_private_folder
from penstock.config import Config
from penstock.config.settings import is_loopback
from penstock.errors import PenstockError, UnavailableError
from penstock.supervisor.parts import Part
from penstock.supervisor.status import RunFolder


class Verdict(StrEnum):
    """How it stands with one thing."""

    OK = auto()
    WARNING = auto()
    """Nothing that runs now needs it, or it may cause trouble later."""
    MISSING = auto()
    """It is needed and not there."""
    WRONG = auto()
    """It is there and cannot be used as it is."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    topic: str
    name: str
    verdict: Verdict
    detail: str
    fix: str | None = None

    @property
    def stops(self) -> bool:
        """Whether the configured parts cannot run because of it."""
        return self.verdict in {Verdict.MISSING, Verdict.WRONG}


@dataclass(frozen=True, slots=True)
class WantedAddress:
    """An address that a part wants to listen on."""

    setting: str
    part: str
    host: str
    port: int
    encrypted: bool = True


def check_ports(config: Config, parts: list[Part]) -> Iterator[Finding]:
    """Try to listen on every address that the settings name."""
    running = {part.name for part in parts} | {"supervisor"}
    own = _own_processes(config)
    if config.broker.mode == "embedded":
        yield _try_socket(config.broker.socket, own, stops="broker" in running)
    for wanted in _wanted_addresses(config):
        finding = _try(wanted, own)
        if wanted.part not in running and finding.stops:
            finding = Finding("ports", wanted.setting, Verdict.WARNING, finding.detail, finding.fix)
        yield finding


def _wanted_addresses(config: Config) -> Iterator[WantedAddress]:
    if config.monitor.enabled:
        yield WantedAddress("monitor", "supervisor", config.monitor.host, config.monitor.port)
    yield WantedAddress(
        "gateway.monitor_port", "gateway", config.monitor.host, config.gateway.monitor_port
    )
    if "pipeline" in config.parts:
        yield WantedAddress(
            "pipeline.monitor_port", "pipeline", config.monitor.host, config.pipeline.monitor_port
        )
    if "rbac" in config.parts:
        yield WantedAddress(
            "kafka.monitor_port", "rbac", config.monitor.host, config.kafka.monitor_port
        )
    if "server" in config.parts:
        yield WantedAddress(
            "server.monitor_port", "server", config.monitor.host, config.server.monitor_port
        )
        for name, server in config.server.listeners.items():
            setting = f"server.listeners.{name}"
            yield WantedAddress(setting, "server", server.host, server.port, server.encrypted)
    for name, listener in config.gateway.listeners.items():
        yield WantedAddress(
            f"gateway.listeners.{name}", "gateway", listener.host, listener.port, listener.encrypted
        )


def _try_socket(path: Path, own: set[int], *, stops: bool) -> Finding:
    """Look at the socket of the embedded broker: its folder, and who listens there."""
    wrong = Verdict.WRONG if stops else Verdict.WARNING
    if path.parent.exists():
        try:
            make_private_folder(path.parent)
        except UnavailableError as error:
            return Finding("ports", "broker", wrong, error.message, error.fix or "")
    found = find_listener(path)
    if found is None:
        return Finding("ports", "broker", Verdict.OK, f"{path}, a socket")
    name = ""
    with contextlib.suppress(psutil.Error):
        name = psutil.Process(found.pid).name()
    if found.pid in own:
        return Finding("ports", "broker", Verdict.OK, f"{path}, ours ({name})")
    fix = "stop it, or set broker.socket to another path"
    detail = f"{path} is in use by {name} (process {found.pid})"
    return Finding("ports", "broker", wrong, detail, fix)


def _own_processes(config: Config) -> set[int]:
    try:
        status = RunFolder(config.data).read()
    except UnavailableError:
        return set()
    pids = {part.pid for part in status.parts if part.pid} if status else set()
    return pids | {status.pid} if status else pids


def _try(wanted: WantedAddress, own: set[int]) -> Finding:
    shown = f"{wanted.host} port {wanted.port}"
    if wanted.port == 0:
        return Finding("ports", wanted.setting, Verdict.OK, f"{wanted.host}, a free port")
    try:
        _bind(wanted.host, wanted.port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            fix = "choose another address, or a port above 1023"
            return Finding(
                "ports", wanted.setting, Verdict.WRONG, f"{shown}: {error.strerror}", fix
            )
        pid, name = _who(wanted.port)
        if pid in own:
            return Finding("ports", wanted.setting, Verdict.OK, f"{shown}, ours ({name})")
        by = f"{name} (process {pid})" if pid else "another program"
        port = wanted.setting if wanted.setting.endswith("port") else f"{wanted.setting}.port"
        fix = f"stop it, or set {port} to another"
        return Finding("ports", wanted.setting, Verdict.WRONG, f"{shown} is in use by {by}", fix)
    if not wanted.encrypted and not is_loopback(wanted.host):
        return Finding(
            "ports",
            wanted.setting,
            Verdict.WARNING,
            f"{shown} is free, but others on the network can read what clients send",
            "set its transport to tls or websocket-tls",
        )
    return Finding("ports", wanted.setting, Verdict.OK, f"{shown} is free")


def _bind(host: str, port: int) -> None:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as trial:
        # As servers do: connections that have just ended do not count.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trial.bind(address)


def _who(port: int) -> tuple[int | None, str]:
    """Return who listens on the port, as far as we are allowed to know."""
    try:
        for connection in psutil.net_connections("tcp"):
            # The local address is (host, port), or empty.
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,):
                pid = connection.pid
                return pid, psutil.Process(pid).name() if pid else ""
    except psutil.Error:
        pass
    return None, ""


def check_servers(config: Config, parts: list[Part]) -> Iterator[Finding]:
    """Try the servers that the settings name and we do not start: broker, Kafka, Spark."""
    running = {part.name for part in parts}
    if config.broker.mode == "external":
        trouble = try_address(config.broker.host, config.broker.port, config.broker.connect_timeout)
        shown = f"{config.broker.host}:{config.broker.port} answers"
        fix = "check broker.host and broker.port, and that it runs"
        yield _tell_server("broker", trouble, shown, fix, needed="gateway" in running)
    if config.kafka.bootstrap is not None:
        yield _try_kafka(config, needed=not running.isdisjoint({"gateway", "pipeline", "rbac"}))
    master = config.pipeline.master
    if master.startswith("spark://"):
        fix = "check pipeline.master, and that the master runs"
        trouble = find_master_trouble(master)
        needed = "pipeline" in running
        yield _tell_server("spark", trouble, f"{master} answers", fix, needed=needed)


def _tell_server(name: str, trouble: str | None, shown: str, fix: str, *, needed: bool) -> Finding:
    if trouble is None:
        return Finding("servers", name, Verdict.OK, shown)
    return Finding("servers", name, Verdict.WRONG if needed else Verdict.WARNING, trouble, fix)


def _try_kafka(config: Config, *, needed: bool) -> Finding:
    """Log in at Kafka, and ask whether it knows all that we ask of it."""
    from penstock.kafka.admin_connection import AdminConnection  # noqa: PLC0415 - where it is used

    wrong = Verdict.WRONG if needed else Verdict.WARNING
    try:
        with AdminConnection.open(config.kafka) as connection:
            lacking = connection.find_missing_requests()
    except PenstockError as error:
        return Finding("servers", "kafka", wrong, error.message, error.fix)
    if lacking:
        detail = f"its brokers are too old: they do not know {', '.join(lacking)}"
        return Finding("servers", "kafka", wrong, detail, "use Kafka 2.8 or newer")
    return Finding("servers", "kafka", Verdict.OK, f"{config.kafka.bootstrap} lets us in")


def check_access(config: Config, parts: list[Part]) -> Iterator[Finding]:
    """Look at the ways in that the settings leave open."""
    if not any(part.name == "gateway" for part in parts):
        return
    gateway = config.gateway
    ways = []
    if gateway.authentication.passwords is not None:
        ways.append(f"passwords in {gateway.authentication.passwords}")
    if gateway.authentication.relay:
        ways.append("passwords that the broker checks")
    if any(listener.client_ca is not None for listener in gateway.listeners.values()):
        ways.append("certificates")
    if gateway.authentication.anonymous:
        ways.append("anybody, as the user `anonymous`")
    if not ways:
        yield Finding(
            "access",
            "clients",
            Verdict.WARNING,
            "nobody can connect: no way to authenticate is set",
            "set gateway.authentication.passwords to keys/passwords, then "
            "`penstock password USER`; or for a trial set gateway.authentication.anonymous",
        )
        return
    verdict = Verdict.WARNING if gateway.authentication.anonymous else Verdict.OK
    yield Finding("access", "clients", verdict, ", ".join(ways))
    if gateway.open_mode:
        yield Finding(
            "access",
            "commands",
            Verdict.WARNING,
            "open mode: every client may reserve and administer",
            "set gateway.open_mode to false, and define rights",
        )
