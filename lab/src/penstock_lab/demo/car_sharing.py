"""Car sharing: drivers decide what the data of the car they have hired may be used for.

Cars publish below `country1/area3/<vehicle>`: speed, location, usage. Services subscribe,
each for its purpose. Drivers reserve topics of their car for purposes, one of them changes
her mind, and an old screen that knows no purposes is given one by the data officer.

Rules that hold here:
- Everything is real: a broker, the gateway as a process with users, passwords and rights,
  and ordinary MQTT clients with the client library.
- After each round every service must have received exactly what the story says.
"""

from __future__ import annotations

import importlib.resources
from contextlib import AbstractContextManager

from rich.table import Table
from rich.text import Text

from penstock.client import PurposeClient, RefusedError
from penstock.definitions import read_text
from penstock.definitions.authorizer import make_authorizer
from penstock.policy.access.requests import make_request
from penstock.policy.decision import Explanation
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from penstock_lab.demo.car_sharing_clients import Clients, Service
from penstock_lab.demo.stage import Place, set_up
from penstock_lab.demo.story import Story

AREA = "country1/area3"
ADA = f"{AREA}/vehicle2342"
BEN = f"{AREA}/vehicle0815"
ENDS = ("speed", "location/city", "usage/total")

USERS = ("officer", "ada", "ben", "vehicle2342", "vehicle0815")
SERVICES = (
    Service("billing", "country1/+/+/usage/#", "operational/billing"),
    Service("routes", f"{AREA}/+/location/#", "operational/route-optimization"),
    Service("statistics", f"{AREA}/+/location/#", "marketing/statistics"),
    Service("advertising", f"{AREA}/+/location/#", "marketing/individualized"),
    Service("screen", f"{AREA}/+/speed", None),
)
SCREEN_PURPOSE = "operational/route-optimization"


def run(story: Story) -> None:
    """Run all steps, and check each of them."""
    story.step("Start a broker and the gateway in front of it")
    with _stage() as place:
        story.note(f"clients connect to the gateway on 127.0.0.1:{place.port}")
        with Clients(place.port, place.passwords) as cast:
            _run_steps(story, place, cast)


def _run_steps(story: Story, place: Place, cast: Clients) -> None:
    story.step("Services subscribe, each for its purpose; the old screen knows no purposes")
    officer = cast.join("officer")
    officer.presubscribe("screen", f"{AREA}/+/speed", SCREEN_PURPOSE).wait()
    for service in SERVICES:
        cast.subscribe(service)
        purpose = service.purpose or f"{SCREEN_PURPOSE}, set by the data officer"
        story.note(f"{service.name}: {service.filter} for {purpose}")

    story.step("Ada and Ben hire cars and say what the data may be used for")
    ada, ben = cast.join("ada"), cast.join("ben")
    ada.reserve(f"{ADA}/location/#", ["operational", "marketing"], ["marketing/individualized"])
    ada.reserve(f"{ADA}/speed", aip=["operational"]).wait()
    story.note("Ada: speed for operation; location also for marketing, not for individualized")
    ben.reserve(f"{BEN}/speed", aip=["operational"]).wait()
    story.note("Ben: speed for operation; nothing about his location")
    ben.on_refused = None
    story.expect(
        "Ben cannot decide about Ada's car: the gateway refuses his reservation",
        actual=_is_refused(ben, f"{ADA}/location/#"),
        wanted=True,
    )

    story.step("Both cars drive and publish")
    _drive(cast)
    both = {f"{car}/usage/total" for car in (ADA, BEN)}
    speeds = {f"{car}/speed" for car in (ADA, BEN)}
    ada_place = {f"{ADA}/location/city"}
    _expect(story, place, cast, _received(both, ada_place, ada_place, set(), speeds))

    story.step("Ada withdraws her consent to marketing")
    ada.reserve(f"{ADA}/location/#", aip=["operational"]).wait()
    _drive(cast)
    _expect(story, place, cast, _received(both, ada_place, set(), set(), speeds))

    story.step("One message of Ada's car is for billing alone, whatever its topic allows")
    cast.join("vehicle2342").send(
        f"{ADA}/location/city", b"garage", qos=1, purposes=["operational/billing"]
    ).wait()
    cast.settle()
    story.expect(
        "the route optimization does not receive it",
        actual=cast.take()["routes"],
        wanted=set(),
    )

    story.step("The data officer lets hopeless subscriptions be refused at once (hybrid)")
    officer.set("filter_hybrid", value=True).wait()
    _refuse_advertising(story, cast)


