"""Views on a standalone cluster of two workers that share nothing but an HDFS; deploy/spark.

The job is submitted as `deploy/spark/submit` does it: the Python of its executors has no Penstock
but that of the archive.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.fs  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pyspark
import pytest
from pyspark.sql import SparkSession

from penstock.components import find_maven, processes
from penstock.components.clusters import HdfsCluster, SparkCluster, spark_environment
from penstock.components.finders import S3A_JARS
from penstock.components.processes import free_port
from penstock.errors import PenstockError
from penstock.hadoop import read_path
from penstock.pipeline.sinks.commits import ViewFolder
from penstock.pipeline.sinks.published import read_published
from penstock.pipeline.views.checkpoints import Checkpoint, read_place
from tests.support.scale import is_long, scaled

pytestmark = [pytest.mark.needs("java", "hadoop"), pytest.mark.timeout(900)]

DEFINITIONS = """\
kind: stream
name: patients
fields:
  - {name: pid, type: int}
  - {name: name, type: string}
  - {name: age, type: int}
  - {name: glucose, type: double}
subject: pid
---
{kind: view, name: nurse, stream: patients, anonymizers: [
  {anonymizer: tokenization, keys: [name]},
  {anonymizer: bucketizing, keys: [age], bucket_size: 10},
  {anonymizer: noise, keys: [glucose], noise: 0.5}]}
---
{kind: view, name: research, stream: patients, anonymizers: [
  {anonymizer: k_anonymization, keys: [pid, name], k: 5, delta: 50,
   quasi_identifiers: [{key: age, min: 0, max: 120}]}]}
"""
RECORDS = 500
ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy" / "spark"
SUBMITTING = {
    "SPARK_SUBMIT": str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
    "DRIVER_PYTHON": sys.executable,
    # The one that ours was made from: it has no packages.
    "EXECUTOR_PYTHON": str(Path(sys.executable).resolve()),
}
KILLED = """\
kind: stream
name: patients
fields:
  - {name: pid, type: int, category: identifier}
  - {name: age, type: int, category: quasi-identifier}
  - {name: number, type: int}
subject: pid
---
{kind: purpose, name: research}
---
{kind: group, name: officers, members: ["user:ann"]}
---
{kind: right, name: officer, subjects: ["group:officers"], administer: true}
---
{kind: view, name: lines, stream: patients, format: json, purposes: [research], anonymizers: [
  {anonymizer: suppression, keys: [pid]}]}
---
{kind: view, name: research, stream: patients, purposes: [research], anonymizers: [
  {anonymizer: k_anonymization, keys: [pid], k: 5, delta: 100,
   quasi_identifiers: [{key: age, min: 0, max: 120}]}]}
"""
KILLED_VIEWS = ("lines", "research")
KILLS = scaled(1, long=10)
OPTED_OUT = 30


def _penstock(folder: Path, *arguments: str, told: str = "") -> None:
    code = f"from penstock.cli import main; main({list(arguments)!r})"
    _do([sys.executable, "-c", code], folder, told)


def _do(command: list[str], folder: Path, told: str = "", **environment: str) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env=spark_environment() | environment,
        input=told,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def hdfs(spark: SparkSession) -> Iterator[str]:
    with HdfsCluster() as running:
        yield running.url


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What executors need, in the archive that `deploy/spark` brings them."""
    archive = tmp_path_factory.mktemp("archive") / "python.tar"
    without = ("matplotlib", "deltalake", "opendp")
    _do([sys.executable, str(DEPLOY / "pack.py"), str(archive), "--without", *without], ROOT)
    return archive


def _install(
    folder: Path, definitions: str, records: list[dict[str, Any]], store: str = ""
) -> None:
    """Make an installation, and feed it; its files lie in folders, or at a store."""
    folder.mkdir()
    places = f"event_log: '{store}/eventlog', store: '{store}/views', " if store else ""
    (folder / "penstock.yaml").write_text(
        f"pipeline: {{{places}memory: 512m, executor_memory: 512m, batch: 200, monitor_port: 0,"
        f" interval: 50ms, key: {folder.parent}/masks.key}}\nmonitor: {{port: 0}}\n"
        "gateway: {authentication: {passwords: keys/passwords}}\n"
    )
    (folder / "d.yaml").write_text(definitions)
    _penstock(folder, "apply", "-f", "d.yaml")
    _feed(folder, "records.json", records)


