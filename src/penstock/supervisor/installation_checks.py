"""What an installation needs and keeps: programs, a right clock, folders, files, secrets, store.

Policies, audit entries and deadlines depend on the clock.

Rules that hold here:
- `CHECKS` lists all checks, those of `network` too.
- No secret is shown.
- The database is read without making or upgrading anything.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import ssl
import stat
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from penstock import __version__
from penstock.components import COMPONENTS, Component, find
from penstock.config import Config, KeyFile
from penstock.config.catalogue import find_problem
from penstock.errors import PenstockError, UnavailableError
from penstock.store.database import Address, Database, create_engine
from penstock.store.migrations import code_version, database_version, is_current
from penstock.supervisor.checks import Finding, Verdict, check_access, check_ports, check_servers
from penstock.supervisor.parts import Part
from penstock.yaml_text import Steps, dotted

PYTHON_MINIMUM = (3, 11)
ALWAYS = "gateway"
"""The extra that holds what every command but the client needs."""

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+).*?(?:extra\s*==\s*['\"]([a-z]+)['\"])?$")
AHEAD = 300.0
FILES_LIMIT = 1000
TIME_ERROR = 5
# Larger than the structure is on any machine; all zero means: ask, and change nothing.
TIMEX_SIZE = 512


CONSOLE_CLIENTS: Final = (
    "read topics with Kafka's own client: kafka-console-consumer.sh --bootstrap-server HOST:PORT "
    "--topic TOPIC --consumer.config FILE; docs/how-to/kafka-roles.md has the FILE"
)
_LIBRARY: Final = re.compile(r"librdkafka ([0-9]+)\.([0-9]+)\.([0-9]+)")
_LEAST_LIBRARY: Final = (2, 6, 1)


def is_too_old(kcat: Component) -> bool:
    """Say whether brokers of Kafka 4 refuse the log-ins of a kcat."""
    found = _LIBRARY.search(kcat.version or "")
    return found is not None and tuple(map(int, found.groups())) < _LEAST_LIBRARY


def check_programs(config: Config, parts: list[Part]) -> Iterator[Finding]:
    """Look at our own version, at Python, at packages and at programs."""
    yield Finding("versions", "penstock", Verdict.OK, __version__)
    enough = sys.version_info >= PYTHON_MINIMUM
    least = ".".join(map(str, PYTHON_MINIMUM))
    yield Finding(
        "versions",
        "python",
        Verdict.OK if enough else Verdict.WRONG,
        platform.python_version(),
        None if enough else f"use Python {least} or newer",
    )
    needed = {name for part in parts for name in part.needs}
    yield from _packages(config, needed)
    for name in COMPONENTS:
        yield _component(name, needed=name in needed, at_kafka=config.kafka.bootstrap is not None)


def packages_by_extra() -> dict[str, list[str]]:
    """Return the packages that each extra of ours asks for, but those for development."""
    extras: dict[str, list[str]] = {}
    for line in metadata.requires("penstock") or []:
        match = _REQUIREMENT.match(line.strip())
        if match and match[2] not in {None, "all", "dev"} and match[1] != "penstock":
            extras.setdefault(match[2], []).append(match[1])
    return extras


def _packages(config: Config, needed: set[str]) -> Iterator[Finding]:
    try:
        extras = packages_by_extra()
    except metadata.PackageNotFoundError:
        yield Finding(
            "packages",
            "penstock",
            Verdict.WARNING,
            "runs from a folder and is not installed, so its packages are not known",
            "pip install 'penstock[all]'",
        )
        return
    wanted = {ALWAYS} | needed
    if config.store.url.startswith("postgresql"):
        wanted.add("postgres")
    if "java" in needed:
        wanted.add("spark")
    if "server" in config.parts:
        wanted.add("server")
    for extra, names in extras.items():
        versions = {name: _version(name) for name in names}
        absent = [name for name, version in versions.items() if version is None]
        if not absent:
            shown = ", ".join(f"{name} {version}" for name, version in versions.items())
            yield Finding("packages", extra, Verdict.OK, shown)
            continue
        yield Finding(
            "packages",
            extra,
            Verdict.MISSING if extra in wanted else Verdict.WARNING,
            f"not installed: {', '.join(absent)}",
            f"pip install 'penstock[{extra}]'",
        )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _component(name: str, *, needed: bool, at_kafka: bool) -> Finding:
    found = find(name)
    if found.path is not None:
        told = f"{found.version or '?'} ({found.path})"
        if name == "kcat" and at_kafka and is_too_old(found):
            detail = f"{told}: too old to log in with SCRAM at Kafka 4"
            return Finding("programs", name, Verdict.WARNING, detail, CONSOLE_CLIENTS)
        return Finding("programs", name, Verdict.OK, told)
    verdict = Verdict.MISSING if needed else Verdict.WARNING
    return Finding("programs", name, verdict, f"not found; it is for {found.purpose}", found.fix)


def check_clock(config: Config, parts: list[Part]) -> Iterator[Finding]:
    """Compare the clock with this program's own age and our own files, and ask the kernel."""
    del parts
    now = time.time()
    shown = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    newest = max(_newest_file(Path(__file__).parent), _newest_file(config.data))
    if newest > now + AHEAD:
        ahead = (newest - now) / 60
        detail = f"{shown}, but files here were written {ahead:.0f} minutes later"
        yield Finding("clock", "time", Verdict.WRONG, detail, "set the clock (NTP)")
    elif not _is_synchronised():
        detail = f"{shown}, and the kernel does not know of any source of time"
        fix = "run a time service, such as chrony or systemd-timesyncd"
        yield Finding("clock", "time", Verdict.WARNING, detail, fix)
    else:
        yield Finding("clock", "time", Verdict.OK, shown)


