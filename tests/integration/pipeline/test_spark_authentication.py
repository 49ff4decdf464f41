"""Nobody talks to Spark's driver who does not belong to the application, and no secret is shown."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.components import find_java

pytestmark = [pytest.mark.needs("java"), pytest.mark.timeout(400)]

LOOPBACK = "127.0.0.1"
# Another program asks the driver for an endpoint, without its secret and with it.
PROGRAM = """
import json
from pathlib import Path
from penstock.config import load
from penstock.pipeline.session import open_session

spark = open_session(load(Path("penstock.yaml"), {}).pipeline)
count = spark.range(0, 100, 1, 2).rdd.map(lambda row: row[0]).sum()
spark_java, conf = spark._jvm.org.apache.spark, spark.sparkContext.getConf()
Manager = spark_java.SecurityManager

def ask(settings, manager):
    made = spark_java.rpc.RpcEnv.create("other", "127.0.0.1", 0, settings, manager, True)
    address = spark_java.rpc.RpcAddress("127.0.0.1", int(conf.get("spark.driver.port")))
    try:
        made.setupEndpointRef(address, "HeartbeatReceiver")
        return True
    except Exception:
        return False
    finally:
        made.shutdown()

plain = spark_java.SparkConf(False)
nothing = getattr(Manager, "$lessinit$greater$default$3")()
outsider = ask(plain, Manager(plain, spark._jvm.scala.Option.empty(), nothing))
own = spark_java.SparkEnv.get()
insider = ask(own.conf(), own.securityManager())
shown = [Path(f"/proc/{it}/cmdline").read_bytes().decode(errors="replace")
         for it in (int(name.name) for name in Path("/proc").iterdir() if name.name.isdecimal())
         if Path(f"/proc/{it}/cmdline").exists()]
print(json.dumps({"count": count, "outsider": outsider, "insider": insider, "shown": shown}))
"""


def run(folder: Path, settings: str) -> subprocess.CompletedProcess[str]:
    (folder / "penstock.yaml").write_text(f"pipeline: {{memory: 512m, {settings}}}\n")
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def environment() -> dict[str, str]:
    java = find_java().path
    assert java is not None
    return {
        **os.environ,
        "JAVA_HOME": str(java.resolve().parent.parent),
        "SPARK_LOCAL_IP": LOOPBACK,
        "PYSPARK_PYTHON": sys.executable,
    }


@contextmanager
def cluster(folder: Path, secret: str) -> Iterator[str]:
    """Run a standalone cluster that lets nobody in without its secret."""
    import pyspark  # noqa: PLC0415 - only to find its programs

    properties = folder / "cluster.properties"
    properties.touch(mode=0o600)
    properties.write_text(f"spark.authenticate=true\nspark.authenticate.secret={secret}\n")
    with socket.create_server((LOOPBACK, 0)) as probe:
        port = probe.getsockname()[1]
    url, deploy = f"spark://{LOOPBACK}:{port}", "org.apache.spark.deploy"
    shared = ["--host", LOOPBACK, "--webui-port", "0", "--properties-file", str(properties)]
    work = ["--cores", "1", "--memory", "512m", "--work-dir", str(folder / "work"), url]
    launcher = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    started = []
    log = folder / "cluster.log"
    try:
        for command in (
            [launcher, f"{deploy}.master.Master", *shared, "--port", str(port)],
            [launcher, f"{deploy}.worker.Worker", *shared, *work],
        ):
            with log.open("ab") as output:
                started.append(
                    subprocess.Popen(
                        command,
                        env=environment(),
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                )
        end = time.monotonic() + 120
        while b"Registering worker" not in log.read_bytes():
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.2)
        yield url
    finally:
        for process in reversed(started):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_driver_on_this_machine_talks_to_nobody_without_its_secret(tmp_path: Path) -> None:
    done = run(tmp_path, "master: 'local[1]'")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["count"], found["outsider"], found["insider"]) == (4950, False, True)


def test_a_cluster_with_a_secret_is_used_and_the_secret_is_nowhere_to_be_seen(
    tmp_path: Path,
) -> None:
    secret = secrets.token_hex(16) + "\\x"
    (tmp_path / "right").touch(mode=0o600)
    (tmp_path / "right").write_text(secret)
    with cluster(tmp_path, secret.replace("\\", "\\\\")) as url:
        given = f"master: '{url}', executor_memory: 512m, secret: {{file: '{tmp_path}/right'}}"
        done = run(tmp_path, given)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["count"], found["outsider"], found["insider"]) == (4950, False, True)
        assert any("CoarseGrainedExecutorBackend" in it for it in found["shown"])
        bare = secret.removesuffix("\\x")
        assert not [it for it in found["shown"] if bare in it]
        written = [it for it in tmp_path.rglob("*") if it.is_file()]
        told = [it for it in written if bare.encode() in it.read_bytes()]
        assert sorted(it.name for it in told) == ["cluster.properties", "right"]
        assert bare not in done.stdout + done.stderr
