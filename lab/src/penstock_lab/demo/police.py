"""Police: three organisations at one broker that none of them trusts.

PITO owns the type of vehicle sightings. The Met's cameras publish them; the Congestion Charge
Service reads number plates and never a location; a detective with a court order gets the sightings
of one plate. Each has its own folder, key and gateway; all they share is the address of a broker.

Rules that hold here:
- Everything is real: a broker, three gateways as processes, users with passwords, MQTT clients.
- Capabilities go as files; event types and keys come over the broker by themselves.
- After each step everybody must have received exactly what the story says.
"""

from __future__ import annotations

import io
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, Final

from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from rich.table import Table

from penstock.cli import main
from penstock.components import MosquittoServer, processes
from penstock_lab.demo.stage import start_gateway, write_passwords
from penstock_lab.demo.story import DemoFailedError, Story

WAIT_SECONDS: Final = 60.0
QUIET_SECONDS: Final = 0.5
TOPIC: Final = "cameras/oxford-street/sighting"
PLATE: Final = "AB12 CDE"
OTHER: Final = "CD34 EFG"
VALUES: Final = (PLATE, OTHER, "gate 3")
SECRETS: Final = (*VALUES, "numberplate", "location")
SIGHTINGS: Final = [{"numberplate": it, "location": "gate 3"} for it in (PLATE, OTHER)]
GRANTS: Final = {
    "met": "type: sighting; action: publish | subscribe",
    "charge": "type: sighting; action: subscribe; attributes: numberplate",
}
USERS: Final = {
    "met": {
        "camera": "type: sighting; action: publish",
        "smith": "type: sighting; action: subscribe; "
        f"attributes: numberplate = '{PLATE}' & location",
        "jones": "",
    },
    "charge": {"billing": GRANTS["charge"]},
    "pito": {},
}
STREAM: Final = {
    "kind": "stream", "name": "sightings", "event_type": "sighting/1",
    "from": ["cameras/+/sighting"], "sealed": "attributes",
}  # fmt: skip


def run(story: Story) -> None:
    """Run all steps, and check each of them."""
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as name, ExitStack() as stack:
        _Police(story, Path(name), stack).run()


