"""CSV files become records once, and readers get what Kafka lets them have."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock.components import KafkaCluster
from penstock.errors import UsageError
from penstock.eventlog import EventLog, Topic
from penstock.eventlog.connection import producer_settings
from penstock.eventlog.files import MarkedTopic
from penstock.eventlog.kafka import KafkaLog
from penstock.feeding.ingest import ChunkWriter, Connector
from penstock.model.kinds import Stream
from tests.support.commands import run_command
from tests.support.kafka.clusters import settings_of
from tests.support.scale import scaled

FIELDS: list[dict[str, Any]] = [
    {"name": "pid", "type": "int"},
    {"name": "name", "type": "string"},
    {"name": "born", "type": "date", "optional": True},
    {"name": "at", "type": "timestamp", "optional": True},
    {"name": "value", "type": "double", "optional": True},
]
STREAM = Stream.model_validate({"name": "s", "fields": FIELDS})
HEADER = "pid,name,born,at,value,more\n"
KILLS = scaled(2)


def into_files(folder: Path) -> Callable[[str], ChunkWriter]:
    topic = EventLog(folder / "log").topic("s")
    return lambda name: MarkedTopic(topic, folder / "notes" / name.replace(".", "-"))


def fed(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(record.value) for record in EventLog(folder / "log").topic("s").read()]


def test_rows_are_checked_and_told_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(
        ("\ufeff" + HEADER).encode()
        + b'1,"An, na\nB",2024-02-29,2024-02-29T10:00:00Z,1.5,x\r\n'
        + b"x,Bert,,,,\n"
        + b"3,Carl,2024-02-30,,,\n"
        + b"4,D\xff,,,,\n"
        + b"5,E\n"
        + b",F,,,,\n"
        + b"7,G,,,NaN,\n"
        + b"\n"
        + b"8,,,,1e3,\n"
    )
    done = Connector(STREAM, into_files(tmp_path)).feed(path)
    assert fed(tmp_path) == [
        {
            "pid": 1,
            "name": "An, na\nB",
            "born": "2024-02-29",
            "at": "2024-02-29T10:00:00+00:00",
            "value": 1.5,
        },
        {"pid": 8, "name": "", "born": None, "at": None, "value": 1000.0},
    ]
    lines = [row.line for row in done.bad]
    assert lines == [4, 5, 6, 7, 8, 9]
    assert (done.mark.fed, done.mark.bad) == (2, 6)
    reasons = " ".join(row.reason for row in done.bad)
    assert "'pid'" in reasons
    assert "Bert" not in reasons


def test_what_was_fed_is_passed_over_and_what_grew_is_fed_on(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(HEADER + "1,A,,,,\n")
    connector = Connector(STREAM, into_files(tmp_path))
    assert connector.feed(path).rows == 1
    assert connector.feed(path).rows == 0
    with path.open("a") as file:
        file.write("2,B,,,,\n")
    assert connector.feed(path).rows == 1
    assert [row["pid"] for row in fed(tmp_path)] == [1, 2]
    path.write_text(HEADER + "9,A,,,,\n2,B,,,,\n")
    with pytest.raises(UsageError, match="changed before line 3"):
        connector.feed(path)
    path.write_text("pid,born\n")
    with pytest.raises(UsageError, match="no column 'name'"):
        connector.feed(path)
    assert [row["pid"] for row in fed(tmp_path)] == [1, 2]


class CrashError(Exception):
    pass


@pytest.mark.parametrize("arrived", [0, 1, 2, 3])
def test_a_crash_while_appending_to_files_neither_loses_nor_repeats(
    arrived: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(HEADER + "1,A,,,,\n2,B,,,,\n3,C,,,,\n")
    whole = Topic.append

    def part(self: Topic, values: list[bytes], keys: list[bytes], **more: Any) -> range:
        whole(self, values[:arrived], keys[:arrived], **more)
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(Topic, "append", part)
        with pytest.raises(CrashError):
            Connector(STREAM, into_files(tmp_path)).feed(path)
    # Others append in between, and the file grows.
    EventLog(tmp_path / "log").topic("s").append([b'{"pid": 0}'])
    with path.open("a") as file:
        file.write("4,D,,,,\n")
    Connector(STREAM, into_files(tmp_path)).feed(path)
    assert sorted(row["pid"] for row in fed(tmp_path)) == [0, 1, 2, 3, 4]


DEFINITIONS = """\
kind: stream
name: fed
fields:
  - {name: pid, type: int}
  - {name: name, type: string}