def _feed(folder: Path, name: str, records: list[dict[str, Any]]) -> None:
    (folder / name).write_text("".join(f"{json.dumps(it)}\n" for it in records))
    _penstock(folder, "views", "feed", "patients", name)


def _submit(master: str, archive: Path, *options: str) -> list[str]:
    return [str(DEPLOY / "submit"), master, str(archive), "--driver-memory", "512m", "--", *options]


def _view(folder: Path, name: str) -> ViewFolder:
    return ViewFolder(folder / "penstock-data" / "views" / name)


def _run(folder: Path, command: list[str]) -> dict[str, list[Any]]:
    """Run the views of an installation to their end; return what they publish."""
    for action in ("start", "stop"):
        _penstock(folder, "views", action, "--all")
        _do(command, folder, **SUBMITTING)
    return {
        name: [
            sorted(json.dumps(row) for row in read_published(_view(folder, name))),
            *_view(folder, name).dead_letters(),
        ]
        for name in ("nurse", "research")
    }


def test_a_cluster_gives_the_same_as_one_machine(
    tmp_path: Path, hdfs: str, cluster: SparkCluster, archive: Path
) -> None:
    records = [
        {"pid": n, "name": f"Name {n}", "age": n * 7 % 100, "glucose": 100.0 + n % 50}
        for n in range(RECORDS)
    ]
    _install(tmp_path / "local", DEFINITIONS, records)
    code = "from penstock.cli import main; main(['views', 'run', '--once'])"
    local = _run(tmp_path / "local", [sys.executable, "-c", code])
    assert len(local["nurse"][0]) == RECORDS
    assert len(local["research"][0]) + len(local["research"]) - 1 == RECORDS
    folder = tmp_path / "spread"
    _install(folder, DEFINITIONS, records, f"{hdfs}/same")
    assert _run(folder, _submit(cluster.url, archive, "--once")) == local
    for number in range(2):
        assert any((cluster.folder / f"worker-{number}").rglob("stderr")), "no executor ran"
    # What the workers had in common is at HDFS: no record lies in a folder of the driver's.
    kept = {
        it.relative_to(folder / "penstock-data") for it in (folder / "penstock-data").rglob("*")
    }
    assert not [it for it in kept if {"eventlog", "data", ".checkpoints"} & set(it.parts)]
    root = read_path(f"{hdfs}/same")
    assert {it.name for it in root.iterdir()} == {"eventlog", "views"}
    for name in ("nurse", "research", ".checkpoints"):
        assert (root / "views" / name).stat().st_mode & 0o777 == 0o700
        assert not (root / "views" / name / ".staging").exists()


def _progress(folder: Path) -> int:
    last = [_view(folder, name).last() for name in KILLED_VIEWS]
    return min(commit.totals.read if commit else 0 for commit in last)


def _wait_for(folder: Path, count: int, driver: subprocess.Popen[bytes]) -> None:
    last, moved = -1, time.monotonic()
    while (now := _progress(folder)) < count:
        assert driver.poll() is None, "the driver ended by itself"
        if now > last:
            last, moved = now, time.monotonic()
        assert time.monotonic() < moved + 240, "the views stand still"
        time.sleep(0.05)


class _Store:
    """Where records, files and checkpoints are; HDFS, which this process reads as Penstock does."""

    def __init__(self, url: str, environment: dict[str, str] | None = None) -> None:
        self.url = url
        self.environment = environment or {}

    def read(self, folder: Path, name: str) -> list[dict[str, Any]]:
        return list(read_published(_view(folder, name)))