class _Police:
    """The three organisations."""

    def __init__(self, story: Story, folder: Path, stack: ExitStack) -> None:
        self.story, self.folder, self.stack = story, folder, stack
        self.passwords = {user: f"{user}-pw" for users in USERS.values() for user in users}
        self.ports: dict[str, int] = {}
        self.received: dict[str, list[dict[str, Any]]] = {}
        self.crossed: list[bytes] = []
        self.broker: MosquittoServer
        self.camera: Client

    def run(self) -> None:
        self.found()
        self.meet()
        self.see()
        self.tap()
        self.expel()

    def found(self) -> None:
        """Make the three organisations."""
        story = self.story
        story.step("Three organisations make their keys; PITO signs the type, and who may what")
        trust = {
            "network": "City", "coordinator": self.penstock("pito", "cert", "key")["key"],
            "refresh": "1s", "key_lead": "0s",
        }  # fmt: skip
        self.broker = self.stack.enter_context(
            MosquittoServer(self.folder / "broker", persistent=True)
        )
        for name in USERS:
            self.start(name, trust)
        made = self.file("sighting")
        self.penstock(
            "pito", "event-type", "create", "sighting", "numberplate:string", "location:string",
            "--name", "sighting/1", "-o", made,
        )  # fmt: skip
        self.penstock("pito", "apply", "-f", made)
        for name, grant in GRANTS.items():
            key = self.penstock(name, "cert", "key")["key"]
            words = ("--to", f"key:{key}", "--name", "rights", "-o", self.file(f"{name}-rights"))
            self.penstock("pito", "cert", "issue", "network: City; action: connect", grant, *words)
            self.penstock(name, "apply", "-f", self.file(f"{name}-rights"))
            story.note(f"{name} may: {grant}")

    def meet(self) -> None:
        """Exchange the type and the keys over the broker."""
        story = self.story
        story.step("They meet at the broker: the type comes, and each says what its people may")
        for name in GRANTS:
            self.until(partial(self.penstock, name, "get", "event-type"), "no type came")
            for user, grant in USERS[name].items():
                if grant:
                    own = self.file(f"{name}-{user}")
                    words = ("--to", f"user:{user}", "--name", user, "-o", own)
                    self.penstock(name, "cert", "delegate", "rights", grant, *words)
                    self.penstock(name, "apply", "-f", own)
        stream = Path(self.file("stream"))
        stream.write_text(json.dumps(STREAM))
        for name in USERS:
            self.penstock(name, "apply", "-f", str(stream))
        wanted = {"met": 2, "charge": 1}
        self.until(
            lambda: {name: self.count_keys(name) for name in GRANTS} == wanted, "no keys came"
        )
        story.expect(
            "keys came over the broker: all to the Met, that of number plates to Charge",
            actual={name: self.count_keys(name) for name in GRANTS}, wanted=wanted,
        )  # fmt: skip

    def see(self) -> None:
        """Let a camera publish, and look who got what."""
        story = self.story
        story.step("A camera sees two cars")
        self.join("tap", self.broker.port, secret=False)
        for user, name in (("billing", "charge"), ("smith", "met"), ("jones", "met")):
            self.join(user, self.ports[name])
        self.camera = self.join("camera", self.ports["met"])
        self.settle()
        for it in SIGHTINGS:
            self.publish(it, retain=True)
        self.until(
            lambda: len(self.received["billing"]) == len(SIGHTINGS) and self.received["smith"],
            "sightings are missing",
        )
        time.sleep(QUIET_SECONDS)
        self.show()
        story.expect(
            "the Congestion Charge Service reads number plates, and never a location",
            actual=self.received["billing"],
            wanted=[{"numberplate": it} for it in (PLATE, OTHER)],
        )
        story.expect(
            "the detective gets the sightings of the plate in the court order",
            actual=self.received["smith"],
            wanted=SIGHTINGS[:1],
        )
        story.expect(
            "a colleague without a court order gets nothing",
            actual=self.received["jones"],
            wanted=[],
        )

    def tap(self) -> None:
        """Look at what others than the three can read."""
        story = self.story
        story.step("What the broker, its disk and an outsider can read")
        seen = b"".join(self.crossed)
        story.note(f"the last message as it crosses: {self.crossed[-1][:44].hex()}…")
        story.expect(
            "an outsider at the broker gets bytes without any attribute or name of one",
            actual=[it for it in SECRETS if it.encode() in seen], wanted=[],
        )  # fmt: skip
        story.expect("of each message", actual=len(self.crossed), wanted=len(SIGHTINGS))
        # Mosquitto writes all that it keeps when it is told to.
        os.kill(self.broker.pid, signal.SIGUSR1)
        files = self.folder / "broker"
        self.until(lambda: any(files.rglob("*.db")), "the broker does not save what it keeps")
        time.sleep(QUIET_SECONDS)
        held = b"".join(it.read_bytes() for it in files.rglob("*.db"))
        story.expect(
            f"nor are values in what it keeps on its disk ({len(held):,} bytes)",
            actual=([it for it in VALUES if it.encode() in held], TOPIC.encode() in held),
            wanted=([], True),
        )
        story.note("it reads topics, who published, the type with its names, times and lengths")

    def expel(self) -> None:
        """Put one of them out of the key groups."""
        story = self.story
        story.step("PITO expels the Congestion Charge Service")
        charge = self.penstock("charge", "cert", "key")["key"]
        self.penstock("pito", "keys", "expel", charge, "-o", self.file("expelled"))
        generation = self.newest("pito")
        self.until(lambda: self.newest("met") == generation, "no new keys came")
        # Its gateway seals with them a second later.
        self.until(self.is_out, "the Met seals with the old key")
        before = len(self.received["billing"])
        for _ in range(3):
            self.is_out()
        story.expect(
            "what is sealed from now on it cannot read; what it has read before it keeps",
            actual=len(self.received["billing"]) - before, wanted=0,
        )  # fmt: skip

    # --- organisations ---
    def start(self, name: str, trust: dict[str, Any]) -> None:
        """Run the gateway of an organisation in a process of its own."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        write_passwords(folder / "passwords", {it: self.passwords[it] for it in USERS[name]})
        port = self.ports[name] = processes.free_port()
        settings = {
            "log": {"level": "error"},
            "monitor": {"enabled": False},
            "broker": {"mode": "external", "host": "127.0.0.1", "port": self.broker.port},
            "gateway": {
                "open_mode": False,
                "listeners": {"mqtt": {"port": port}},
                "authentication": {"passwords": str(folder / "passwords")},
            },
            "trust": trust,
        }
        (folder / "penstock.yaml").write_text(json.dumps(settings))
        start_gateway(self.stack, folder / "penstock.yaml", port)
        self.story.note(f"{name} runs a gateway on 127.0.0.1:{port}, over a folder of its own")

    def penstock(self, name: str, *words: str) -> Any:
        """Run a command in the folder of an organisation; return what it says as JSON."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        out, err, code = io.StringIO(), io.StringIO(), None
        with chdir(folder), redirect_stdout(out), redirect_stderr(err):
            # In this process: one of its own would import for a second what is there already.
            try:
                main([*words, "--json"])
            except SystemExit as ended:
                code = ended.code
        if code:
            raise DemoFailedError(f"penstock {' '.join(words)}: {err.getvalue().strip()}")
        return json.loads(out.getvalue()) if out.getvalue().strip() else []

    def file(self, name: str) -> str:
        """Return where something lies that one organisation sends to another."""
        return str(self.folder / f"{name}.yaml")

    def count_keys(self, name: str) -> int:
        """Return of how many resources an organisation has keys."""
        return len({(it["type"], it["attribute"]) for it in self.penstock(name, "keys", "list")}
                   - {("sighting", "whole")})  # fmt: skip

    def newest(self, name: str) -> int:
        """Return the newest generation of the keys that an organisation has."""
        return max(int(it["generation"]) for it in self.penstock(name, "keys", "list"))

    # --- clients ---

    def join(self, user: str, port: int, *, secret: bool = True) -> Client:
        """Connect somebody who listens to all sightings."""
        client = Client(CallbackAPIVersion.VERSION2, client_id=user, protocol=MQTTv5)
        self.received[user] = []
        if secret:
            client.username_pw_set(user, self.passwords[user])
        granted = threading.Event()

        def note(_client: Client, _data: object, message: MQTTMessage) -> None:
            if secret:
                self.received[user].append(json.loads(message.payload))
            else:
                self.crossed.append(bytes(message.payload))

        client.on_message, client.on_subscribe = note, lambda *_: granted.set()
        client.connect("127.0.0.1", port)
        client.loop_start()
        self.stack.callback(client.loop_stop)
        self.stack.callback(client.disconnect)
        if user != "camera":
            client.subscribe("cameras/#", qos=1)
            self.until(granted.is_set, f"{user} cannot subscribe")
        return client

    def publish(self, sighting: dict[str, Any], *, retain: bool = False) -> None:
        """Publish a sighting, and wait until the gateway has confirmed it."""
        sent = self.camera.publish(TOPIC, json.dumps(sighting), qos=1, retain=retain)
        sent.wait_for_publish(WAIT_SECONDS)

    def settle(self) -> None:
        """Wait until all gateways know all that was applied: a first car passes."""

        def passes() -> bool:
            self.publish(SIGHTINGS[0])
            time.sleep(QUIET_SECONDS)
            return bool(self.received["billing"]) and bool(self.received["smith"])

        self.until(passes, "no sighting arrives")
        time.sleep(QUIET_SECONDS)
        for held in self.received.values():
            held.clear()
        self.crossed.clear()

    def is_out(self) -> bool:
        """Publish, and tell whether the Congestion Charge Service reads it no more."""
        before, seen = len(self.received["billing"]), len(self.received["smith"])
        self.publish(SIGHTINGS[0])
        self.until(lambda: len(self.received["smith"]) > seen, "the detective gets nothing")
        time.sleep(QUIET_SECONDS)
        return len(self.received["billing"]) == before

    def show(self) -> None:
        """Show who has read what."""
        table = Table("who", "reads")
        for user in ("billing", "smith", "jones"):
            for it in self.received[user] or [{}]:
                table.add_row(user, ", ".join(f"{key}={it[key]}" for key in it) or "nothing")
        self.story.console.print(table)

    def until(self, holds: Callable[[], object], otherwise: str) -> None:
        """Wait until something holds; the demonstration fails where it does not."""
        end = time.monotonic() + WAIT_SECONDS
        while not holds():
            if time.monotonic() > end:
                raise DemoFailedError(otherwise, fix="see `penstock doctor`")
            time.sleep(0.1)
