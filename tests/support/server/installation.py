"""A server of privacy requests as users run it: a process of its own, over a store of its own."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from penstock.components import processes
from penstock.config import Config, load
from penstock.definitions import read_text
from penstock.rights.broker import PrivacyBroker
from penstock.store.access_tokens import TokenAdministration, TokenBook
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.consent import ConsentBook
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from penstock.store.rights.requests import RequestBook
from penstock.store.rights.tables import Sealer
from tests.support.gateway.passwords import write_passwords
from tests.support.store.installation import PENSTOCK, until

DEFINITIONS = """
kind: purpose
name: marketing
---
kind: purpose
name: marketing/age
---
kind: right
name: officers
subjects: [user:officer]
administer: true
---
kind: control
name: ads
stateful: true
categories: [age, gender]
purposes: [marketing]
global_privacy_control: true
---
kind: control
name: forget
stateful: false
operation: delete
---
kind: control-publisher
name: portal
subjects: [user:portal]
controls: [ads, forget]
retries: 3
retry_gap: 50ms
---
kind: control-publisher
name: app
subjects: [user:app]
controls: [ads, forget]
---
kind: control-subscriber
name: crm
subjects: [user:crm]
control: forget
uri: http://127.0.0.1:1/privacy
---
kind: control-subscriber
name: segments
subjects: [user:segments]
control: ads
uri: http://127.0.0.1:1/privacy
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
USERS = ("portal", "app", "crm", "segments", "officer", "nobody")


class Answer(NamedTuple):
    """What the server said."""

    status: int
    content: Any
    headers: Mapping[str, str]


class ServerInstallation:
    """A folder with settings, definitions and tokens, and the server over it."""

    def __init__(self, folder: Path, url: str | None = None, **server: Any) -> None:
        self.folder = folder
        self.port = processes.free_port()
        self.grpc_port = processes.free_port()
        listeners = {
            "rest": {"port": self.port},
            "grpc": {"protocol": "grpc", "port": self.grpc_port},
        } | server.pop("listeners", {})
        settings = {
            "parts": ["server"],
            "store": {"url": url} if url else {},
            "monitor": {"port": 0},
            "gateway": {"authentication": {"passwords": "keys/passwords"}},
            "rights": {"networks": ["127.0.0.0/8"], "poll": "50ms"},
            "server": {"listeners": listeners, "monitor_port": processes.free_port(), **server},
        }
        (folder / "penstock.yaml").write_text(json.dumps(settings))
        self.config: Config = load(folder / "penstock.yaml", {})
        write_passwords(
            self.config.data / "keys" / "passwords", {name: f"pw-{name}" for name in USERS}
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "server.log"
        with self.open_database() as database:
            CheckedDefinitions(Definitions(database)).apply(
                read_text(DEFINITIONS).documents, actor="officer"
            )
            self.tokens = {name: self.make_token(database, name) for name in USERS}

    # --- the store, beside the server ---

    def open_database(self) -> Database:
        return Database.open(self.config.store.connection_url())

    def make_token(self, database: Database, user: str, days: int = 1) -> str:
        with_log = AuditLog.open(database, self.config.audit.signing_key)
        people = Pseudonyms.open(self.config.audit.pseudonym_key)
        snapshot, known = CheckedDefinitions(Definitions(database)).current()
        desk = TokenAdministration(TokenBook(database), with_log, people, known, snapshot.epoch)
        token, _ = desk.make(user, user, days=days)
        with_log.close()
        return token

    def open_broker(self, database: Database) -> PrivacyBroker:
        snapshot, known = CheckedDefinitions(Definitions(database)).current()
        consent = ConsentBook.open(database, self.config.consent.key)
        book = RequestBook(database, consent, Sealer(self.config.consent.key.read()))
        log = AuditLog.open(database, self.config.audit.signing_key)
        people = Pseudonyms.open(self.config.audit.pseudonym_key)
        return PrivacyBroker(book, log, people, known, snapshot.epoch)

    # --- the server ---

    def start(self, *command: str) -> None:
        """Run the server, or a command in its place."""
        chosen = command or (*PENSTOCK, "server", "run", "--json")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(chosen, cwd=self.folder, stderr=log, env=ENVIRONMENT)
        until(self.answers, "the server answered")

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-5000:]
        return processes.accepts(self.port) and processes.accepts(self.grpc_port)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    # --- calls ---

    def call(
        self,
        method: str,
        path: str,
        content: object = None,
        *,
        user: str | None = "portal",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        tls: ssl.SSLContext | None = None,
        port: int | None = None,
        timeout: float = 30,
    ) -> Answer:
        given = dict(headers or {})
        if user is not None:
            given.setdefault("Authorization", f"Bearer {self.tokens[user]}")
        if content is not None:
            body = json.dumps(content).encode()
            given.setdefault("Content-Type", "application/json")
        at = port or self.port
        connection: http.client.HTTPConnection
        if tls is not None:
            connection = http.client.HTTPSConnection("127.0.0.1", at, timeout=timeout, context=tls)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", at, timeout=timeout)
        try:
            connection.request(method, path, body, given)
            with connection.getresponse() as answer:
                text = answer.read()
                return Answer(
                    answer.status, json.loads(text) if text else None, dict(answer.headers)
                )
        finally:
            connection.close()

    def submit(self, *, user: str = "portal", **changed: Any) -> Answer:
        given = {
            "publisher": "portal", "key": f"k{time.monotonic_ns()}", "control": "forget",
            "action": "delete", "subject": "ann",
        } | changed  # fmt: skip
        return self.call("POST", "/v1/requests", given, user=user)

    def choose(self, action: str, *, user: str = "portal", **changed: Any) -> Answer:
        return self.submit(user=user, **({"control": "ads", "action": action} | changed))
