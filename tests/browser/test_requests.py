"""Privacy requests in a browser, against a running system: looked at, and followed to their end.

The journeys: a service is registered by its owner, approved by the officer, fails, and is redriven;
a person withdraws consent in a page of a front end, and deliveries stop.
"""

from __future__ import annotations

import json
import subprocess
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from penstock.components import processes
from penstock.rights.broker import Submission
from tests.support.console.browsing import DESK, PATIENCE, Person
from tests.support.console.installation import DEFINITIONS, PASSWORDS, ConsoleInstallation
from tests.support.rights.service import Service, serving

pytestmark = [
    pytest.mark.needs("chromium"),
    pytest.mark.needs("mosquitto"),
    pytest.mark.needs("mosquitto-clients"),
]
PRIVACY = """
---
kind: purpose
name: care
---
kind: purpose
name: research
---
kind: stream
name: vitals
format: json
from: ["ward/+patient/vitals"]
subject: patient
fields:
- {name: patient, type: string}
- {name: heart_rate, type: int}
---
kind: reservation
name: "ward/#"
allow: [care, research]
---
kind: control
name: research
description: Whether readings of yours may be used for research.
stateful: true
purposes: [research]
---
kind: control
name: forget
description: All services delete what they have about you.
stateful: false
operation: delete
time_to_honor: 1d
---
kind: control-publisher
name: portal
subjects: [user:pump]
controls: [research, forget]
---
kind: control-subscriber
name: archive
subjects: [user:pump]
control: forget
uri: URI
---
kind: control-subscriber
name: billing
subjects: [user:pump]
control: forget
uri: http://127.0.0.1:1/privacy
send_retries: 0
"""


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def shop_port() -> int:
    return processes.free_port()


@pytest.fixture(scope="module")
def console(
    tmp_path_factory: pytest.TempPathFactory, service: Service, shop_port: int
) -> Iterator[ConsoleInstallation]:
    installation = ConsoleInstallation(
        tmp_path_factory.mktemp("console"),
        parts=("broker", "gateway", "rights", "console"),
        definitions=DEFINITIONS + PRIVACY.replace("URI", service.uri),
        console={"framed_by": [f"http://localhost:{shop_port}"]},
        rights={
            "networks": ["127.0.0.0/8"], "poll": "50ms", "monitor_port": processes.free_port()
        },
    ).start()  # fmt: skip
    for number in range(9):
        submit(installation, "forget", "delete", f"p{number}")
    with installation.broker() as broker:
        for number, (row, _, _) in enumerate(broker.book.newest()):
            if number % 3:
                broker.complete("pump", row.id, "archive")
    yield installation
    installation.stop()


@pytest.fixture(scope="module")
def officer(browser: Browser, console: ConsoleInstallation) -> Iterator[Person]:
    with Person(browser, console, "officer") as person:
        yield person


def submit(console: ConsoleInstallation, control: str, action: str, subject: str) -> str:
    with console.broker() as broker:
        wanted = Submission("portal", uuid.uuid4().hex, control, action, subject)
        return broker.submit("pump", [wanted])[0].id


def publish(console: ConsoleInstallation, record: dict[str, object]) -> None:
    subprocess.run(
        [
            "mosquitto_pub", "-h", "127.0.0.1", "-p", str(console.mqtt_port), "-q", "1",
            "-i", "pump", "-u", "pump", "-P", PASSWORDS["pump"],
            "-t", f"ward/{record['patient']}/vitals", "-m", json.dumps(record),
        ],
        check=True,
        timeout=60,
    )  # fmt: skip


def test_pages_are_readable(officer: Person, console: ConsoleInstallation, shots: Path) -> None:
    owner = console.sign_in("nurse")
    form = {
        "kind": "control-subscriber", "name": "research-lab", "control": "forget",
        "delivery": "http", "uri": "https://lab.example.org/privacy", "subjects": "user:nurse",
        "why": "the lab keeps samples for two years",
    }  # fmt: skip
    assert console.act("/services/register", owner, **form).status == 303
    console.wait_for(lambda: console.data("/requests.json", console.sign_in("officer"))["dead"] > 0)
    request = submit(console, "forget", "delete", "ann")
    for path, name in (
        ("/requests", "requests"),
        ("/requests/dead", "dead-letters"),
        ("/requests/controls", "controls"),
        (f"/requests/one?id={request}", "request"),
        ("/services", "services"),
        ("/services/register", "register-service"),
        ("/services/register?kind=control-publisher", "register-front"),
    ):
        officer.look(path, shots, name)


def test_purposes_are_readable_and_renamed(
    browser: Browser, officer: Person, console: ConsoleInstallation, shots: Path
) -> None:
    page = officer.page
    with Person(browser, console, "nurse") as nurse:
        nurse.page.goto("/live?filter=ward/%2B/vitals&purpose=care")
        expect(nurse.page.locator("[data-live] .state")).to_have_text("running")
        page.goto("/purposes/subscriptions")
        expect(page.get_by_role("row").filter(has_text="ward/+/vitals")).to_contain_text("care")
        officer.look("/purposes/subscriptions", shots, "subscriptions")
    officer.look("/purposes", shots, "purposes")
    officer.look("/purposes?topic=ward/7/vitals", shots, "purposes-topic")
    officer.look("/purposes?topic=ward/%23", shots, "purposes-filter")
    page.locator("summary", has_text="research").click()
    page.get_by_role("textbox", name="Rename research").fill("studies")
    page.get_by_role("button", name="Rename research").click()
    expect(page.get_by_label("Difference of control research")).to_contain_text("studies")
    officer.check_accessibility("the review of a renamed purpose")
    page.screenshot(path=shots / "rename.png", full_page=True)
    page.get_by_role("link", name="Leave it as it is").click()


