"""A streaming service: an opt-out by category, and an account that is deleted across four services.

Players publish below `media/<account>/plays`. Three services subscribe, each for its purpose. Ann
opts out of advertising by age, and later has her account deleted; of the four services that
are told, one is down.

Rules that hold here:
- Everything is real: a broker, the gateway as a process, services over HTTP, the worker and the
  erasure that `penstock requests work` runs.
- After each step exactly what the story says must have happened.
"""

from __future__ import annotations

import importlib.resources
import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from penstock.config import Config, load
from penstock.definitions import read_text
from penstock.eventlog import EventLog
from penstock.model.document import Document
from penstock.model.kinds.controls import ERASURE
from penstock.rights.broker import PrivacyBroker, Submission
from penstock.rights.dispatch import Channels, open_caller
from penstock.rights.erasure.service import ErasureService
from penstock.rights.notices import NoticeSender
from penstock.rights.worker import RightsWorker
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.consent import ConsentBook
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from penstock.store.rights.requests import RequestBook
from penstock.store.rights.tables import Sealer
from penstock_lab.demo.car_sharing_clients import Clients, Service
from penstock_lab.demo.stage import Place, set_up
from penstock_lab.demo.story import DemoFailedError, Story

ANN, BOB = "media/ann/plays", "media/bob/plays"
SUBSCRIBERS: Final = (
    Service("recommender", "media/+/plays", "recommendations"),
    Service("ads-by-age", "media/+/plays", "ads/age"),
    Service("ads-by-gender", "media/+/plays", "ads/gender"),
)
# Each service with the control that it acts on, and the category if it is for one alone.
SERVICES: Final = {
    "segments-by-age": ("targeted-ads", ["age"]),
    "segments-by-gender": ("targeted-ads", ["gender"]),
    "profiles": ("delete-account", []),
    "billing": ("delete-account", []),
    "history": ("delete-account", []),
    "mail": ("delete-account", []),
}
WAIT_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.2


