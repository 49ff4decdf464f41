"""`penstock check` and `explain` beside a real gateway: the same answers, in every situation."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main
from penstock.components import MosquittoServer
from tests.support.gateway.harness import GatewayThread
from tests.support.gateway.ward import login, open_ward, reading

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

Ask = Callable[..., tuple[int, Any]]
READERS = ("nurse", "doctor", "stranger", "sensor")
# Names that wildcards, folders, or the command line's own notation might trip over.
PATIENTS = ("ann", "bob=1", "c * d?", "Ærøskøbing 病", "x" * 300)


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*arguments: str) -> tuple[int, Any]:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--json"])
        assert isinstance(ended.value.code, int)
        return ended.value.code, json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def gateway(broker: MosquittoServer, tmp_path: Path) -> Iterator[GatewayThread]:
    # Long, as a gateway that a busy machine lets wait closes when its lease runs out.
    with open_ward(tmp_path, broker.port, window="1h", lease="60s") as running:
        yield running


def deliver(gateway: GatewayThread) -> dict[tuple[str, str], bool]:
    """Publish about every patient; return who received what."""
    readers = {user: login(gateway.port, user) for user in READERS}
    for client in readers.values():
        client.subscribe("ward/+/note", qos=1)
    with login(gateway.port, "sensor") as sensor:
        for patient in PATIENTS:
            sensor.publish(f"ward/{patient}/note", b"{}", qos=1)
    seen: dict[tuple[str, str], bool] = {}
    for user, client in readers.items():
        client.settle()
        topics = {topic for topic, _ in client.texts()}
        seen |= {(user, it): f"ward/{it}/note" in topics for it in PATIENTS}
        client.close()
    return seen


def check(ask: Ask) -> dict[tuple[str, str], bool]:
    found = {}
    for user in READERS:
        for patient in PATIENTS:
            code, answer = ask("check", "--subject", user, "--topic", f"ward/{patient}/note")
            assert answer["allowed"] == (code == 0)
            found[user, patient] = answer["allowed"]
    return found


def test_check_gives_the_gateways_answers(gateway: GatewayThread, ask: Ask) -> None:
    with login(gateway.port, "sensor") as sensor:
        for patient in PATIENTS[1:]:
            sensor.publish(f"ward/{patient}/pulse", reading(120), qos=1)
        told = deliver(gateway)
        assert check(ask) == told
        assert told["doctor", "bob=1"]
        assert not told["doctor", "ann"]
        for patient in PATIENTS[1:3]:
            sensor.publish(f"ward/{patient}/off", b"{}", qos=1)
        told = deliver(gateway)
        assert check(ask) == told
        assert not told["doctor", "bob=1"]
        assert told["doctor", "x" * 300]


def test_check_and_explain_name_the_situation_that_applied(
    gateway: GatewayThread, ask: Ask
) -> None:
    with login(gateway.port, "sensor") as sensor:
        sensor.publish("ward/ann/pulse", reading(120), qos=1)
        sensor.publish("ward/bob/pulse", reading(120), qos=1)
    question = ("check", "--subject", "doctor", "--topic", "ward/ann/note")
    code, answer = ask(*question)
    assert code == 0
    assert answer["rule"] == "emergency-policy doctor"
    assert answer["situation"] == "alert=Alert"
    (seen,) = answer["situations"].pop("looked_at")
    assert (seen["subject"], seen["situation"]) == ("ann", "Alert")
    assert seen["since"]
    assert answer["situations"] == {"source": "live", "trouble": None}
    # Hypothetical questions know nothing of what holds.
    assert ask(*question, "--situation", "none")[0] == 1
    code, answer = ask(*question, "--situation", "alert/bob=Alert")
    assert (code, answer["situations"]["source"]) == (1, "supposed")
    for topic, subjects in (("ward/ann/note", ["ann"]), ("ward/cid/note", [])):
        policies = {it["policy"]: it for it in ask("explain", topic)[1]["policies"]}
        assert [it["subject"] for it in policies["doctor"]["applies"]] == subjects
        assert policies["nurse"]["applies"] == []
    _, answer = ask("explain", "ward/cid/note", "--situation", "alert/cid=Alert")
    policies = {it["policy"]: it for it in answer["policies"]}
    assert [it["subject"] for it in policies["doctor"]["applies"]] == ["cid"]


def test_where_nobody_detects_no_situation_is_known(
    broker: MosquittoServer, tmp_path: Path, ask: Ask
) -> None:
    question = ("check", "--subject", "doctor", "--topic", "ward/ann/note")
    with open_ward(tmp_path, broker.port) as gateway:
        with login(gateway.port, "sensor") as sensor:
            sensor.publish("ward/ann/pulse", reading(120), qos=1)
        assert ask(*question)[0] == 0
    deadline = time.monotonic() + 60
    while (answer := ask(*question))[0] == 0:
        assert time.monotonic() < deadline
    assert answer[1]["situations"]["trouble"].startswith("no gateway detects since")
    (told,) = [it["effect"] for it in answer[1]["considered"] if "doctor" in it["rule"]]
    assert told.startswith("cannot be decided: no gateway detects")
    _, answer = ask("explain", "ward/ann/note")
    assert answer["situations"]["trouble"].startswith("no gateway detects since")
