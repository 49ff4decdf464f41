"""A running system with live data and its console, until Ctrl-C.

    sensors ─▶ gateway ─▶ broker ─▶ carer, doctors, a study
                  └─▶ event log ─▶ views              p1 falls, help comes, again and again
    portal ─▶ privacy requests ─▶ archive, pharmacy, lab (which is down)

Rules that hold here:
- Everything is real, as in the other demonstrations; who publishes and subscribes are clients of
  the gateway. Requests of past weeks are put into the store with the dates that they tell.
- It has no account: the link that is printed makes the first, once.
- Nothing is left when it ends: it lives in a temporary folder.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import random
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

from argon2 import PasswordHasher
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions
from rich.console import Console

from penstock.components import find, processes
from penstock.config import Config, load
from penstock.definitions import read_text
from penstock.errors import PenstockError
from penstock.model.document import Document
from penstock.pipeline.control import Control
from penstock.rights.broker import PrivacyBroker, Submission
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.consent import ConsentBook
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from penstock.store.rights.requests import NewRequest, RequestBook
from penstock.store.rights.tables import ProgressEvent, Sealer
from penstock.telemetry import configure
from penstock_lab.demo import homecare

READY: Final = """
Penstock runs, with patients at home, an emergency every minute, and privacy requests.

  console   {link}
            The link is good once: it makes the account that administers. In Live such an account
            sees town/weather; sign in as carer, password {password}, to see patients.
  gateway   127.0.0.1:{port}; to look at it:
            mosquitto_sub -V 5 -p {port} -i carer:you -u carer -P {password} \\
            -t 'home/+/vitals' -D subscribe user-property purpose-ap care
  folder    {folder}           cd there for `penstock status`, `penstock explain home/p1/vitals`