class _ObjectStore(_Store):
    """A bucket at a server that speaks S3; read by another client than Hadoop's."""

    def read(self, folder: Path, name: str) -> list[dict[str, Any]]:
        system = pyarrow.fs.S3FileSystem(
            access_key="test",
            secret_key="test",  # noqa: S106 - a server of this test's own
            endpoint_override=self.environment["S3"],
            region="us-east-1",
        )
        data = f"{self.url.partition('://')[2]}/views/{name}/data"
        found: list[dict[str, Any]] = []
        for it in system.get_file_info(pyarrow.fs.FileSelector(data)):
            if it.type != pyarrow.fs.FileType.File:
                continue
            with system.open_input_file(it.path) as file:
                content = file.read()
            if it.path.endswith(".json"):
                found += map(json.loads, content.splitlines())
            else:
                found += pyarrow.parquet.read_table(pa.BufferReader(content)).to_pylist()
        assert folder.is_dir()
        return found


# The web server below says "100 Continue" twice; Hadoop's client takes the second for the answer.
S3_SERVER = """
from moto.server import main
from werkzeug.serving import WSGIRequestHandler

WSGIRequestHandler.handle_expect_100 = lambda self: True
main()
"""


@contextlib.contextmanager
def _run_s3(folder: Path) -> Iterator[_Store]:
    """Run a server that speaks S3, with a bucket; the clients' jars are fetched when needed."""
    if not S3A_JARS.version():
        maven = find_maven().path
        assert maven is not None, find_maven().fix
        subprocess.run(S3A_JARS.maven_command(maven, S3A_JARS.folder), check=True)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    (folder / "spark-defaults.conf").write_text(
        f"spark.driver.extraClassPath {S3A_JARS.folder}/*\n"
        f"spark.executor.extraClassPath {S3A_JARS.folder}/*\n"
        f"spark.hadoop.fs.s3a.endpoint {url}\n"
        "spark.hadoop.fs.s3a.endpoint.region us-east-1\n"
        "spark.hadoop.fs.s3a.path.style.access true\n"
        "spark.hadoop.fs.s3a.connection.ssl.enabled false\n"
        "spark.hadoop.fs.s3a.access.key test\n"
        "spark.hadoop.fs.s3a.secret.key test\n"
    )
    server = processes.start(
        [sys.executable, "-c", S3_SERVER, "-H", "127.0.0.1", "-p", str(port)],
        log=folder / "s3.log",
        ready=lambda: processes.accepts(port),
        seconds=120,
    )
    try:
        made = urllib.request.Request(f"{url}/penstock", method="PUT")  # noqa: S310 - our server
        urllib.request.urlopen(made).close()  # noqa: S310
        yield _ObjectStore("s3a://penstock/killed", {"SPARK_CONF_DIR": str(folder), "S3": url})
    finally:
        processes.stop(server)