def _newest_file(folder: Path) -> float:
    """Return when the newest of the folder's own files was written; 0 where there is none."""
    newest = 0.0
    if folder.is_dir():
        for _, path in zip(range(FILES_LIMIT), folder.iterdir(), strict=False):
            newest = max(newest, path.lstat().st_mtime)
    return newest


def _is_synchronised() -> bool:
    """Ask the kernel whether something keeps its clock right."""
    try:
        ask = ctypes.CDLL(None).adjtimex
    except AttributeError:
        return True  # not Linux; there is no such question
    return bool(ask(ctypes.create_string_buffer(TIMEX_SIZE)) != TIME_ERROR)


LITTLE = 1 << 30
TOO_LITTLE = 100 << 20
OTHERS = stat.S_IRWXG | stat.S_IRWXO
CLOCKS_APART = 1.0


def check_folders(config: Config, parts: list[Part]) -> Iterator[Finding]:
    """Look at the file and the folders."""
    if config.file is None:
        yield Finding(
            "settings", "file", Verdict.WARNING, "there is none here; defaults", "penstock init"
        )
    else:
        shown = f"{config.file}; parts: {', '.join(part.name for part in parts)}"
        yield Finding("settings", "file", Verdict.OK, shown)
    yield _data(config.data)
    yield _disk(config.data)


