"""Opt-outs at gateways in front of a real broker: nothing is delivered after the answer.

Gateways are processes of their own; choices come by command, or by the book that commands use.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.components import MosquittoServer
from penstock.config import Config
from penstock.definitions import read_text
from penstock.mqtt import V5, Will
from penstock.store.consent import Choice, ConsentBook
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from penstock.store.enforcement_points import points_table
from tests.support.commands import run_command
from tests.support.gateway.harness import GatewayProcess, make_process, share
from tests.support.gateway.raw import RawClient

pytestmark = pytest.mark.needs("mosquitto")
pytest_plugins = ("tests.support.gateway.fixtures",)

LEASE = 1.0
SOON = 60.0
DEFINITIONS = """
kind: purpose
name: care
---
kind: purpose
name: ads
---
kind: purpose
name: ads/age
---
kind: stream
name: pulse
subject: pid
from: [home/+pid/pulse]
fields: [{name: pid, type: string}, {name: bpm, type: int}]
---
kind: stream
name: gps
subject: pid
from: [gps]
fields: [{name: pid, type: string, optional: true}]
---
kind: stream
name: steps
subject: pid
from: [steps]
adds: {properties: {pid: person}}
fields: [{name: pid, type: string}]
---
kind: right
name: officer
subjects: [user:ann]
administer: true
"""
STORES = pytest.mark.parametrize(
    "url",
    ["sqlite", pytest.param("postgres_url", marks=pytest.mark.needs("postgresql"))],
    indirect=True,
)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shared.db"
    found: str = request.getfixturevalue(request.param)
    return found


class Site:
    """Gateways that share a store and a broker, and somebody who enters choices."""

    def __init__(self, folder: Path, gateways: list[GatewayProcess], database: Database) -> None:
        self.folder = folder
        self.gateways = gateways
        self.database = database
        self.book = ConsentBook.open(database, gateways[0].config.consent.key)
        self.clients: list[RawClient] = []

    def connect(self, at: int = 0, client_id: str = "", **options: Any) -> RawClient:
        client = RawClient(self.gateways[at].port, version=V5)
        self.clients.append(client)
        assert not client.connect(
            client_id or f"c{len(self.clients)}-{time.time_ns()}", **options
        ).reason
        return client

    def listen(self, purpose: str | None, filter_: str, at: int = 0, **options: Any) -> RawClient:
        client = self.connect(at, **options)
        text = filter_
        if purpose is not None:
            words = filter_.replace("+", "PLUS").replace("#", "HASH")
            text = f"!AP/{words}{{{purpose}}}"
        assert client.subscribe(text).reasons[0] < 3
        return client

    def opt_out(self, who: str, purpose: str) -> None:
        self.book.choose(Choice.OPT_OUT, [who], purpose)

    def points(self) -> dict[str, int]:
        with self.database.read() as connection:
            rows = connection.execute(sa.select(points_table.c.holder, points_table.c.epoch))
            return {row.holder: row.epoch for row in rows}

    def wait_for_points(self, count: int) -> None:
        deadline = time.monotonic() + SOON
        while len(self.points()) != count:
            assert time.monotonic() < deadline, self.points()
            time.sleep(0.02)


@contextmanager
def open_site(folder: Path, broker: MosquittoServer, url: str, count: int = 1) -> Iterator[Site]:
    common: dict[str, Any] = {
        **share(folder),
        "store": {"url": url, "lease": LEASE},
        "consent": {"key": str(folder / "keys" / "consent.key")},
    }
    passwords = {"anonymous": True, "passwords": str(folder / "keys" / "passwords")}
    settings = {"authentication": passwords}
    with ExitStack() as stack:
        database = stack.enter_context(Database.open(url))
        checked = CheckedDefinitions(Definitions(database))
        checked.apply(read_text(DEFINITIONS).documents, actor="test", reason="")
        made = [
            make_process(folder / f"g{number}", broker.port, settings, **common)
            for number in range(count)
        ]
        add_officer(made[0].config)
        for gateway in made:
            stack.enter_context(gateway)
        site = Site(folder, made, database)
        site.wait_for_points(count)
        try:
            yield site
        finally:
            for client in site.clients:
                client.close()


def add_officer(config: Config) -> None:
    assert config.file is not None
    folder = config.file.parent
    done = run_command(folder, "password", "ann", text="her word\n")
    assert done.returncode == 0, done.stderr
    (folder / "ann").touch(0o600)
    (folder / "ann").write_text("her word\n")


def consent(site: Site, *words: str) -> Any:
    folder = site.gateways[0].config.file
    assert folder is not None
    given = ("consent", *words, "--as", "ann", "--password-file", "ann", "--json")
    done = run_command(folder.parent, *given)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@STORES
def test_after_the_command_no_gateway_delivers_for_that_purpose(
    broker: MosquittoServer, tmp_path: Path, url: str
) -> None:
    with open_site(tmp_path, broker, url, 3) as site:
        ads = [site.listen("ads", "home/+/pulse", at) for at in range(3)]
        parts = [site.listen("ads/age", "$share/g/home/+/pulse", at) for at in range(3)]
        care = [site.listen("care", "home/+/pulse", at) for at in range(3)]
        plain = site.listen(None, "#")
        sender = site.connect(1)
        for who in ("p", "q"):
            sender.publish(f"home/{who}/pulse", b"1", qos=1)
        for client in (*ads, *care, plain):
            assert len(client.texts(2)) == 2
        assert sum(len(it.texts()) for it in parts) == 2

        told = consent(site, "opt-out", "p", "ads")
        assert told["changed"] == 1
        for qos in range(3):
            for who in ("p", "q"):
                sender.publish(f"home/{who}/pulse", b"2", qos=qos)
        for client in care:
            assert len(client.texts(6)) == 6
        # A purpose that nobody named is any: see the explanation of purposes.
        for client in (*ads, plain):
            assert [topic for topic, _ in client.texts(3)] == ["home/q/pulse"] * 3
        got = [topic for it in parts for topic, _ in it.texts()]
        assert got == ["home/q/pulse"] * 3
        assert len(set(site.points().values())) == 1

        consent(site, "opt-in", "p", "ads")
        deadline = time.monotonic() + SOON
        while not ads[2].texts():
            assert time.monotonic() < deadline
            sender.publish("home/p/pulse", b"3")
        assert [it["choice"] for it in consent(site, "history", "p")] == ["opt-out", "opt-in"]


@STORES
def test_what_was_kept_before_is_not_delivered_after(
    broker: MosquittoServer, tmp_path: Path, url: str
) -> None:
    with open_site(tmp_path, broker, url) as site:
        sender = site.connect()
        for qos, who in ((1, "p"), (2, "p"), (1, "q")):
            sender.publish(f"home/{who}/pulse", b"retained", qos=qos, retain=True)
        session = {"clean": True, "session_expiry": 600}
        queued = site.listen("ads", "home/+/pulse", client_id="queued", **session)
        assert len(queued.texts(2)) == 2
        queued.vanish()
        leaving = site.connect(will=Will("home/p/pulse", b"will"))
        site.listen("ads", "home/+/pulse", client_id="unread").vanish()
        for number in range(3):
            for who in ("p", "q"):
                sender.publish(f"home/{who}/pulse", b"%d" % number, qos=1 + number % 2)

        site.opt_out("p", "ads/age")
        leaving.vanish()
        back = site.connect(client_id="queued", clean=False, session_expiry=600)
        assert {topic for topic, _ in back.texts(3)} == {"home/q/pulse"}
        late = site.listen("ads", "home/+/pulse")
        assert late.texts(1) == [("home/q/pulse", b"retained")]
        nurse = site.listen("care", "home/+/pulse")
        assert {topic for topic, _ in nurse.texts(2)} == {"home/p/pulse", "home/q/pulse"}
        for who in ("p", "q"):
            sender.publish(f"home/{who}/pulse", qos=1, retain=True)


def test_a_person_is_found_in_the_payload_and_in_a_user_property_or_it_is_denied(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    with open_site(tmp_path, broker, f"sqlite:///{tmp_path}/shared.db") as site:
        ads, care = (site.listen(it, "#") for it in ("ads", "care"))
        sender = site.connect()

        def say() -> list[tuple[str, bytes]]:
            for payload in (b'{"pid":"p"}', b'{"pid":"q"}', b'{"pid":7}', b"{}", b"\xff"):
                sender.publish("gps", payload, qos=1)
            for user in ((("person", "p"),), (("person", "q"),), (), (("person", "q"),) * 2):
                sender.publish("steps", b"{}", qos=1, user=user)
            sender.publish("elsewhere", b'{"pid":"p"}', qos=1)
            assert len(care.texts(10)) == 10
            return ads.texts(1)

        assert len(say()) == 10
        site.opt_out("p", "ads")
        assert say() == [("gps", b'{"pid":"q"}'), ("steps", b"{}"), ("elsewhere", b'{"pid":"p"}')]


@STORES
def test_a_gateway_that_cannot_confirm_holds_the_answer_until_it_delivers_nothing(
    broker: MosquittoServer, tmp_path: Path, url: str
) -> None:
    with open_site(tmp_path, broker, url, 2) as site:
        ads = site.listen("ads", "home/+/pulse", 1)
        halted = site.gateways[1]
        halted.send_signal(signal.SIGSTOP)
        try:
            sender = site.connect()
            started = time.monotonic()
            site.opt_out("p", "ads")
            assert time.monotonic() - started >= LEASE
            assert len(site.points()) == 1
            sender.publish("home/p/pulse", b"", qos=1)
            sender.publish("home/q/pulse", b"", qos=1)
            site.opt_out("r", "ads")  # nobody waits for it a second time
        finally:
            halted.send_signal(signal.SIGCONT)
        assert [topic for topic, _ in ads.texts(1)] == ["home/q/pulse"]
        site.wait_for_points(2)
        halted.kill()
        site.gateways[0].stop()
        assert len(site.points()) == 1


def test_without_the_key_what_people_opted_out_of_is_denied_to_all(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    with open_site(tmp_path, broker, f"sqlite:///{tmp_path}/shared.db") as site:
        site.opt_out("p", "ads")
        gateway = site.gateways[0]
        key = gateway.config.consent.key.path
        hidden = key.rename(key.with_name("elsewhere"))
        gateway.stop()
        gateway.start()
        ads, care = (site.listen(it, "home/+/pulse") for it in ("ads", "care"))
        sender = site.connect()
        sender.publish("home/q/pulse", b"", qos=1)
        assert (len(care.texts(1)), ads.texts()) == (1, [])
        hidden.rename(key)
        wait_until(lambda: (sender.publish("home/q/pulse", b"", qos=1), ads.texts())[1] != [])
        sender.publish("home/p/pulse", b"", qos=1)
        assert "home/p/pulse" not in [topic for topic, _ in ads.texts()]


def test_while_the_store_is_away_nothing_is_delivered_beyond_the_lease(
    broker: MosquittoServer, tmp_path: Path
) -> None:
    with open_site(tmp_path, broker, f"sqlite:///{tmp_path}/shared.db") as site:
        ads = site.listen("ads", "home/+/pulse")
        sender = site.connect()
        file = tmp_path / "shared.db"
        file.rename(tmp_path / "away.db")
        time.sleep(LEASE + 0.5)
        sender.publish("home/p/pulse", b"kept")
        assert ads.texts() == []
        (tmp_path / "away.db").rename(file)
        site.opt_out("p", "ads")
        sender.publish("home/q/pulse", b"", qos=1)
        assert [topic for topic, _ in ads.texts(1)] == ["home/q/pulse"]


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline
