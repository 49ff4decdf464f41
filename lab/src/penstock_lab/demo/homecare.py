"""Homecare: what a doctor prescribes at a patient's home, who gets it, and as what.

Ann treats the patient p1, Bob treats p2. A Prescribe reaches the doctor who treats the patient; the
pharmacy gets it as a Prescription, the auditor as a Controlled_Drug_Auth without the patient, of
one class of drugs alone. The carer sees where patients are: roughly, and exactly in an emergency.

Rules that hold here:
- Everything is real: a broker, the gateway as a process, users with passwords, MQTT clients.
- After each step everybody must have received exactly what the story says.
"""

from __future__ import annotations

import importlib.resources
import json
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from rich.table import Table

from penstock.definitions import read_text
from penstock.model.document import Document
from penstock_lab.demo.stage import Place, set_up
from penstock_lab.demo.story import DemoFailedError, Story

READERS = ("ann", "bob", "pharmacy", "auditor", "carer")
WAIT_SECONDS = 15.0
QUIET_SECONDS = 0.5
APPOINTMENTS = (
    ("ann", 'qualified("ann")'),
    ("ann", 'treats("ann", "p1")'),
    ("bob", 'qualified("bob")'),
    ("bob", 'treats("bob", "p2")'),
)
Event = tuple[str, dict[str, Any]]


def run(story: Story) -> None:
    """Run all steps, and check each of them."""
    story.step("Start a broker and the gateway in front of it")
    with set_up([*READERS, "sensor"], definitions()) as place:
        story.note(f"clients connect to the gateway on 127.0.0.1:{place.port}")
        with Household(place) as cast:
            _run_steps(story, cast)


def definitions() -> list[Document]:
    """Return the definitions of the example, appointments included."""
    text = importlib.resources.files("penstock_lab.demo").joinpath("homecare.yaml").read_text()
    found = list(read_text(text, "homecare.yaml").documents)
    for at, (user, credential) in enumerate(APPOINTMENTS):
        body = {"credential": credential, "holder": f"user:{user}"}
        found.append(Document("appointment", f"{user}-{at}", body))
    return found


def _run_steps(story: Story, cast: Household) -> None:
    story.step("Everybody subscribes to all that there may be for them")
    for name in READERS:
        cast.subscribe(name, "home/#", "pharmacy/#", "audit/#")
    story.note("the gateway delivers to each what is theirs, and says nothing of the rest")

    story.step("Ann prescribes p1 morphine, Bob prescribes p2 codeine")
    cast.publish("ann", "home/p1/prescribe", _prescribe("p1", "morphine"))
    cast.publish("bob", "home/p2/prescribe", _prescribe("p2", "codeine"))
    seen = cast.take({"ann": 1, "bob": 1, "pharmacy": 2, "auditor": 1, "carer": 0})
    _show(story, seen)
    story.expect(
        "each doctor sees the patients she or he treats, and no others",
        actual=(seen["ann"], seen["bob"]),
        wanted=(
            [("home/p1/prescribe", _prescribe("p1", "morphine"))],
            [("home/p2/prescribe", _prescribe("p2", "codeine"))],
        ),
    )
    story.expect(
        "the pharmacy gets both as a Prescription: without the doctor's note",
        actual=sorted(body["drug"] for topic, body in seen["pharmacy"] if "note" not in body),
        wanted=["codeine", "morphine"],
    )
    story.expect(
        "the auditor hears of class A, and not for whom",
        actual=seen["auditor"],
        wanted=[("audit/controlled-drug-auth", {"drug": "morphine", "class": "A", "dose": "5 mg"})],
    )

    story.step("A sensor tells where p1 is; then p1 falls; then help has come")
    rough = {"patient": "p1", "lat": "[52.2 - 52.3]", "lon": "[0.1 - 0.2]"}
    exact = {"patient": "p1", "lat": 52.2053, "lon": 0.1218}
    for what, alarm, wanted in (
        ("the carer sees the place to about ten kilometres", None, rough),
        ("in the emergency she sees it exactly", "alarm", exact),
        ("and roughly again when it is over", "over", rough),
    ):
        if alarm is not None:
            cast.publish("sensor", f"home/p1/{alarm}", {})
        cast.publish("sensor", "home/p1/location", exact)
        seen = cast.take({"carer": 1, "ann": 1})
        story.expect(what, actual=seen["carer"], wanted=[("home/p1/location", wanted)])


def _prescribe(patient: str, drug: str) -> dict[str, Any]:
    return {"patient": patient, "drug": drug, "dose": "5 mg", "pharmacy": "north", "note": "pain"}


def _show(story: Story, seen: dict[str, list[Event]]) -> None:
    table = Table("who", "topic", "attributes")
    for name, events in seen.items():
        for topic, body in events:
            table.add_row(name, topic, ", ".join(f"{key}={it}" for key, it in body.items()))
    story.console.print(table)


class Household(AbstractContextManager["Household"]):
    """All clients, and what each has received."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._clients: dict[str, Client] = {}
        self._received: dict[str, list[Event]] = {name: [] for name in READERS}

    def subscribe(self, name: str, *filters: str) -> None:
        """Let somebody subscribe, and wait until the gateway has said so."""
        granted = threading.Event()
        client = self._join(name)
        client.on_subscribe = lambda *_: granted.set()
        client.subscribe([(it, 1) for it in filters])
        _wait(granted.is_set, f"{name} cannot subscribe")

    def publish(self, name: str, topic: str, body: dict[str, Any]) -> None:
        """Let somebody publish, and wait until the gateway has confirmed it."""
        sent = self._join(name).publish(topic, json.dumps(body), qos=1)
        sent.wait_for_publish(WAIT_SECONDS)

    def take(self, counts: dict[str, int]) -> dict[str, list[Event]]:
        """Return what arrived since the last time, when so many have, and no more come."""
        received = self._received
        _wait(
            lambda: all(len(received[name]) >= count for name, count in counts.items()),
            "messages are missing",
        )
        time.sleep(QUIET_SECONDS)
        self._received = {name: [] for name in READERS}
        return received

    def _join(self, name: str) -> Client:
        if name not in self._clients:
            client = Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTv5)
            client.username_pw_set(name, self._place.passwords[name])
            client.on_message = self._take_note(name)
            client.connect("127.0.0.1", self._place.port)
            client.loop_start()
            self._clients[name] = client
        return self._clients[name]

    def _take_note(self, name: str) -> Callable[[Client, Any, MQTTMessage], None]:
        def note(_client: Client, _data: object, message: MQTTMessage) -> None:
            self._received[name].append((message.topic, json.loads(message.payload)))

        return note

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            client.disconnect()
            client.loop_stop()


def _wait(holds: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise DemoFailedError(otherwise, fix="see `penstock doctor`")
        time.sleep(0.02)
