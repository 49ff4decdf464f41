"""Who sees what: clients that share no code with ours try all topics for all users."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import confluent_kafka
import pytest

from penstock.components import KafkaCluster, find
from penstock.components.kafka import client_properties, write_private
from penstock.kafka import Cluster, make_topics, owned_name
from tests.support.kafka.clusters import tool_command
from tests.support.kafka.officers import Officer, open_officer, stream, view

pytestmark = pytest.mark.needs("java", "jars")

TOPICS = ("ward", "ward-doctor", "ward-nurse", "ward-office", "wardrobe")
PASSWORD = "correct horse"  # noqa: S105 - of users that live for a test
# Who may read and write what, as a person would write it on paper.
READS = {
    "dora": {"ward", "ward-doctor"},
    "nina": {"ward-nurse"},
    "otto": {"ward-office"},
    "hedi": {"ward-nurse", "ward-office"},
    "prim": {"ward-doctor", "ward-nurse", "ward-office"},
    "robo": set(),
    "gast": set(),
}
WRITES = {"robo": {"ward"}, "hedi": {"wardrobe"}}


@pytest.fixture(scope="module")
def officer(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Officer]:
    with open_officer(kafka, tmp_path_factory.mktemp("access")) as made:
        made.apply(
            stream("ward"),
            stream("wardrobe"),
            view("ward", "doctor", "doctor"),
            view("ward", "nurse", "nurse"),
            view("ward", "office"),
        )
        does = made.does
        does.add_role("doctor", ["stream:ward"])
        does.add_role("nurse")
        does.add_role("office", ["ward-office"])
        does.add_role("head", includes=["nurse", "office"])
        does.add_permission("head", "wardrobe", allow="write")
        does.add_role("overview", ["prefix:ward-"])
        does.add_role("feed")
        does.add_permission("feed", "ward", allow="write")
        for user, role in (
            ("dora", "doctor"),
            ("nina", "nurse"),
            ("otto", "office"),
            ("hedi", "head"),
            ("prim", "overview"),
            ("robo", "feed"),
        ):
            does.add_user(user, PASSWORD, [role])
        does.add_user("gast", PASSWORD)
        with Cluster(made.settings) as cluster:
            assert make_topics(cluster, made.definitions.current()[1]) == list(TOPICS)
        for topic in TOPICS:
            made.produce(topic, f"from {topic}")
        yield made


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Give kcat a librdkafka that brokers still let in, where its own is too old.

    Before 2.6.1 it repeated the nonce in SCRAM, which brokers of Kafka 4 refuse.
    """
    program = find("kcat").path
    said = subprocess.run([str(program), "-V"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"librdkafka (\d+)\.(\d+)\.(\d+)", said)
    assert version is not None
    if tuple(map(int, version.groups())) >= (2, 6, 1):
        return {}
    bundled = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    (found,) = bundled.glob("librdkafka-*.so.1")
    folder = tmp_path_factory.mktemp("library")
    (folder / "librdkafka.so.1").symlink_to(found)
    return {"LD_LIBRARY_PATH": f"{folder}{os.pathsep}{bundled}"}


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def kcat(officer: Officer, library: dict[str, str]) -> Run:
    def run(user: str, *words: str, text: str = "") -> tuple[int, str, str]:
        return run_kcat(officer.cluster, library, user, *words, text=text)

    return run


def run_kcat(
    kafka: KafkaCluster, library: dict[str, str], user: str, *words: str, text: str = ""
) -> tuple[int, str, str]:
    program = find("kcat").path
    assert program is not None
    login = {
        "bootstrap.servers": kafka.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": PASSWORD,
    }
    options = [word for name, value in login.items() for word in ("-X", f"{name}={value}")]
    done = subprocess.run(
        [str(program), *options, *words],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **library},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.needs("kcat")
def test_kcat_reads_exactly_what_the_role_table_says(kcat: Run) -> None:
    for user, allowed in READS.items():
        for topic in TOPICS:
            code, found, errors = kcat(
                user, "-C", "-q", "-e", "-o", "beginning", "-c", "1", "-t", topic
            )
            if topic in allowed:
                assert (code, found) == (0, f"from {topic}\n"), (user, topic, errors)
            else:
                assert code != 0, (user, topic)
                assert "authorization failed" in errors.lower(), (user, topic, errors)
                assert not found


@pytest.mark.needs("kcat")
def test_kcat_writes_exactly_what_the_role_table_says(kcat: Run) -> None:
    for user in READS:
        for topic in TOPICS:
            code, _, errors = kcat(
                user, "-P", "-t", topic, "-X", "message.timeout.ms=4000", text="x"
            )
            assert (code == 0) == (topic in WRITES.get(user, set())), (user, topic, errors)


@pytest.mark.needs("kcat")
def test_kcat_with_a_wrong_password_is_turned_away(kcat: Run) -> None:
    words = ["-L", "-t", "ward-nurse", "-m", "3", "-X", "sasl.password=wrong"]
    code, _, errors = kcat("nina", *words)
    assert code != 0
    assert "authentication failed" in errors.lower()


def console(officer: Officer, folder: Path, user: str, *words: str) -> tuple[str, str]:
    """Run Kafka's own console consumer as a user; return what it printed and complained of."""
    tool = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    return run_tool(officer, folder, tool, user, "--from-beginning", *words)


def run_tool(officer: Officer, folder: Path, tool: str, user: str, *words: str) -> tuple[str, str]:
    properties = folder / f"{user}.properties"
    bootstrap = officer.cluster.bootstrap
    write_private(properties, client_properties(bootstrap, user, PASSWORD))
    login = ["--bootstrap-server", bootstrap, "--command-config", str(properties)]
    done = subprocess.run(
        tool_command(officer.cluster, tool, *login, *words),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout, done.stdout + done.stderr


def test_kafkas_own_console_reads_what_the_role_table_says(
    officer: Officer, tmp_path: Path
) -> None:
    def read_all(user: str) -> set[str]:
        group, count = owned_name(user, "console"), str(len(READS[user]))
        found, _ = console(
            officer, tmp_path, user, "--include", ".*", "--group", group, "--max-messages", count
        )
        return {line for line in found.splitlines() if line.startswith("from ")}

    readers = [user for user in READS if READS[user]]
    with ThreadPoolExecutor(2) as pool:
        seen = dict(zip(readers, pool.map(read_all, readers), strict=True))
    assert seen == {user: {f"from {name}" for name in READS[user]} for user in readers}


def test_kafkas_own_tools_see_no_other_topics(officer: Officer, tmp_path: Path) -> None:
    def list_all(user: str) -> set[str]:
        tool = "org.apache.kafka.tools.TopicCommand"
        return set(run_tool(officer, tmp_path, tool, user, "--list")[0].split())

    with ThreadPoolExecutor(2) as pool:
        seen = dict(zip(READS, pool.map(list_all, READS), strict=True))
    assert seen == {user: READS[user] | WRITES.get(user, set()) for user in READS}


def test_kafkas_own_console_is_refused_other_topics_and_other_peoples_groups(
    officer: Officer, tmp_path: Path
) -> None:
    own = owned_name("nina", "x")
    _, said = console(officer, tmp_path, "nina", "--topic", "ward-office", "--group", own)
    assert "TopicAuthorizationException" in said
    other = owned_name("otto", "x")
    _, said = console(officer, tmp_path, "nina", "--topic", "ward-nurse", "--group", other)
    assert "GroupAuthorizationException" in said
