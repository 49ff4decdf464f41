"""An HDFS of our own on loopback, for tests: a name node and a data node, in one folder.

Rules that hold here:
- Both listen on loopback only, and are ended by the ids that we started.
- The files below the folder are HDFS's own: blocks, and the name node's tables.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
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
                )
            )

    def stop(self) -> None:
        """End both nodes."""
        while self._started:
            processes.stop(self._started.pop())
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _command(self, node: str) -> list[str]:
        java, spark = find_java().path, importlib.util.find_spec("pyspark")
        if java is None or spark is None or spark.origin is None:
            raise UnavailableError("HDFS needs Java and pyspark", fix="penstock doctor")
        jars = [Path(spark.origin).parent / "jars" / "*", HADOOP_JARS.folder / "*"]
        places = os.pathsep.join(map(str, (self.folder, *jars)))
        return [str(java), *_JVM, "-cp", places, _NODES[node]]