Ctrl-C ends it.
"""
USERS: Final = (*homecare.READERS, "sensor", "study", "visitor", "portal", "archive", "lab")
PATIENTS: Final = tuple(f"p{number}" for number in range(1, 13))
SERVICES: Final = {"archive": 30, "pharmacy": 30, "lab": 30}
START_SECONDS: Final = 180.0
PERIOD: Final = 0.08
"""Seconds between two measurements."""
FALL_SECONDS: Final = 60.0
HELP_SECONDS: Final = 25.0
DENIED_SECONDS: Final = 4.0
REQUEST_SECONDS: Final = 20.0
WEEKS: Final = 8
_LINK: Final = re.compile(r"http://\S+/first\?link=\S+")


def run(console: Console) -> None:
    """Run the system until the user ends it."""
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as name, ExitStack() as stack:
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        # A shell that starts it in the background lets Ctrl-C be ignored; here it never is.
        for it in (signal.SIGINT, signal.SIGTERM):
            signal.signal(it, signal.default_int_handler)
        configure(level="error")  # its keys are new, and nobody has to keep them
        folder = Path(name)
        archive = stack.enter_context(_serve_archive())
        passwords = {user: secrets.token_urlsafe(12) for user in USERS}
        config, port, address = _set_up(folder, passwords)
        _define(config, archive)
        with (folder / "penstock.log").open("wb") as log:
            parts = subprocess.Popen(
                [sys.executable, "-m", "penstock", "up"], cwd=folder, stdout=log, stderr=log
            )
        stack.callback(processes.stop, parts)
        with console.status("the parts start …"):
            link = _wait_for(parts, folder, port, int(address.rpartition(":")[2]))
        traffic = stack.enter_context(_Traffic(config, port, passwords))
        console.print(
            READY.format(
                link=link,
                port=port,
                password=passwords["carer"],
                folder=folder,
            ),
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        # Ctrl-C reaches the parts too; they stop in order.
        while parts.poll() is None:
            traffic.step()
        raise PenstockError(
            f"the parts ended with code {parts.returncode}",
            fix=f"the log says why: {_last_lines(folder / 'penstock.log')}",
        )


def _last_lines(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-5:])


def _set_up(folder: Path, passwords: dict[str, str]) -> tuple[Config, int, str]:
    """Write settings and passwords; return the settings, and where gateway and console are."""
    ports = [processes.free_port() for _ in range(8)]
    # With Java there are views; the rest runs without.
    views = ["pipeline"] if find("java").path else []
    settings: dict[str, Any] = {
        "parts": ["broker", "gateway", *views, "rights", "console"],
        "log": {"level": "warning"},
        "monitor": {"port": ports[0]},
        # Spark takes its time where a machine has other things to do.
        "supervisor": {"ready_timeout": "3m"},
        "gateway": {
            "listeners": {"mqtt": {"port": ports[1]}},
            "monitor_port": ports[2],
            "authentication": {"passwords": "keys/passwords"},
        },
        "pipeline": {"monitor_port": ports[3]},
        "rights": {"networks": ["127.0.0.0/8"], "monitor_port": ports[4]},
        "console": {"listener": {"port": ports[5]}, "monitor_port": ports[6]},
    }
    (folder / "penstock.yaml").write_text(json.dumps(settings, indent=1))
    config = load(folder / "penstock.yaml", {})
    path = config.gateway.authentication.passwords
    assert path is not None  # noqa: S101 - it was just written
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Cheap hashes: the passwords are random and live as long as the demonstration.
    hasher = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
    path.touch(mode=0o600)
    path.write_text("".join(f"{user}:{hasher.hash(word)}\n" for user, word in passwords.items()))
    return config, ports[1], config.console.address


def documents(archive: str) -> list[Document]:
    """Return the definitions, with the address of the services that answer."""
    text = importlib.resources.files(__package__).joinpath("playground.yaml").read_text()
    found = read_text(text.replace("ARCHIVE", archive), "playground.yaml").documents
    return [*homecare.definitions(), *found]


@contextmanager
def _open_broker(config: Config) -> Iterator[tuple[Database, CheckedDefinitions, PrivacyBroker]]:
    with Database.open(config.store.connection_url()) as database:
        log = AuditLog.open(database, config.audit.signing_key)
        people = Pseudonyms.open(config.audit.pseudonym_key)
        consent = ConsentBook.open(database, config.consent.key)
        book = RequestBook(database, consent, Sealer(config.consent.key.read()))
        checked = CheckedDefinitions(Definitions(database), signer=log.signer)
        snapshot, known = checked.current()
        try:
            yield database, checked, PrivacyBroker(book, log, people, known, snapshot.epoch)
        finally:
            log.close()


def _define(config: Config, archive: str) -> None:
    """Apply the definitions, put in what was asked for in past weeks, and start the views."""
    with _open_broker(config) as (database, checked, _):
        checked.apply(documents(archive), actor="demo", reason="homecare, to look at")
        _look_back(database, config)
    for view in ("nurses", "studies"):
        Control(config.pipeline.folder).change(view, "start")


def _look_back(database: Database, config: Config) -> None:
    """Put requests of past weeks into the store: most were honoured in time, some late."""
    draw, now = random.Random(7), datetime.now(UTC)  # noqa: S311 - a story, not a secret
    moment = [now]
    consent = ConsentBook.open(database, config.consent.key)
    sealer = Sealer(config.consent.key.read())
    book = RequestBook(database, consent, sealer, clock=lambda: moment[0])
    spans = {name: timedelta(days=days) for name, days in SERVICES.items()}
    for week in range(WEEKS, 0, -1):
        for _ in range(draw.randint(3, 7)):
            asked = now - timedelta(weeks=week) + timedelta(hours=draw.randint(0, 160))
            moment[0] = asked
            subject = f"former-{draw.randrange(10**6)}"
            wanted = NewRequest(
                "portal", uuid.uuid4().hex, "forget", "delete", subject, (), spans, ()
            )
            (made,) = book.submit([wanted], 1)
            for name in SERVICES:
                days = draw.choice((1, 3, 6, 12, 20, 33 if name == "pharmacy" else 25))
                done = asked + timedelta(days=days)
                if done < now:
                    moment[0] = done
                    book.note(made.id, name, ProgressEvent.COMPLETED)


def _wait_for(parts: subprocess.Popen[bytes], folder: Path, *ports: int) -> str:
    """Wait until there is something to connect to; return the link that the console prints."""
    log, end = folder / "penstock.log", time.monotonic() + START_SECONDS
    while not all(processes.accepts(port) for port in ports) or not (
        found := _LINK.search(log.read_text(errors="replace"))
    ):
        if parts.poll() is not None or time.monotonic() > end:
            told = _last_lines(log)
            raise PenstockError(
                "the parts did not start", fix=f"see `penstock doctor`; the log ends with {told}"
            )
        time.sleep(0.1)
    return found[0]


@contextmanager
def _serve_archive() -> Iterator[str]:
    """Run a service that acknowledges what it is told; return its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(202)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/privacy"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Traffic:
    """All clients, and what they do."""

    def __init__(self, config: Config, port: int, passwords: dict[str, str]) -> None:
        self._config = config
        self._port = port
        self._passwords = passwords
        self._clients: list[Client] = []
        self._draw = random.Random()  # noqa: S311 - a story, not a secret
        self._next: dict[str, float] = {}
        self._began = time.monotonic()
        self._fallen = False

    def __enter__(self) -> Self:
        care, study = "care", "research"
        for name in ("ann", "bob", "carer"):
            self._join(name, care, "home/#")
        self._join("pharmacy", care, "pharmacy/#")
        self._join("auditor", "billing", "audit/#")
        self._join("study", study, "home/+/vitals")
        self._join("visitor", care, "home/#")
        self._sensor = self._join("sensor", "")
        self._visitor, self._ann = self._clients[-2], self._clients[0]
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.disconnect()
            client.loop_stop()

    def _join(self, user: str, purpose: str, *filters: str) -> Client:
        client = Client(CallbackAPIVersion.VERSION2, client_id=user, protocol=MQTTv5)
        client.username_pw_set(user, self._passwords[user])

        def subscribe(*_: object) -> None:
            said = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]
            said.UserProperty = ("purpose-ap", purpose)
            options = SubscribeOptions(qos=1)
            for it in filters:
                client.subscribe(it, options=options, properties=said)

        client.on_connect = subscribe
        client.connect("127.0.0.1", self._port)
        client.loop_start()
        self._clients.append(client)
        return client

    def step(self) -> None:
        """Do what is due, and wait for a moment."""
        patient = self._draw.choice(PATIENTS)
        self._publish(self._sensor, f"home/{patient}/vitals", self._measure(patient))
        if self._is_due("place", 1.0):
            place = {"patient": "p1", "lat": 52.2053, "lon": 0.1218}
            self._publish(self._sensor, "home/p1/location", place)
            weather = {"celsius": round(8 + self._draw.random(), 1), "rain": False}
            self._publish(self._sensor, "town/weather", weather)
        if self._is_due("denied", DENIED_SECONDS):
            self._publish(self._visitor, f"home/{patient}/alarm", {})
        if self._is_due("prescribe", DENIED_SECONDS):
            drug = self._draw.choice(("morphine", "codeine"))
            # Ann treats p1: what she prescribes for others is denied.
            whose = self._draw.choice(("p1", "p1", "p1", "p2"))
            body = {"patient": whose, "drug": drug, "dose": "5 mg", "pharmacy": "north"}
            self._publish(self._ann, f"home/{whose}/prescribe", body)
        if self._is_due("request", REQUEST_SECONDS):
            self._ask(self._draw.choice(PATIENTS))
        self._fall()
        time.sleep(PERIOD)

    def _measure(self, patient: str) -> dict[str, Any]:
        number = int(patient[1:])
        return {
            "patient": patient,
            "age": 58 + 3 * (number % 9),
            "zip": 48_100 + 7 * (number % 4),
            "heart_rate": 60 + number + self._draw.randint(0, 25),
            "temperature": round(36.2 + self._draw.random() * 1.8, 1),
        }

    @staticmethod
    def _publish(client: Client, topic: str, body: dict[str, Any]) -> None:
        client.publish(topic, json.dumps(body), qos=0)

    def _is_due(self, what: str, every: float) -> bool:
        now = time.monotonic()
        if now < self._next.get(what, 0.0):
            return False
        self._next[what] = now + every
        return True

    def _fall(self) -> None:
        """Let p1 fall once a minute, and let help come."""
        within = (time.monotonic() - self._began) % FALL_SECONDS
        fallen = within > FALL_SECONDS - HELP_SECONDS
        if fallen != self._fallen:
            self._fallen = fallen
            self._publish(self._sensor, f"home/p1/{'alarm' if fallen else 'over'}", {})

    def _ask(self, patient: str) -> None:
        """Let somebody choose or ask for something, and let services do their part of another."""
        control, action = self._draw.choice(
            (("research", "opt-out"), ("research", "opt-in"), ("forget", "delete"))
        )
        with _open_broker(self._config) as (_, _, broker):
            subject = f"former-{uuid.uuid4().hex[:6]}" if action == "delete" else patient
            key = uuid.uuid4().hex
            broker.submit("portal", [Submission("portal", key, control, action, subject)])
            for row, _services, _done in broker.book.newest(limit=4):
                if row.control == "forget":
                    broker.complete("archive", row.id, "archive")
                    if self._draw.choice((True, False)):
                        broker.complete("pharmacy", row.id, "pharmacy")