def nearest(path: Path) -> Path:
    """Return the path itself or the first folder above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _data(path: Path) -> Finding:
    place = nearest(path)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return Finding(
            "settings",
            "data folder",
            Verdict.WRONG,
            f"{place} cannot be written",
            "change its owner, or set `data` to another folder",
        )
    if place != path:
        return Finding("settings", "data folder", Verdict.OK, f"{path} (made at the first use)")
    mode = stat.S_IMODE(place.stat().st_mode)
    if mode & OTHERS:
        return Finding(
            "settings",
            "data folder",
            Verdict.WARNING,
            f"{path} has mode {mode:04o}: others can look into it",
            f"chmod 700 {path}",
        )
    return Finding("settings", "data folder", Verdict.OK, str(path))


def _disk(path: Path) -> Finding:
    free = shutil.disk_usage(nearest(path)).free
    shown = f"{free / (1 << 30):.1f} GiB free for {path}"
    fix = "free some, or move the data folder"
    if free < TOO_LITTLE:
        return Finding("settings", "disk", Verdict.WRONG, shown, fix)
    if free < LITTLE:
        return Finding("settings", "disk", Verdict.WARNING, shown, fix)
    return Finding("settings", "disk", Verdict.OK, shown)


def check_secrets(config: Config, parts: list[Part]) -> Iterator[Finding]:
    """Look at every secret that the settings name."""
    del parts
    for path, secret in config.secrets():
        name = dotted(path)
        if isinstance(secret, KeyFile) and not secret.path.exists():
            detail = f"{secret.path} (made at the first use)"
            yield Finding("secrets", name, Verdict.OK, detail)
            continue
        try:
            secret.read()
        except UnavailableError as error:
            yield Finding("secrets", name, Verdict.WRONG, error.message, error.fix)
        else:
            yield Finding("secrets", name, Verdict.OK, str(secret))


def check_files(config: Config, parts: list[Part]) -> Iterator[Finding]:
    """Look at every file that the settings name: certificates, and who vouches for them."""
    del parts
    for path, file in config.input_files():
        name = dotted(path)
        problem = find_problem(file) or _find_tls_problem(config, path, file)
        if problem is None:
            yield Finding("files", name, Verdict.OK, str(file))
        else:
            fix = "put a file in PEM form there, or name another in penstock.yaml"
            yield Finding("files", name, Verdict.WRONG, f"{file}: {problem}", fix)


def _find_tls_problem(config: Config, path: Steps, file: Path) -> str | None:
    """Say why a file is no certificate, or not that of its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if path[-1] == "certificate":
            beside: Any = config
            for step in path[:-1]:
                beside = beside[step] if isinstance(beside, dict) else getattr(beside, str(step))
            if beside.key is None or find_problem(beside.key.path) is not None:
                return None  # that of the key is told among the secrets
            context.load_cert_chain(file, beside.key.path, password=_refuse_password)
        else:
            context.load_verify_locations(file)
    except ssl.SSLError as error:
        return f"it cannot be used for TLS: {error.reason or error}"
    except PenstockError as error:
        return error.message
    return None


def _refuse_password() -> str:
    """Answer where a key asks for a password: without this, OpenSSL asks at the terminal."""
    raise UnavailableError("its key is encrypted with a password", fix="store the key without one")


def check_store(config: Config, parts: list[Part]) -> Iterator[Finding]:
    """Look at the database without making or upgrading anything."""
    del parts
    try:
        address = Address.parse(config.store.connection_url())
        if address.path is not None and not address.path.exists():
            detail = f"{address.shown} (made at the first use)"
            yield Finding("store", "database", Verdict.OK, detail)
            return
        with Database(address, create_engine(address)) as database:
            yield from _check_database(database)
    except PenstockError as error:
        yield Finding("store", "database", Verdict.WRONG, error.message, error.fix)


def _check_database(database: Database) -> Iterator[Finding]:
    shown = database.address.shown
    with database.read() as connection:
        yield Finding("store", "database", Verdict.OK, f"{shown} answers")
        version = database_version(connection)
        current = is_current(connection, shown)
        if database.is_postgresql:
            asked = time.time()
            there = float(
                connection.scalar(sa.text("SELECT extract(epoch FROM clock_timestamp())"))
            )
            yield _compare_clocks(there - (asked + time.time()) / 2)
    detail = f"version {version}" if version else "none yet"
    later = "" if current else f"; upgraded to {code_version()} at the next use"
    yield Finding("store", "tables", Verdict.OK, detail + later)


def _compare_clocks(apart: float) -> Finding:
    detail = f"{abs(apart):.1f} s apart from ours"
    if abs(apart) <= CLOCKS_APART:
        return Finding("store", "clock", Verdict.OK, detail)
    return Finding(
        "store", "clock", Verdict.WARNING, detail, "synchronise the clocks of both machines (NTP)"
    )


CHECKS: Final[tuple[Callable[[Config, list[Part]], Iterator[Finding]], ...]] = (
    check_programs,
    check_folders,
    check_secrets,
    check_files,
    check_store,
    check_ports,
    check_servers,
    check_access,
    check_clock,
)
"""All checks, in the order in which to fix what they find."""


def run_checks(config: Config, parts: list[Part]) -> list[Finding]:
    """Run all checks; return their findings."""
    return [finding for check in CHECKS for finding in check(config, parts)]