class HttpServices:
    """All services, at one server of this machine: what each was told, and which are down."""

    def __init__(self) -> None:
        self.told: dict[str, list[str]] = {name: [] for name in SERVICES}
        self.down: set[str] = set()
        services = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                name = self.path.strip("/")
                if name not in services.down:
                    services.told[name].append(body["action"])
                self.send_response(503 if name in services.down else 200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing: what is told names people."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def documents(self) -> Iterator[Document]:
        """Yield the services as definitions."""
        for name, (control, categories) in SERVICES.items():
            yield Document(
                "control-subscriber", name,
                {
                    "subjects": [f"user:{name}"], "control": control, "categories": categories,
                    "delivery": "http-sync", "send_retries": 0,
                    "uri": f"http://127.0.0.1:{self.server.server_port}/{name}",
                },
            )  # fmt: skip

    def take(self) -> dict[str, list[str]]:
        """Return who was told what since this was last asked."""
        found = {name: actions for name, actions in self.told.items() if actions}
        self.told = {name: [] for name in SERVICES}
        return found


class Office:
    """The front end and the worker, on the store of the gateway."""

    def __init__(self, config: Config, database: Database) -> None:
        checked = CheckedDefinitions(Definitions(database))
        snapshot, definitions = checked.current()
        consent = ConsentBook.open(database, config.consent.key)
        secret = config.consent.key.read()
        self.book = RequestBook(database, consent, Sealer(secret))
        self.log = AuditLog.open(database, config.audit.signing_key)
        people = Pseudonyms.open(config.audit.pseudonym_key)
        self.broker = PrivacyBroker(self.book, self.log, people, definitions, snapshot.epoch)
        self.erasure = ErasureService(config, self.log, database, people, consent.marks)
        self._worker = RightsWorker(
            self.book,
            lambda: checked.current()[1],
            Channels.open(config, secret),
            NoticeSender.open(config, secret, open_caller(config)),
            built_in={ERASURE: self.erasure},
        )

    def submit(self, control: str, action: str, *categories: str) -> str:
        """Hand in what Ann wants, and let the worker tell services; return the request."""
        given = Submission("website", f"{control}-{action}", control, action, "ann", categories)
        (made,) = self.broker.submit("website", [given])
        self._work(made.id)
        return made.id

    def _work(self, request: str) -> None:
        """Work until every service has done its part, or failed it; some may have to retry."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            self._worker.run_once()
            shown = self.book.show(request)
            if shown is None or all(it.next_at is None for it in shown[1]):
                return
            time.sleep(LOOK_SECONDS)

    def redrive(self, request: str) -> None:
        """Tell services again that failed."""
        self.broker.redrive("website", request)
        self._work(request)

    def status(self, request: str) -> tuple[str, list[str]]:
        """Return how far a request is, and which services are not done."""
        shown = self.book.show(request)
        if shown is None:
            raise DemoFailedError("the request is gone")
        return shown[0].status, [it.subscriber for it in shown[1] if it.status != "COMPLETED"]


def run(story: Story) -> None:
    """Run all steps, and check each of them."""
    story.step("Start a broker, the gateway in front of it, and six services")
    with ExitStack() as stack:
        services = HttpServices()
        thread = threading.Thread(target=services.server.serve_forever, daemon=True)
        thread.start()
        stack.callback(services.server.server_close)
        stack.callback(services.server.shutdown)
        documents = [*read_text(definitions_text(), "media.yaml").documents, *services.documents()]
        users = ("officer", "player", *(it.name for it in SUBSCRIBERS))
        sections: dict[str, dict[str, Any]] = {
            "rights": {"networks": ["127.0.0.0/8"], "timeout": "30s"},
            "recording": {"acknowledge": "recorded"},
        }
        place = stack.enter_context(set_up(users, documents, sections))
        cast = stack.enter_context(Clients(place.port, place.passwords))
        office = stack.enter_context(_open_office(place))
        for service in SUBSCRIBERS:
            cast.subscribe(service)
            story.note(f"{service.name}: {service.filter} for {service.purpose}")
        _opt_out(story, cast, office, services)
        _delete(story, place, office, services)


@contextmanager
def _open_office(place: Place) -> Iterator[Office]:
    config = load(place.configuration)
    with Database.open(place.store_url) as database:
        office = Office(config, database)
        try:
            yield office
        finally:
            office.log.close()


def _opt_out(story: Story, cast: Clients, office: Office, services: HttpServices) -> None:
    story.step("Ann and Bob watch films")
    _play(cast)
    both = {ANN, BOB}
    _expect(story, cast, {"recommender": both, "ads-by-age": both, "ads-by-gender": both})

    story.step("Ann opts out of advertising by age")
    request = office.submit("targeted-ads", "opt-out", "age")
    story.expect(
        "the service of that category is told, and no other",
        actual=services.take(), wanted={"segments-by-age": ["changed"]},
    )  # fmt: skip
    story.expect("all have done it", actual=office.status(request), wanted=("COMPLETED", []))
    _play(cast)
    _expect(story, cast, {"recommender": both, "ads-by-age": {BOB}, "ads-by-gender": both})


def _delete(story: Story, place: Place, office: Office, services: HttpServices) -> None:
    story.step("Ann has her account deleted; the mail service is down")
    services.down.add("mail")
    request = office.submit("delete-account", "delete")
    story.expect(
        "three services delete", actual=services.take(),
        wanted={name: ["delete"] for name in ("profiles", "billing", "history")},
    )  # fmt: skip
    story.expect(
        "the request is not done: mail failed it, and is a dead letter",
        actual=office.status(request), wanted=("SOMEFAILED", ["mail"]),
    )  # fmt: skip

    story.step("Penstock itself has erased what it kept, with evidence")
    topic = EventLog(load(place.configuration).pipeline.event_log).topic("plays")
    story.expect(
        "only Bob's records are in the event log, at their old places",
        actual=[(it.offset, it.key) for it in topic.read()], wanted=[(1, b"bob"), (3, b"bob")],
    )  # fmt: skip
    (proof,) = office.erasure.book.evidence(request)
    counts = {it["place"]: it for it in proof.content["erased"]}
    story.expect(
        "the evidence counts two records",
        actual=counts["event log of plays"]["records"], wanted=2,
    )  # fmt: skip
    story.expect(
        "it is what the audit log has a digest of, and does not name Ann",
        actual=(proof.is_intact, "ann" in json.dumps(proof.content)), wanted=(True, False),
    )  # fmt: skip
    story.note(f"it lists {len(proof.content['remains'])} places that nobody can erase from here")

    story.step("The mail service is mended, and the officer tells it again")
    services.down.clear()
    office.redrive(request)
    story.expect(
        "mail deletes, and nobody is told twice", actual=services.take(),
        wanted={"mail": ["delete"]},
    )  # fmt: skip
    story.expect(
        "the deletion is complete", actual=office.status(request), wanted=("COMPLETED", [])
    )


def _play(cast: Clients) -> None:
    for topic in (ANN, BOB):
        cast.join("player").send(topic, b'{"title":"Metropolis"}', qos=1).wait()
    cast.settle()


def _expect(story: Story, cast: Clients, wanted: dict[str, set[str]]) -> None:
    got = cast.take()
    for name, topics in wanted.items():
        people = " and ".join(sorted(it.split("/")[1] for it in topics))
        story.expect(f"{name} receives {people}", actual=got[name], wanted=topics)


def definitions_text() -> str:
    """Return the definitions, but for the services, whose addresses are drawn."""
    return importlib.resources.files(__package__).joinpath("media.yaml").read_text()
