"""The development cluster: denies by default, keeps what it holds, and loses nodes one by one."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.components import KafkaCluster
from penstock.errors import UnavailableError, UsageError
from tests.support.kafka.clusters import kill_node, start_node

pytestmark = pytest.mark.needs("java", "jars")

# Long, as a busy machine may need it: what is waited for comes sooner or not at all.
PATIENCE = 300.0


def settings(bootstrap: str, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }


def find_leader(admin: AdminClient, topic: str) -> int:
    # A node may answer before it has heard of the topic.
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        partitions = admin.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        if partitions and partitions[0].leader > 0:
            return int(partitions[0].leader)
        time.sleep(0.1)
    pytest.fail("the topic got no leader")


def test_nobody_gets_in_without_the_right_password(kafka: KafkaCluster) -> None:
    admin = AdminClient(settings(kafka.bootstrap, "admin", kafka.passwords.admin))
    assert len(admin.list_topics(timeout=10).brokers) == 1
    wrong = AdminClient(settings(kafka.bootstrap, "admin", "wrong"))
    with pytest.raises(KafkaException):
        wrong.list_topics(timeout=2)
    plain = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    with pytest.raises(KafkaException):
        plain.list_topics(timeout=2)


def test_secrets_are_private_and_on_no_command_line(kafka: KafkaCluster) -> None:
    secret = [kafka.admin_password_file, kafka.admin_properties_file]
    secret += [kafka.folder / "cluster.json", kafka.folder / "node-1" / "server.properties"]
    for file in secret:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    (pid,) = kafka.pids.values()
    words = Path(f"/proc/{pid}/cmdline").read_text()
    assert kafka.passwords.admin not in words
    assert kafka.passwords.nodes not in words
    assert not (kafka.folder / "node-1" / "format.arguments").exists()


def test_a_command_runs_a_cluster_that_keeps_its_topics(tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "penstock", "dev", "kafka", *words, "--json"],
            cwd=tmp_path,
            env={**os.environ, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )

    assert run("status").returncode == 3
    for existing in ([], ["kept"]):
        started = run("start")
        assert started.returncode == 0, started.stderr
        try:
            said = json.loads(started.stdout)
            password = Path(said["password_file"]).read_text().strip()
            admin = AdminClient(settings(said["bootstrap"], said["user"], password))
            assert list(admin.list_topics(timeout=10).topics) == existing
            if not existing:
                admin.create_topics([NewTopic("kept", 1)])["kept"].result()
            again = run("start")
            assert again.returncode == 2
            assert "runs already" in again.stderr
            assert json.loads(run("status").stdout)["nodes"] == {"1": "ready"}
        finally:
            stopped = run("stop")
        assert stopped.returncode == 0, stopped.stderr
    assert run("stop").returncode == 3


@pytest.mark.timeout(3600)
def test_a_cluster_of_three_outlives_a_crashed_node() -> None:
    with KafkaCluster(brokers=3, heap="256m") as cluster:
        config = settings(cluster.bootstrap, "admin", cluster.passwords.admin)
        admin = AdminClient(config)
        admin.create_topics([NewTopic("t", 1, 3)])["t"].result()
        leader = find_leader(admin, "t")
        producer = Producer({**config, "enable.idempotence": True})
        failed: list[object] = []

        def note(error: object, message: object) -> None:
            if error:
                failed.append(error)

        for number in range(20):
            if number == 10:
                kill_node(cluster, leader)
            producer.produce("t", str(number), on_delivery=note)
            assert producer.flush(PATIENCE) == 0
        assert not failed
        start_node(cluster, leader)
        reader = Consumer({**config, "group.id": "g", "auto.offset.reset": "earliest"})
        reader.subscribe(["t"])
        found: list[str] = []
        deadline = time.monotonic() + PATIENCE
        while len(found) < 20 and time.monotonic() < deadline:
            message = reader.poll(1)
            if message is not None and message.error() is None:
                found.append(bytes(message.value() or b"").decode())
        reader.close()
        assert found == [str(number) for number in range(20)]


def test_a_node_that_cannot_start_tells_why(tmp_path: Path) -> None:
    cluster = KafkaCluster(tmp_path / "k")
    cluster._format_missing()
    properties = tmp_path / "k" / "node-1" / "server.properties"
    properties.write_text(properties.read_text() + "authorizer.class.name=no.such.Authorizer\n")
    with pytest.raises(UnavailableError, match=r"no\.such\.Authorizer"):
        cluster.start()
    assert not cluster.pids


def test_a_folder_holds_one_cluster_of_one_size(tmp_path: Path) -> None:
    KafkaCluster(tmp_path / "k", brokers=3)
    with pytest.raises(UsageError, match="a cluster of 3"):
        KafkaCluster(tmp_path / "k", brokers=1)
    with pytest.raises(UsageError, match="1 to 9"):
        KafkaCluster(brokers=0)