def _refuse_advertising(story: Story, cast: Clients) -> None:
    advertising = cast.join("advertising")
    advertising.on_refused = None
    try:
        advertising.subscribe_with_purpose(
            f"{ADA}/location/city", "marketing/individualized"
        ).wait()
    except RefusedError as error:
        story.note(error.message)
        refused = error.purpose
    else:
        refused = None
    story.expect(
        "advertising is told at once that its subscription to Ada's car is refused",
        actual=refused,
        wanted="marketing/individualized",
    )


def _is_refused(client: PurposeClient, filter_: str) -> bool:
    try:
        client.reserve(filter_, aip=["marketing"]).wait()
    except RefusedError:
        return True
    return False


def _drive(cast: Clients) -> None:
    for car in (ADA, BEN):
        vehicle = cast.join(car.rpartition("/")[2])
        for end, value in zip(ENDS, (b"47", b"Berlin", b"12.3"), strict=True):
            vehicle.send(f"{car}/{end}", value, qos=1).wait()
    cast.settle()


def _received(*topics: set[str]) -> dict[str, set[str]]:
    return dict(zip((service.name for service in SERVICES), topics, strict=True))


def _expect(story: Story, place: Place, cast: Clients, wanted: dict[str, set[str]]) -> None:
    got = cast.take()
    story.console.print(_table(place, got))
    for service in SERVICES:
        topics = sorted(topic.removeprefix(f"{AREA}/") for topic in wanted[service.name])
        story.expect(
            f"{service.name} receives {', '.join(topics) or 'nothing'}",
            actual=got[service.name],
            wanted=wanted[service.name],
        )


def _table(place: Place, got: dict[str, set[str]]) -> Table:
    """Draw who received what, and why not."""
    with Database.open(place.store_url) as database:
        _, meaning = CheckedDefinitions(Definitions(database)).current()
    authorizer = make_authorizer(meaning)
    drawn = Table("", "service", "topic", "", "why", box=None, pad_edge=True, header_style="dim")
    for service in SERVICES:
        for topic in service.topics([f"{car}/{end}" for car in (ADA, BEN) for end in ENDS]):
            purpose = service.purpose or SCREEN_PURPOSE
            decision = authorizer.explain(make_request(topic, purpose=purpose))
            arrived = topic in got[service.name]
            drawn.add_row(
                "",
                service.name,
                topic.removeprefix(f"{AREA}/"),
                Text("received", "green") if arrived else Text("denied", "red"),
                _why(topic, decision).replace(f"{AREA}/", ""),
            )
    return drawn


def _why(topic: str, decision: Explanation) -> str:
    """Shorten a reason to what the table does not say yet."""
    reservation = decision.rule.removeprefix("reservation ").partition("{")[0]
    if decision.reason.startswith("it "):
        return f"{reservation} {decision.reason.removeprefix('it ')}"
    return decision.reason.removeprefix(f"topic {topic!r} is ")


def definitions_text() -> str:
    """Return the definitions of the example; `examples/car-sharing` has the same."""
    return importlib.resources.files(__package__).joinpath("car_sharing.yaml").read_text()


def _stage() -> AbstractContextManager[Place]:
    """Run a broker and a gateway with the definitions of the example."""
    documents = read_text(definitions_text(), "car_sharing.yaml").documents
    return set_up([*USERS, *(service.name for service in SERVICES)], documents)
