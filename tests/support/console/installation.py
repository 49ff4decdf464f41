"""A console as users run it: processes of their own, over a store of their own."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from penstock.components import processes
from penstock.config import Config, load
from penstock.definitions import read_text
from penstock.rights.broker import PrivacyBroker
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

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
COOKIE = "penstock-session"
PASSWORDS = {name: f"pw-{name}" for name in ("officer", "auditor", "nurse", "pump", "nobody")}
DEFINITIONS = """
kind: right
name: officers
subjects: [user:officer]
administer: true
---
kind: right
name: auditors
subjects: [user:auditor]
monitor: ["$console/audit"]
"""


class Answer(NamedTuple):
    """What the console said."""

    status: int
    text: str
    headers: Mapping[str, str]

    @property
    def data(self) -> Any:
        return json.loads(self.text)

    @property
    def cookie(self) -> str:
        """The session that was opened."""
        found = re.search(rf"{COOKIE}=([^;]+)", self.headers.get("set-cookie", ""))
        return found[1] if found else ""


class ConsoleInstallation:
    """A folder with settings and definitions, and the parts over it."""

    def __init__(
        self,
        folder: Path,
        *,
        parts: tuple[str, ...] = ("console",),
        definitions: str = DEFINITIONS,
        users: Mapping[str, str] = PASSWORDS,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.port = processes.free_port()
        self.mqtt_port = processes.free_port()
        monitor = processes.free_port()
        console = {"listener": {"port": self.port}, "monitor_port": processes.free_port()}
        gateway = {
            "listeners": {"main": {"port": self.mqtt_port}},
            "monitor_port": processes.free_port(),
            "authentication": {"passwords": "keys/passwords"},
        }
        written = {
            "parts": list(parts),
            "monitor": {"port": monitor},
            "gateway": {**gateway, **settings.pop("gateway", {})},
            "console": {**console, **settings.pop("console", {})},
            **settings,
        }
        (folder / "penstock.yaml").write_text(json.dumps(written))
        self.config: Config = load(folder / "penstock.yaml", {})
        if users:
            write_passwords(self.config.data / "keys" / "passwords", dict(users))
        self.verb = ["console", "run"] if parts == ("console",) else ["up"]
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "console.log"
        if definitions:
            self.apply(definitions)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # --- the store, beside the console ---

    def apply(self, text: str) -> int:
        """Apply definitions, as the command line does; return their epoch."""
        self.config.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        with Database.open(self.config.store.connection_url()) as database:
            log = AuditLog.open(database, self.config.audit.signing_key)
            checked = CheckedDefinitions(Definitions(database), signer=log.signer)
            made = checked.apply(read_text(text).documents, actor="officer")
            log.close()
            return made.epoch

    @contextmanager
    def broker(self) -> Iterator[PrivacyBroker]:
        """Open the broker of privacy requests, as the server does for a call."""
        with Database.open(self.config.store.connection_url()) as database:
            log = AuditLog.open(database, self.config.audit.signing_key)
            people = Pseudonyms.open(self.config.audit.pseudonym_key)
            consent = ConsentBook.open(database, self.config.consent.key)
            book = RequestBook(database, consent, Sealer(self.config.consent.key.read()))
            checked = CheckedDefinitions(Definitions(database), signer=log.signer)
            snapshot, known = checked.current()
            yield PrivacyBroker(book, log, people, known, snapshot.epoch)
            log.close()

    @staticmethod
    def wait_for(holds: Callable[[], bool]) -> None:
        """Wait until something holds: consoles follow what others change."""
        until(holds, "the console to follow")

    def snapshot(self) -> dict[str, Any]:
        """Return the definitions of now, by `kind/name`."""
        with Database.open(self.config.store.connection_url()) as database:
            found = Definitions(database).snapshot().documents
            return {str(key): dict(it.body) for key, it in found.items()}

    # --- the processes ---

    def start(self) -> ConsoleInstallation:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*PENSTOCK, *self.verb],
                cwd=self.folder,
                env=ENVIRONMENT,
                stdout=log,
                stderr=log,
            )
        until(self._is_ready, "the console")
        return self

    def stop(self) -> int:
        """End the parts as an operator does; return the exit code."""
        process = self.process
        assert process is not None
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        code = process.wait(120)
        self.process = None
        return code

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        text = self.log.read_text()
        if self.verb == ["up"]:
            running = len(set(re.findall(r'"component":"(\w+)","state":"running"', text)))
            return running == len(self.config.parts)
        return "the console is ready" in text

    def link(self) -> str:
        """Return the path of the one-time link that was printed."""
        found = until(lambda: re.search(r"/first\?link=\S+", self.log.read_text()), "the link")
        return found[0]

    # --- asking ---

    def ask(
        self,
        path: str,
        *,
        session: str = "",
        form: Mapping[str, str] | None = None,
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
        method: str = "",
    ) -> Answer:
        """Ask as a browser would; a form is sent from a page of the console."""
        sent = {"Host": f"127.0.0.1:{self.port}"}
        if session:
            sent["Cookie"] = f"{COOKIE}={session}"
        if form is not None:
            body = urlencode(form)
        if body is not None:
            sent |= {"Origin": self.url, "Content-Type": "application/x-www-form-urlencoded"}
        sent |= headers or {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(
                method or ("GET" if body is None else "POST"),
                path,
                body,
                {name: value for name, value in sent.items() if value},
            )
            answer = connection.getresponse()
            text = answer.read().decode()
            told: dict[str, str] = {}
            for name, value in answer.getheaders():
                held = told.get(name.lower())
                told[name.lower()] = f"{held}, {value}" if held else value
            return Answer(answer.status, text, told)
        finally:
            connection.close()

    def sign_in(self, user: str) -> str:
        """Sign in with the password of the user; return the session."""
        answer = self.ask("/sign-in", form={"user": user, "password": PASSWORDS[user]})
        assert answer.status == 303, answer.text
        return answer.cookie

    def act(self, path: str, session: str, **form: str) -> Answer:
        """Send a form with the token that pages of the session carry."""
        return self.ask(path, session=session, form={**form, "csrf": self.csrf(session)})

    def act_all(self, path: str, session: str, form: Sequence[tuple[str, str]]) -> Answer:
        """Send a form that has a field more than once."""
        body = urlencode([*form, ("csrf", self.csrf(session))])
        return self.ask(path, session=session, body=body)

    def csrf(self, session: str) -> str:
        found = re.search(r'name="csrf" value="([0-9a-f]{64})"', self.page("/account", session))
        assert found is not None
        return found[1]

    def page(self, path: str, session: str) -> str:
        answer = self.ask(path, session=session)
        assert answer.status == 200, f"{path}: {answer.status} {answer.text[:2000]}"
        return answer.text

    def data(self, path: str, session: str) -> Any:
        answer = self.ask(path, session=session)
        assert answer.status == 200, f"{path}: {answer.status} {answer.text[:2000]}"
        return answer.data

    def open_stream(
        self, path: str, session: str, seconds: float = 60.0
    ) -> http.client.HTTPConnection:
        """Ask for a stream; it is counted until the connection is closed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        connection.request("GET", path, headers={"Cookie": f"{COOKIE}={session}"})
        return connection

    def listen(self, path: str, session: str, seconds: float = 60.0) -> list[str]:
        """Return the first events of a stream, up to its end or the first with data."""
        connection = self.open_stream(path, session, seconds)
        answer = connection.getresponse()
        assert answer.status == 200
        lines: list[str] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            line = answer.readline().decode().rstrip("\n")
            if not line and lines:
                break
            lines.append(line)
        connection.close()
        return lines
