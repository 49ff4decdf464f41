"""A standalone cluster of Spark, and an HDFS, of our own on loopback: for tests and benchmarks.

Rules that hold here:
- All listen on loopback only, and are ended by the ids that we started.
- The workers of a cluster have folders of their own. What ends them ends their executors.
- The files below the folder of an HDFS are its own: blocks, and the name node's tables.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from penstock.components import processes
from penstock.components.finders import HADOOP_JARS, find_java
from penstock.errors import UnavailableError

_HOST = "127.0.0.1"
_NODES = {
    "namenode": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "datanode": "org.apache.hadoop.hdfs.server.datanode.DataNode",
}
_JVM = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_FORMAT_SECONDS = 60
_DEPLOY = "org.apache.spark.deploy"
_REGISTERED = b"Registering worker"
_WAITING_SECONDS = 120.0


def spark_environment() -> dict[str, str]:
    """Return what programs of Spark need of their environment here."""
    java = find_java()
    if java.path is None:
        raise UnavailableError("Spark needs Java, which is missing", fix=java.fix)
    return {
        **os.environ,
        "JAVA_HOME": str(java.path.resolve().parent.parent),
        "SPARK_LOCAL_IP": _HOST,
        "PYSPARK_PYTHON": sys.executable,
    }


def _find_spark() -> Path:
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise UnavailableError("pyspark is missing", fix="pip install 'penstock[spark]'")
    return Path(spark.origin).parent


class SparkCluster(processes.Server):
    """A master and workers of a core each, as long as the `with` block lasts."""

    def __init__(self, folder: Path, *, workers: int = 2, memory: str = "512m") -> None:
        self.folder = folder
        self.url = f"spark://{_HOST}:{processes.free_port()}"
        self.workers: list[subprocess.Popen[bytes]] = []
        self._number = workers
        self._memory = memory
        self._master: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start master and workers, and wait until they know each other."""
        port = self.url.rpartition(":")[2]
        self._master = self._run("master", "master.Master", "--port", port)
        for number in range(self._number):
            home = self.folder / f"worker-{number}"
            size = ("--cores", "1", "--memory", self._memory, "--work-dir", str(home))
            self.workers.append(self._run(home.name, "worker.Worker", *size, self.url))
        end = time.monotonic() + _WAITING_SECONDS
        log = self.folder / "master.log"
        while log.read_bytes().count(_REGISTERED) < self._number:
            if time.monotonic() > end or self._master.poll() is not None:
                self.stop()
                raise UnavailableError("the Spark cluster did not become ready", fix=f"see {log}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End all of it, with its executors."""
        started = [*self.workers, self._master]
        for process in started:
            if process is not None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.workers, self._master = [], None

    def _run(self, name: str, program: str, *options: str) -> subprocess.Popen[bytes]:
        launcher = _find_spark() / "bin" / "spark-class"
        given = ("--host", _HOST, "--webui-port", "0", *options)
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [str(launcher), f"{_DEPLOY}.{program}", *given],
                env=spark_environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


class HdfsCluster(processes.Server):
    """An HDFS that lives as long as the `with` block."""

    def __init__(self, folder: Path | None = None) -> None:
        self._temporary = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="penstock-hdfs-"))
        self._port = processes.free_port()
        self._data_port = processes.free_port()
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """Where it is: `hdfs://HOST:PORT`."""
        return f"hdfs://{_HOST}:{self._port}"

    def start(self) -> None:
        """Make a new file system, and start both nodes."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        name, data = self.folder / "name", self.folder / "data"
        for folder in (self.folder, name, data):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings = {
            "fs.defaultFS": self.url,
            "dfs.namenode.name.dir": name.as_uri(),
            "dfs.datanode.data.dir": data.as_uri(),
            "dfs.replication": 1,
            "dfs.datanode.hostname": _HOST,
            "dfs.datanode.address": f"{_HOST}:{self._data_port}",
            "dfs.namenode.safemode.extension": 0,
            "dfs.namenode.http-address": f"{_HOST}:0",
            "dfs.datanode.http.address": f"{_HOST}:0",
            "dfs.datanode.ipc.address": f"{_HOST}:0",
        }
        told = "".join(
            f"<property><name>{key}</name><value>{value}</value></property>"
            for key, value in settings.items()
        )
        for file in ("core-site.xml", "hdfs-site.xml"):
            (self.folder / file).write_text(f"<configuration>{told}</configuration>")
        format_command = [*self._command("namenode"), "-format", "-nonInteractive"]
        done = subprocess.run(
            format_command, capture_output=True, timeout=_FORMAT_SECONDS, check=False
        )
        if done.returncode:
            raise UnavailableError("HDFS could not be formatted", fix=f"see {self.folder}")
        for node, port in (("namenode", self._port), ("datanode", self._data_port)):
            self._started.append(
                processes.start(
                    self._command(node),
                    log=self.folder / f"{node}.log",
                    ready=lambda port=port: processes.accepts(port),  # type: ignore[misc]
                    seconds=_WAITING_SECONDS,
                )
            )

    def stop(self) -> None:
        """End both nodes."""
        while self._started:
            processes.stop(self._started.pop())
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _command(self, node: str) -> list[str]:
        java = Path(spark_environment()["JAVA_HOME"]) / "bin" / "java"
        jars = (_find_spark() / "jars" / "*", HADOOP_JARS.folder / "*")
        places = os.pathsep.join(map(str, (self.folder, *jars)))
        return [str(java), *_JVM, "-cp", places, _NODES[node]]