source: kafka
---
{kind: view, name: all, stream: fed, format: topic, roles: [reader]}
---
{kind: role, name: reader}
"""


def install(folder: Path, kafka: KafkaCluster) -> None:
    (folder / "penstock.yaml").write_text(
        f"kafka: {{bootstrap: '{kafka.bootstrap}', security: sasl_plaintext, timeout: 20s, "
        f"password: {{file: '{kafka.admin_password_file}'}}}}\n"
    )
    (folder / "d.yaml").write_text(DEFINITIONS)
    made = run_command(folder, "apply", "-f", "d.yaml")
    assert made.returncode == 0, made.stderr


@pytest.mark.needs("java", "jars")
@pytest.mark.timeout(120 + 60 * KILLS)
def test_a_killed_connector_goes_on_where_it_was(kafka: KafkaCluster, tmp_path: Path) -> None:
    install(tmp_path, kafka)
    draw, rows = random.Random(5), 60_000
    source = tmp_path / "in"
    source.mkdir()
    for number in range(2):
        with (source / f"{number}.csv").open("w") as file:
            file.write("pid,name\n")
            file.writelines(f"{n},N{n}\n" for n in range(number * rows, (number + 1) * rows))
            file.write("bad,row\n")
    words = ("connect", "csv", "in", "--stream", "fed", "--json")
    for _ in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *words],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(1 + draw.random() * 4)
        process.kill()
        process.wait()
    done = run_command(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [(it["fed_in_all"], it["bad_in_all"]) for it in told["files"]] == [(rows, 1)] * 2
    log = KafkaLog(settings_of(kafka))
    found = sorted(json.loads(record.value)["pid"] for record in log.topic("fed").read())
    assert found == list(range(2 * rows))
    again = json.loads(run_command(tmp_path, *words).stdout)
    assert (again["fed"], again["bad"]) == (0, 0)


@pytest.mark.needs("java", "jars")
def test_readers_get_tables_and_others_a_reason(kafka: KafkaCluster, tmp_path: Path) -> None:
    install(tmp_path, kafka)
    log = KafkaLog(settings_of(kafka))
    log.make_topic("fed-all", 2)
    log.topic("fed-all").append([json.dumps({"pid": 1, "name": "Anna\x1b[2J"}).encode()])
    for user, role in (("rita", ["--role", "reader"]), ("nobody", [])):
        made = run_command(tmp_path, "user", "add", user, "--generate", *role)
        assert made.returncode == 0, made.stderr
    told = run_command(tmp_path, "consume", "all", "--user", "rita")
    assert told.returncode == 0, told.stderr
    assert "pid" in told.stdout
    assert "Anna" in told.stdout
    assert "\x1b[2J" not in told.stdout
    lines = run_command(tmp_path, "consume", "all", "--user", "rita", "--json").stdout.splitlines()
    assert [json.loads(line)["pid"] for line in lines] == [1]
    denied = run_command(tmp_path, "consume", "all", "--user", "nobody")
    assert denied.returncode == 1
    assert "does not let 'nobody' read 'fed-all'" in denied.stderr
    assert "penstock explain --kafka-topic fed-all" in denied.stderr.replace("\n", "")
    for user, code in (("rita", 0), ("nobody", 1), ("stranger", 1)):
        checked = run_command(tmp_path, "check", "--view", "all", "--subject", user)
        assert checked.returncode == code, checked.stderr
    explained = run_command(tmp_path, "explain", "--kafka-topic", "fed-all", "--json")
    told = json.loads(explained.stdout)["roles"]
    assert told == [{"role": "reader", "may": "read fed-all", "users": ["rita"]}]
    environment = {"PENSTOCK_READER_PASSWORD": "wrong"}
    wrong = run_command(tmp_path, "consume", "all", "--user", "rita", env=environment)
    assert wrong.returncode == 1
    assert "wrong user or password" in wrong.stderr
    missing = run_command(tmp_path, "consume", "none", "--user", "rita")
    assert missing.returncode == 2
    # A mark ends each transaction, and takes an offset as a record does.
    writer = Producer(producer_settings(log.settings, log.user, log.password, transaction="few"))
    writer.init_transactions(30)
    for pid in range(2, 10):
        writer.begin_transaction()
        writer.produce("fed-all", json.dumps({"pid": pid}).encode(), partition=pid % 2)
        writer.commit_transaction(30)
    for rows, pids in ((4, [6, 7, 8, 9]), (20, [1, *range(2, 10)])):
        words = ("consume", "all", "--user", "rita", "--json", "--rows", str(rows))
        lines = run_command(tmp_path, *words).stdout.splitlines()
        assert [json.loads(line)["pid"] for line in lines] == pids