@pytest.fixture(params=["hdfs", "s3a"] if is_long() else ["hdfs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[_Store]:
    if request.param == "hdfs":
        yield _Store(f"{request.getfixturevalue('hdfs')}/killed")
    else:
        with _run_s3(tmp_path) as found:
            yield found


@contextlib.contextmanager
def _driver(folder: Path, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a driver, and kill it with all that it started on this machine."""
    with (folder / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=spark_environment() | SUBMITTING,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _kill_executor(cluster: SparkCluster, draw: random.Random) -> None:
    executors = [
        it
        for worker in cluster.workers
        for it in psutil.Process(worker.pid).children(recursive=True)
        if it.name() == "java"
    ]
    draw.choice(executors).kill()


@pytest.mark.timeout(900 + 300 * KILLS)
def test_kills_of_driver_and_executors_lose_nothing_and_publish_nothing_twice(
    tmp_path: Path,
    store: _Store,
    cluster: SparkCluster,
    archive: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    draw = random.Random(2026)
    count, folder = 1000 + 400 * KILLS, tmp_path / "killed"
    records = [{"pid": n // 3, "age": n * 7 % 90, "number": n} for n in range(count)]
    late = [
        {"pid": OPTED_OUT if n % 2 else n, "age": 40, "number": n} for n in range(count, count + 6)
    ]
    _install(folder, KILLED, records, store.url)
    _penstock(folder, "password", "ann", told="word\n")
    (folder / "ann").touch(0o600)
    (folder / "ann").write_text("word\n")
    _penstock(folder, "views", "start", "--all")
    command = _submit(cluster.url, archive)
    for kill in range(KILLS):
        with _driver(folder, command) as driver:
            _wait_for(folder, count * (kill + 1) // (KILLS + 4), driver)
            _kill_executor(cluster, draw)
            _wait_for(folder, _progress(folder) + 1, driver)
            time.sleep(draw.random() * 2)
        assert _progress(folder) < count, "the views were done before the kill"
    who = ("--as", "ann", "--password-file", "ann")
    _penstock(folder, "consent", "opt-out", str(OPTED_OUT), "research", *who)
    _feed(folder, "late.json", late)
    with _driver(folder, command) as driver:
        _wait_for(folder, count + len(late), driver)
    _penstock(folder, "views", "stop", "--all")
    _do([*command, "--once"], folder, **SUBMITTING)
    person = {it["number"]: it["pid"] for it in (*records, *late)}
    for name in KILLED_VIEWS:
        rows = store.read(folder, name)
        numbers = Counter(row["number"] for row in rows)
        assert all(row["pid"] is None for row in rows)
        assert not [it for it in numbers if it >= count and person[it] == OPTED_OUT], name
        numbers.update(letter["offset"] for letter in _view(folder, name).dead_letters())
        assert numbers == dict.fromkeys(person, 1), name
    groups: dict[str, set[int]] = {}
    for row in store.read(folder, "research"):
        groups.setdefault(row["age"], set()).add(person[row["number"]])
    assert min(map(len, groups.values())) >= 5
    if store.url.startswith("hdfs:"):
        _check_damage(folder, store.url)


def _check_damage(folder: Path, store: str) -> None:
    """A checkpoint that lacks something, or is of another view, is refused with the reason."""
    place = read_place(folder / "penstock-data" / "views" / "research")
    assert place is not None
    checkpoint = Checkpoint(
        read_path(store) / "views" / ".checkpoints" / "patients" / place.checkpoint
    )
    owner = checkpoint.owner
    checkpoint.check(owner)
    assert checkpoint.fork(checkpoint.committed).position(checkpoint.committed)
    with pytest.raises(PenstockError, match="belongs to the view 'research', and not to"):
        checkpoint.check(type(owner)(owner.stream, owner.source, "another"))
    (checkpoint.folder / "offsets" / str(checkpoint.planned)).write_text("v1\n{}\nnonsense")
    with pytest.raises(PenstockError, match=r"offsets of batch .* that cannot be read"):
        checkpoint.check(owner)


def test_spark_reads_the_pods_of_executors(spark: SparkSession) -> None:
    java: Any = spark._jvm
    client = java.io.fabric8.kubernetes.client.KubernetesClientBuilder().build()
    try:
        read = java.org.apache.spark.deploy.k8s.KubernetesUtils.loadPodFromTemplate
        template = str(DEPLOY / "executor.yaml")
        found = read(
            client, template, java.scala.Some("executor"), java.org.apache.spark.SparkConf()
        )
        container, pod = found.container(), found.pod()
        assert not container.getSecurityContext().getAllowPrivilegeEscalation()
        assert pod.getSpec().getSecurityContext().getRunAsNonRoot()
        assert not pod.getSpec().getVolumes()
        assert not container.getVolumeMounts()
    finally:
        client.close()


def test_spark_takes_what_is_submitted_elsewhere(tmp_path: Path) -> None:
    """Read by Spark, and not run: the program finds no definitions, and asks no cluster."""
    (tmp_path / "penstock.yaml").touch()
    archive = tmp_path / "python.tar"
    archive.touch()
    started = {
        master: subprocess.Popen(
            [str(DEPLOY / "submit"), master, str(archive), "--verbose", "--", "--once"],
            cwd=tmp_path,
            env=spark_environment() | SUBMITTING | {"HADOOP_CONF_DIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for master in ("yarn", "k8s://https://127.0.0.1:6443")
    }
    for master, process in started.items():
        told = process.communicate()[0]
        assert process.returncode
        assert f"(spark.master,{master})" in told
        assert f"{archive}#penstock)" in told
        assert "childArgs               [--once]" in told
        template = f"(spark.kubernetes.executor.podTemplateFile,{DEPLOY}/executor.yaml)"
        assert (template in told) == master.startswith("k8s")
        assert "begin with `penstock init` and `penstock apply`" in told
