"""What tests at a Kafka of their own begin with."""

from __future__ import annotations

from penstock.components import KafkaCluster
from penstock.components.kafka import KafkaNode, write_logging
from penstock.components.processes import STOP_SECONDS
from penstock.config.brokers import KafkaSettings
from penstock.config.settings import folders


def settings_of(kafka: KafkaCluster, **more: object) -> KafkaSettings:
    return KafkaSettings.model_validate(
        {
            "bootstrap": kafka.bootstrap,
            "security": "sasl_plaintext",
            "password": {"file": str(kafka.admin_password_file)},
            "key": str(kafka.folder / "credentials.key"),
            **more,
        },
        context=folders(kafka.folder),
    )


def start_node(kafka: KafkaCluster, number: int) -> None:
    """Start one node again and wait until it answers."""
    kafka._launch(_node(kafka, number))
    kafka._await(_node(kafka, number))


def kill_node(kafka: KafkaCluster, number: int) -> None:
    """End one node as a crash would."""
    process = kafka._processes.pop(number)
    process.kill()
    process.wait(STOP_SECONDS)


def tool_command(kafka: KafkaCluster, main: str, *arguments: str) -> list[str]:
    """Return the command that runs one of Kafka's own programs, by its class."""
    file = kafka.folder / "tools-log4j2.properties"
    write_logging(file, "ERROR")
    logging = f"-Dlog4j2.configurationFile={file}"
    java = [str(kafka._java), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return [*java, logging, "-cp", f"{kafka._jars}/*", main, *arguments]


def _node(kafka: KafkaCluster, number: int) -> KafkaNode:
    return next(node for node in kafka.nodes if node.number == number)
