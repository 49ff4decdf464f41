"""HiveMQ CE on loopback: a second MQTT 5 broker, for tests of the gateway.

What it does otherwise than Mosquitto, as far as a gateway can tell (MQTT5 leaves both open):
- Overlapping subscriptions get one copy that names all their identifiers (MQTT5 3.3.4);
  Mosquitto sends a copy for each.
- It takes 10 unacknowledged messages of a client, and says so; Mosquitto takes any number.
- While a message of QoS 1 or 2 is unacknowledged, those that come after it wait, whatever the
  client's receive maximum.
- It answers an UNSUBSCRIBE of an unknown filter with success.

Rules that hold here:
- The broker runs in its own JVM, driven through Py4J, which comes with Spark: HiveMQ admits
  nobody unless told to in Java, and a Java runtime has no compiler.
- It keeps its state in memory: it ends with everything it knew.
"""

from __future__ import annotations

import contextlib
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from penstock.components import find_java, processes
from penstock.components.finders import find_hivemq

_CONFIGURATION = """<?xml version="1.0" encoding="UTF-8"?>
<hivemq>
  <listeners>
    <tcp-listener><port>{port}</port><bind-address>127.0.0.1</bind-address></tcp-listener>
  </listeners>
  <persistence><mode>in-memory</mode></persistence>
  <anonymous-usage-statistics><enabled>false</enabled></anonymous-usage-statistics>
</hivemq>
"""
_JVM_OPTIONS = ["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


class HiveMqServer(processes.Server):
    """A broker that lives as long as the `with` block."""

    def __init__(self, folder: Path, *, port: int = 0) -> None:
        self.folder = folder
        self.port = port or processes.free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the broker and wait until it accepts connections."""
        conf, data, extensions = (self.folder / it for it in ("conf", "data", "extensions"))
        for folder in (conf, data, extensions):
            folder.mkdir(parents=True, exist_ok=True)
        (conf / "config.xml").write_text(_CONFIGURATION.format(port=self.port))
        port, token, self._process = launch_gateway(
            classpath=_classpath(),
            javaopts=[*_JVM_OPTIONS, f"-Dhivemq.log.folder={self.folder / 'log'}"],
            java_path=str(find_java().path),
            die_on_exit=True,
            return_proc=True,
            enable_auth=True,
        )
        java = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
        try:
            _admit_all(java)
            _start(java, conf, data, extensions)
        except BaseException:
            self.stop()
            raise
        finally:
            # What is left of Java objects would be told to a JVM that is gone.
            java.close(keep_callback_server=True, close_callback_server_connections=True)

    def stop(self) -> None:
        """End the broker: its state is in memory, so nothing needs to be put in order."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(processes.STOP_SECONDS)
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
            self._process = None


def _classpath() -> str:
    jars = find_hivemq()
    spark = find_spec("pyspark")
    assert jars.path is not None, jars.fix
    assert spark is not None
    assert spark.origin is not None
    (rocksdb,) = (Path(spark.origin).parent / "jars").glob("rocksdbjni-*.jar")
    return f"{jars.path}/*:{rocksdb}"


def _admit_all(java: JavaGateway) -> None:
    configurations: Any = java.jvm.com.hivemq.configuration.service.InternalConfigurations
    configurations.AUTH_DENY_UNAUTHENTICATED_CONNECTIONS.set(False)


def _start(java: JavaGateway, conf: Path, data: Path, extensions: Path) -> None:
    jvm: Any = java.jvm
    none = java.new_array(jvm.java.lang.String, 0)
    builder = jvm.com.hivemq.embedded.EmbeddedHiveMQ.builder()
    for method, folder in (
        (builder.withConfigurationFolder, conf),
        (builder.withDataFolder, data),
        (builder.withExtensionsFolder, extensions),
    ):
        method(jvm.java.nio.file.Paths.get(str(folder), none))
    builder.build().start().join()