def test_an_owner_sees_the_own_services(
    browser: Browser, console: ConsoleInstallation, shots: Path
) -> None:
    with Person(browser, console, "pump") as owner:
        owner.look("/services", shots, "own-services")
        owner.look("/services/one?name=billing", shots, "own-service")
        owner.look("/services/front?name=portal", shots, "own-front")
        expect(owner.page.get_by_role("link", name="Privacy requests")).to_have_count(0)
    with Person(browser, console, "nobody") as other:
        other.look("/services", shots, "no-services")


def test_a_service_is_registered_fails_and_is_redriven(
    browser: Browser, console: ConsoleInstallation, officer: Person, service: Service, shots: Path
) -> None:
    with Person(browser, console, "nurse") as owner:
        page = owner.page
        page.goto("/services")
        page.get_by_role("link", name="Register a service").click()
        page.get_by_label("Name", exact=True).fill("newsletter")
        page.get_by_label("Control that it acts on").select_option("forget")
        page.get_by_label("Where", exact=True).fill("ftp://wrong")
        page.get_by_label("Why; for the data officer").fill("we mail to people")
        page.get_by_role("button", name="Ask the data officer").click()
        expect(page.get_by_role("alert")).to_contain_text("is not an address")
        owner.check_accessibility("the form of a service with a problem")
        page.get_by_label("Where", exact=True).fill(service.uri)
        page.get_by_label("How often telling it is tried again").fill("0")
        page.get_by_role("button", name="Ask the data officer").click()
        expect(page.get_by_role("status")).to_contain_text("waits for the data officer")

        desk = officer.page
        desk.goto("/requests/controls")
        desk.get_by_role("button", name="Review newsletter").click()
        expect(desk.get_by_label("Difference of control-subscriber newsletter")).to_contain_text(
            "forget"
        )
        desk.screenshot(path=shots / "approve.png", full_page=True)
        desk.get_by_role("button", name="Apply").click()
        expect(desk.get_by_role("status")).to_contain_text("1 definition changed")

        service.status = 500
        request = submit(console, "forget", "delete", "newcomer")
        desk.goto(f"/requests/one?id={request}")
        row = desk.get_by_role("row").filter(has_text="newsletter")
        expect(row).to_contain_text("not delivered", timeout=PATIENCE)
        service.status = 202
        desk.get_by_role("button", name="Redrive what failed").click()
        expect(desk.get_by_role("status")).to_contain_text("told again")
        expect(row).to_contain_text("sent", timeout=PATIENCE)

        page.goto("/services/one?name=newsletter")
        mine = page.get_by_role("row").filter(has_text=request)
        mine.get_by_role("button", name="Done").click()
        expect(page.get_by_text("Nothing is left to do")).to_be_visible()
        expect(row).to_contain_text("completed", timeout=PATIENCE)


def test_consent_is_withdrawn_in_a_frame_and_deliveries_stop(
    browser: Browser, console: ConsoleInstallation, shop_port: int, shots: Path
) -> None:
    with console.broker() as broker:
        link, _ = broker.make_link("pump", "portal", "p1", 600)
    address = f"{console.url}/choices?link={link}"
    with Person(browser, console, "nurse") as nurse, shop(shop_port, address):
        page = nurse.page
        page.goto("/live?filter=ward/%2B/vitals&purpose=research")
        expect(page.locator("[data-live] .state")).to_have_text("running")
        publish(console, {"patient": "p1", "heart_rate": 71})
        expect(page.get_by_label("Payload of message 1")).to_contain_text("71")

        person = nurse.context.new_page()
        person.set_viewport_size(DESK)
        person.goto(f"http://localhost:{shop_port}/")
        frame = person.frame_locator("iframe")
        frame.get_by_role("button", name="Withdraw research").click()
        expect(frame.get_by_role("status")).to_contain_text("taken in")
        expect(frame.get_by_role("button", name="Allow research")).to_be_visible()
        person.screenshot(path=shots / "choices-framed.png", full_page=True)
        person.close()

        publish(console, {"patient": "p1", "heart_rate": 72})
        publish(console, {"patient": "p2", "heart_rate": 73})
        expect(page.get_by_label("Payload of message 2")).to_contain_text("73")
        expect(page.locator("[data-live]")).not_to_contain_text("72")


def test_the_page_of_choices_is_readable(
    browser: Browser, console: ConsoleInstallation, shots: Path
) -> None:
    with console.broker() as broker:
        link, _ = broker.make_link("pump", "portal", "p3", 600)
    with Person(browser, console, "") as person:
        person.look(f"/choices?link={link}", shots, "choices")
        person.look("/choices?link=old", shots, "choices-old")


def test_pages_of_others_cannot_frame_it(
    browser: Browser, console: ConsoleInstallation, shop_port: int
) -> None:
    with console.broker() as broker:
        link, _ = broker.make_link("pump", "portal", "p1", 600)
    other = processes.free_port()
    with shop(other, f"{console.url}/choices?link={link}"):
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://localhost:{other}/")
        page.wait_for_load_state("networkidle")
        expect(page.frame_locator("iframe").get_by_role("heading")).to_have_count(0)
        context.close()


class shop:  # noqa: N801 - it reads as what it is
    """A front end on this machine, whose page frames another."""

    def __init__(self, port: int, address: str) -> None:
        page = f'<title>Shop</title><h1>Shop</h1><iframe src="{address}" width=900 height=700>'

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(page.encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
