"""Live at the console: the gateway itself decides what is seen, and looking is recorded."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from tests.support.console.installation import PASSWORDS, ConsoleInstallation
from tests.support.store.installation import until

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.needs("mosquitto-clients")]
RULES = """
kind: purpose
name: care
---
kind: purpose
name: research
---
kind: reservation
name: "ward/#"
allow: [care]
---
kind: enforcement
name: default
policies: required
---
kind: policy
name: pumps-write
subject: user:pump
allow: write
filter: "ward/#"
---
kind: policy
name: nurses-read
subject: user:nurse
allow: read
filter: "ward/+/vitals"
---
kind: right
name: officers
subjects: [user:officer]
administer: true
"""


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInstallation]:
    installation = ConsoleInstallation(
        tmp_path_factory.mktemp("live"),
        parts=("broker", "gateway", "console"),
        definitions=RULES,
        gateway={
            "filtering": {"strict": True},
        },
    )
    installation.start()
    yield installation
    installation.stop()


def publish(ward: ConsoleInstallation, topic: str, payload: str) -> None:
    subprocess.run(
        [
            "mosquitto_pub", "-h", "127.0.0.1", "-p", str(ward.mqtt_port), "-q", "1",
            "-i", "pump", "-u", "pump", "-P", PASSWORDS["pump"], "-t", topic, "-m", payload,
        ],
        check=True,
        timeout=60,
    )  # fmt: skip


def path(filter_: str, purpose: str = "", **more: str) -> str:
    return "/live.json?" + urlencode({"filter": filter_, "purpose": purpose, **more})


def follow(ward: ConsoleInstallation, session: str, address: str, state: str) -> None:
    until(lambda: ward.data(address, session)["state"] == state, state)


def test_who_may_read_sees_what_the_gateway_delivers(ward: ConsoleInstallation) -> None:
    session = ward.sign_in("nurse")
    address = path("ward/+/vitals", "care")
    follow(ward, session, address, "following")
    for number in range(3):
        publish(ward, "ward/7/vitals", json.dumps({"pulse": 70 + number}))
    until(lambda: ward.data(address, session)["count"] == 3, "three messages")
    seen = ward.data(address, session)["messages"]
    assert [it["number"] for it in seen] == [3, 2, 1]
    assert json.loads(seen[0]["text"]) == {"pulse": 72}
    assert seen[0]["topic"] == "ward/7/vitals"
    page = ward.page(address.replace(".json", ""), session)
    assert "&#34;pulse&#34;: 72" in page
    only = ward.data(path("ward/+/vitals", "care", contains="71"), session)["messages"]
    assert [json.loads(it["text"])["pulse"] for it in only] == [71]


def test_nobody_sees_more_than_the_policies_show(ward: ConsoleInstallation) -> None:
    nurse, officer = ward.sign_in("nurse"), ward.sign_in("officer")
    other = path("ward/+/vitals", "research")
    until(lambda: ward.data(other, nurse)["state"] in {"following", "failed"}, "an answer")
    # Whoever administers is shown definitions, not data.
    address = path("ward/+/vitals", "care")
    follow(ward, nurse, address, "following")
    until(lambda: ward.data(address, officer)["state"] in {"following", "failed"}, "an answer")
    before = ward.data(address, nurse)["count"]
    publish(ward, "ward/8/vitals", "secret")
    until(lambda: ward.data(address, nurse)["count"] > before, "the message")
    assert ward.data(address, officer)["messages"] == []
    assert ward.data(other, nurse)["messages"] == []


def test_what_comes_is_shown_as_text(ward: ConsoleInstallation) -> None:
    session = ward.sign_in("nurse")
    address = path("ward/+/vitals", "care")
    follow(ward, session, address, "following")
    before = ward.data(address, session)["count"]
    publish(ward, "ward/<b>x/vitals", "<script>alert(1)</script>")
    until(lambda: ward.data(address, session)["count"] > before, "the message")
    shown = ward.page(address.replace(".json", ""), session)
    assert "<script>alert" not in shown
    assert "<b>x" not in shown


def test_looking_is_recorded_and_takes_a_session(ward: ConsoleInstallation) -> None:
    officer = ward.sign_in("officer")
    rows = ward.data("/audit.json?kind=console.live&who=nurse", officer)["rows"]
    assert rows
    assert rows[0]["details"]["purpose"] in {"care", "research"}
    assert "ward" not in json.dumps(rows)
    assert ward.ask(path("ward/#", "care")).status == 401
    assert ward.ask(path("ward/##", "care"), session=officer).status == 422
    # Nobody takes messages away from a group that shares them.
    assert ward.ask(path("$share/alarms/ward/#", "care"), session=officer).status == 422


def test_who_was_led_here_by_others_follows_nothing_yet(ward: ConsoleInstallation) -> None:
    session = ward.sign_in("nurse")
    address = path("ward/by-a-link/vitals", "care")
    for site in ("cross-site", "same-site"):
        answer = ward.ask(address, session=session, headers={"Sec-Fetch-Site": site})
        assert json.loads(answer.text)["state"] == "idle"
    assert ward.data(address, session)["state"] != "idle"


def test_what_nobody_looks_at_is_closed(ward: ConsoleInstallation) -> None:
    officer = ward.sign_in("officer")

    def count() -> int | None:
        found = ward.data("/overview.json", officer)["stages"][0]["figures"]
        return next((it["value"] for it in found if it["label"] == "clients"), None)

    until(lambda: count() == 0, "the end of all tails")
