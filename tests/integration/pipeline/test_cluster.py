"""The same views on a standalone cluster of two workers as on one machine; deploy/spark.

The job is submitted as `deploy/spark/submit` does it: the Python of its executors has no Penstock
but that of the archive.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from penstock.components import find_java
from penstock.components.processes import free_port
from penstock.eventlog import Topic
from penstock.pipeline.sinks.commits import ViewFolder
from penstock.pipeline.sinks.published import read_published

pytestmark = [pytest.mark.needs("java"), pytest.mark.timeout(900)]

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
LOOPBACK = "127.0.0.1"


def _environment() -> dict[str, str]:
    java = find_java().path
    assert java is not None
    return {
        **os.environ,
        "JAVA_HOME": str(java.resolve().parent.parent),
        "SPARK_LOCAL_IP": LOOPBACK,
        "PYSPARK_PYTHON": sys.executable,
    }


@contextmanager
def _cluster(folder: Path) -> Iterator[str]:
    launcher = Path(pyspark.__file__).parent / "bin" / "spark-class"
    port = free_port()
    url = f"spark://{LOOPBACK}:{port}"
    deploy = "org.apache.spark.deploy"
    commands = [[f"{deploy}.master.Master", "--port", str(port), "--webui-port", "0"]]
    commands += [
        [
            f"{deploy}.worker.Worker",
            *("--cores", "1", "--memory", "512m", "--webui-port", "0"),
            *("--work-dir", str(folder / f"worker-{number}"), url),
        ]
        for number in range(2)
    ]
    started = []
    try:
        for number, command in enumerate(commands):
            log = (folder / f"cluster-{number}.log").open("wb")
            arguments = [str(launcher), command[0], "--host", LOOPBACK, *command[1:]]
            started.append(
                subprocess.Popen(
                    arguments,
                    env=_environment(),
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
        _wait_for_workers(folder / "cluster-0.log")
        yield url
    finally:
        for process in reversed(started):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for_workers(log: Path) -> None:
    end = time.monotonic() + 120
    while log.read_bytes().count(b"Registering worker") < 2:
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.2)


def _penstock(folder: Path, *arguments: str) -> None:
    code = f"from penstock.cli import main; main({list(arguments)!r})"
    _do([sys.executable, "-c", code], folder)


def _do(command: list[str], folder: Path, **environment: str) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env=_environment() | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _pack(archive: Path) -> Path:
    without = ("matplotlib", "deltalake", "opendp")
    _do([sys.executable, str(DEPLOY / "pack.py"), str(archive), "--without", *without], ROOT)
    return archive


def _run(folder: Path, master: str, archive: Path | None = None) -> dict[str, list[Any]]:
    """Run the views of an installation of its own; return what they publish."""
    folder.mkdir()
    (folder / "penstock.yaml").write_text(
        f"pipeline: {{master: '{master}', memory: 512m, executor_memory: 512m, batch: 200,"
        f" key: {folder.parent}/masks.key}}\n"
    )
    (folder / "d.yaml").write_text(DEFINITIONS)
    records = [
        {"pid": n, "name": f"Name {n}", "age": n * 7 % 100, "glucose": 100.0 + n % 50}
        for n in range(RECORDS)
    ]
    topic = Topic(folder / "penstock-data" / "eventlog" / "patients")
    topic.append([json.dumps(record).encode() for record in records])
    _penstock(folder, "apply", "-f", "d.yaml")
    for action in ("start", "stop"):
        _penstock(folder, "views", action, "--all")
        if archive is None:
            _penstock(folder, "views", "run", "--once")
        else:
            command = [str(DEPLOY / "submit"), master, str(archive), "--driver-memory", "512m"]
            _do([*command, "--", "--once"], folder, **SUBMITTING)
    views = folder / "penstock-data" / "views"
    return {
        name: [
            sorted(json.dumps(row) for row in read_published(ViewFolder(views / name))),
            *ViewFolder(views / name).dead_letters(),
        ]
        for name in ("nurse", "research")
    }


def test_a_cluster_gives_the_same_as_one_machine(tmp_path: Path) -> None:
    local = _run(tmp_path / "local", "local[2]")
    assert len(local["nurse"][0]) == RECORDS
    assert len(local["research"][0]) + len(local["research"]) - 1 == RECORDS
    with _cluster(tmp_path) as url:
        spread = _run(tmp_path / "spread", url, _pack(tmp_path / "python.tar"))
    assert spread == local
    assert any((tmp_path / "worker-0").rglob("stderr")), "no executor ran on the first worker"
    assert any((tmp_path / "worker-1").rglob("stderr")), "no executor ran on the second worker"


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
        mounted = {it.getName(): it.getMountPath() for it in container.getVolumeMounts()}
        assert mounted == {"penstock": "/shared/penstock"}
        assert not container.getSecurityContext().getAllowPrivilegeEscalation()
        assert pod.getSpec().getSecurityContext().getRunAsNonRoot()
        assert [it.getName() for it in pod.getSpec().getVolumes()] == ["penstock"]
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
            env=_environment() | SUBMITTING | {"HADOOP_CONF_DIR": str(tmp_path)},
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
