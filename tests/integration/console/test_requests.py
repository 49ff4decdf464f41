"""Privacy requests at the console: rooms, registration, redrive, and the embedded page of choices.

A service owner with an ordinary account (`nurse`) registers a service; the officer decides. The
front end `shop` (`pump`) hands in for people, whom nobody else may see anything of.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.rights.broker import Submission
from tests.support.console.installation import DEFINITIONS, ConsoleInstallation

PRIVACY = """
---
kind: purpose
name: marketing
---
kind: right
name: requests
subjects: [user:auditor]
monitor: ["$console/requests"]
---
kind: control
name: ads
stateful: true
purposes: [marketing]
---
kind: control
name: forget
stateful: false
operation: delete
---
kind: control-publisher
name: shop
subjects: [user:pump]
controls: [ads, forget]
---
kind: control-publisher
name: other
subjects: [user:nobody]
controls: [ads]
---
kind: control-subscriber
name: crm
subjects: [user:nurse]
control: forget
uri: http://127.0.0.1:1/privacy
"""
SERVICE = {
    "kind": "control-subscriber",
    "name": "mail",
    "control": "forget",
    "delivery": "http",
    "uri": "https://mail.example.org/privacy",
    "subjects": "user:nurse",
    "why": "newsletters",
}


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInstallation]:
    installation = ConsoleInstallation(
        tmp_path_factory.mktemp("console"),
        definitions=DEFINITIONS + PRIVACY,
        console={"framed_by": ["https://shop.example.org"]},
    )
    installation.start()
    yield installation
    installation.stop()


@pytest.fixture(scope="module")
def officer(console: ConsoleInstallation) -> str:
    return console.sign_in("officer")


@pytest.fixture(scope="module")
def owner(console: ConsoleInstallation) -> str:
    return console.sign_in("nurse")


def link_for(console: ConsoleInstallation, subject: str, seconds: int = 600) -> str:
    with console.broker() as broker:
        return broker.make_link("pump", "shop", subject, seconds)[0]


def submit(console: ConsoleInstallation, subject: str) -> str:
    with console.broker() as broker:
        wanted = Submission("shop", uuid.uuid4().hex, "forget", "delete", subject)
        return broker.submit("pump", [wanted])[0].id


def fields(text: str, control: str) -> dict[str, str]:
    """Return what the form of a control sends."""
    for form in re.findall(r"<form method=\"post\".*?</form>", text, re.DOTALL):
        found = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
        if found.get("control") == control:
            return found
    raise AssertionError(control)


# --- who sees what by URL ---

PAGES = ("/requests", "/requests/dead", "/requests/controls", "/requests/one?id=" + "0" * 32)


@pytest.mark.parametrize("path", PAGES)
def test_the_room_takes_a_right(console: ConsoleInstallation, owner: str, path: str) -> None:
    bare, _, query = path.partition("?")
    assert console.ask(path, session=owner).status == 403
    assert console.ask(f"{bare}.json?{query}", session=owner).status == 403
    assert console.ask(path).status == 303


def test_a_monitor_looks_and_changes_nothing(console: ConsoleInstallation) -> None:
    auditor = console.sign_in("auditor")
    request = submit(console, "Ann Smith")
    shown = console.page(f"/requests/one?id={request}", auditor)
    assert "Ann Smith" not in shown
    assert re.search(r"p_[a-z2-7]{26}", shown)
    for path in ("redrive", "approve", "refuse"):
        assert console.act(f"/requests/{path}", auditor, request=request).status == 403
    assert console.data("/requests.json", auditor)["may_change"] is False
    assert "/requests" in console.page("/account", auditor)


def test_every_page_is_described(console: ConsoleInstallation, officer: str) -> None:
    described = console.data("/openapi.json", "")["paths"]
    for path in ("/requests", "/requests/one", "/services", "/services/one", "/choices"):
        schema = described[f"{path}.json"]["get"]["responses"]["200"]["content"]
        assert schema["application/json"]["schema"]
    data = console.data("/requests.json", officer)
    assert data["open"] >= 0
    assert data["rows"] is not None


# --- registration ---


def test_a_registration_waits_until_the_officer_has_reviewed_it(
    console: ConsoleInstallation, officer: str, owner: str
) -> None:
    assert console.act("/services/register", owner, **SERVICE).status == 303
    assert "control-subscriber/mail" not in console.snapshot()
    (mine,) = console.data("/services.json", owner)["registrations"]
    assert (mine["status"], mine["why"]) == ("waiting", "newsletters")
    (waiting,) = console.data("/requests/controls.json", officer)["waiting"]
    assert waiting["user"] == "nurse"
    assert "mail.example.org" in waiting["text"]
    # Nobody else may take it back or decide on it.
    other = console.sign_in("pump")
    assert console.act("/services/withdraw", other, id=mine["id"]).status == 403
    assert console.act("/requests/approve", owner, id=mine["id"]).status == 403
    review = console.act("/requests/approve", officer, id=mine["id"])
    assert review.status == 200
    assert "https://mail.example.org/privacy" in review.text
    form = dict(re.findall(r'name="(mark|registration)" value="([^"]*)"', review.text))
    text = re.search(r'<textarea name="text" hidden>\n(.*?)</textarea>', review.text, re.DOTALL)
    assert text is not None
    # What was not shown is not approved.
    forged = text[1].replace("mail.example.org", "evil.example.org")
    again = console.act("/definitions/apply", officer, text=forged, **form)
    assert again.status == 200
    assert "evil.example.org" in again.text
    assert "control-subscriber/mail" not in console.snapshot()
    assert console.act("/definitions/apply", officer, text=text[1], **form).status == 303
    assert console.snapshot()["control-subscriber/mail"]["subjects"] == ["user:nurse"]
    assert console.data("/services.json", owner)["registrations"][0]["status"] == "approved"
    assert console.act("/requests/approve", officer, id=mine["id"]).status == 422


def test_texts_of_others_are_text(console: ConsoleInstallation, officer: str, owner: str) -> None:
    evil = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'
    form = SERVICE | {"name": "texts", "uri": f"https://x.example/{evil}", "why": evil}
    assert console.act("/services/register", owner, **form).status == 303
    again = console.act("/services/register", owner, **form | {"name": evil, "control": evil})
    assert again.status == 422
    held = console.data("/services.json", owner)["registrations"][0]
    review = console.act("/requests/approve", officer, id=held["id"])
    refused = console.act("/requests/refuse", officer, id=held["id"], reason=evil)
    assert refused.status == 303
    controls = console.page("/requests/controls", officer)
    for text in (again.text, review.text, controls, console.page("/services", owner)):
        assert "<script>alert" not in text
        assert "<img" not in re.sub(r'<img src="/static/[^>]*>', "", text)


def test_changes_take_the_token_of_the_session(
    console: ConsoleInstallation, officer: str, owner: str
) -> None:
    paths = (
        "/requests/redrive", "/requests/approve", "/requests/refuse", "/services/register",
        "/services/withdraw", "/services/key", "/services/answer", "/purposes/add",
        "/purposes/rename", "/purposes/remove", "/purposes/reserve",
    )  # fmt: skip
    for path in paths:
        for form in ({}, {"csrf": console.csrf(owner)}, {"csrf": "0" * 64}):
            assert console.ask(path, session=officer, form=form).status == 403, path
        if path != "/services/register":  # it is a page, too
            assert console.ask(path, session=officer).status == 405, path


def test_a_refusal_says_why(console: ConsoleInstallation, officer: str, owner: str) -> None:
    assert console.act("/services/register", owner, **SERVICE | {"name": "spam"}).status == 303
    held = console.data("/services.json", owner)["registrations"][0]
    assert console.act("/requests/refuse", officer, id=held["id"]).status == 422
    form = {"id": held["id"], "reason": "name the team"}
    assert console.act("/requests/refuse", officer, **form).status == 303
    assert "name the team" in console.page("/services", owner)
    assert "control-subscriber/spam" not in console.snapshot()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"name": "crm", "subjects": "user:pump"}, "is taken"),
        ({"uri": "ftp://mail.example.org"}, "is not an address"),
        ({"uri": "https://u:secret@mail.example.org"}, "password must not stand"),
        ({"control": "nothing"}, "nothing"),
        ({"delivery": "built-in", "uri": "penstock:erasure", "subjects": ""}, "built in"),
        ({"kind": "right", "administer": "true"}, "cannot be registered"),
        ({"subjects": ""}, "subjects"),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    console: ConsoleInstallation, changed: dict[str, str], told: str
) -> None:
    user = console.sign_in("pump")
    before = len(console.data("/services.json", user)["registrations"])
    made = console.act("/services/register", user, **SERVICE | {"name": "x"} | changed)
    assert made.status == 422
    assert told in made.text
    assert len(console.data("/services.json", user)["registrations"]) == before


def test_one_user_cannot_fill_the_list(console: ConsoleInstallation) -> None:
    user = console.sign_in("pump")
    for number in range(20):
        form = SERVICE | {"name": f"mail-{number}"}
        assert console.act("/services/register", user, **form).status == 303
    assert console.act("/services/register", user, **SERVICE | {"name": "more"}).status == 422
    for it in console.data("/services.json", user)["registrations"]:
        assert console.act("/services/withdraw", user, id=it["id"]).status == 303


# --- one's own service ---


def test_an_owner_answers_for_the_own_service_alone(
    console: ConsoleInstallation, owner: str
) -> None:
    request = submit(console, "Ben Jones")
    rows = console.data("/services/one.json?name=crm", owner)["rows"]
    assert request in {it["request"] for it in rows}
    other = console.sign_in("pump")
    for path in ("/services/one?name=crm", "/services/one.json?name=crm"):
        assert console.ask(path, session=other).status == 403
    form = {"request": request, "name": "crm", "what": "complete"}
    assert console.act("/services/answer", other, **form).status == 403
    assert console.act("/services/key", other, name="crm").status == 403
    assert re.search(
        r"<code>[0-9a-f]{64}</code>", console.act("/services/key", owner, name="crm").text
    )
    assert console.act("/services/answer", owner, **form).status == 303
    left = console.data("/services/one.json?name=crm", owner)["rows"]
    assert request not in {it["request"] for it in left}
    assert console.ask("/services/front?name=shop", session=owner).status == 403
    assert request in console.page("/services/front?name=shop", other)


# --- the embedded page ---


def test_a_link_shows_one_persons_choices_and_changes_them(console: ConsoleInstallation) -> None:
    link = link_for(console, "Cleo Brown")
    page = console.ask(f"/choices?link={link}")
    assert page.status == 200
    assert "Cleo" not in page.text
    assert "frame-ancestors https://shop.example.org" in page.headers["content-security-policy"]
    assert "x-frame-options" not in page.headers
    assert "set-cookie" not in page.headers
    sent = fields(page.text, "ads")
    assert sent["action"] == "opt-out"
    assert console.ask("/choices", form=sent).status == 303
    assert console.ask("/choices", form=sent).status == 303  # the same form counts once
    data = console.ask(f"/choices.json?link={link}").data
    assert [it["allowed"] for it in data["choices"]] == [False]
    assert len(data["made"]) == 1
    with console.broker() as broker:
        (state,) = broker.book.profiles.states("Cleo Brown")
        assert (state.control, state.state) == ("ads", "opt-out")
    # Nobody else's is changed, nor seen.
    other = console.ask(f"/choices.json?link={link_for(console, 'Dan Miller')}").data
    assert other["choices"][0]["allowed"] is True
    assert other["made"] == []


def test_only_the_page_of_choices_can_be_framed(console: ConsoleInstallation, officer: str) -> None:
    for path in ("/sign-in", "/requests", "/choices/", "/overview"):
        headers = console.ask(path, session=officer).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path
        assert headers["x-frame-options"] == "DENY"


def test_what_is_no_link_opens_nothing(console: ConsoleInstallation) -> None:
    good = link_for(console, "Eve Stone")
    flipped = good[:-2] + ("A" if good[-2] != "A" else "B") + good[-1]
    expired = link_for(console, "Eve Stone", 1)
    console.wait_for(lambda: console.ask(f"/choices?link={expired}").status == 403)
    for link in ("", "x", "%00", good[:-4], flipped, good + good, "A" * 3_000, "%C3%BC", expired):
        for path in ("/choices", "/choices.json"):
            assert console.ask(f"{path}?link={link}").status == 403, (path, link)


def test_a_form_of_another_page_or_person_chooses_nothing(console: ConsoleInstallation) -> None:
    link = link_for(console, "Finn Hall")
    sent = fields(console.ask(f"/choices?link={link}").text, "ads")
    for headers in (
        {"Origin": "https://evil.example.org"},
        {"Origin": "https://shop.example.org"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        assert console.ask("/choices", form=sent, headers=headers).status == 403
    for changed in ({"control": "nothing"}, {"action": "delete"}, {"key": "x"}, {"category": "z"}):
        assert console.ask("/choices", form=sent | changed).status == 422, changed
    assert console.ask("/choices", form=sent | {"link": "x"}).status == 403
    # The link opens nothing else, and a session is none.
    assert console.ask(f"/requests?link={link}").status == 303
    assert console.ask("/choices", session=console.sign_in("officer")).status == 403


def test_a_link_ends_with_the_right_of_who_made_it(console: ConsoleInstallation) -> None:
    link = link_for(console, "Gus Webb")
    shop = "kind: control-publisher\nname: shop\ncontrols: [ads, forget]\nsubjects: [user:{}]\n"
    assert console.ask(f"/choices?link={link}").status == 200
    console.apply(shop.format("auditor"))
    try:
        console.wait_for(lambda: console.ask(f"/choices?link={link}").status == 403)
    finally:
        console.apply(shop.format("pump"))
    console.wait_for(lambda: console.ask(f"/choices?link={link}").status == 200)
    console.apply("kind: user\nname: pump\nblocked: true\n")
    console.wait_for(lambda: console.ask(f"/choices?link={link}").status == 403)
    console.apply("kind: user\nname: pump\n")
    console.wait_for(lambda: console.ask(f"/choices?link={link}").status == 200)


def test_one_person_cannot_flood_the_services(console: ConsoleInstallation) -> None:
    link = link_for(console, "Hal Flood")
    sent = fields(console.ask(f"/choices?link={link}").text, "ads")
    statuses = [
        console.ask("/choices", form=sent | {"key": uuid.uuid4().hex}).status for _ in range(40)
    ]
    assert statuses[:30] == [303] * 30
    assert 429 in statuses[30:]
    other = link_for(console, "Ida Calm")
    sent = fields(console.ask(f"/choices?link={other}").text, "ads")
    assert console.ask("/choices", form=sent).status == 303


def test_without_origins_nobody_frames_it(tmp_path: Path) -> None:
    installation = ConsoleInstallation(tmp_path, definitions=DEFINITIONS + PRIVACY).start()
    try:
        headers = installation.ask(f"/choices?link={link_for(installation, 'Ann')}").headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY"
    finally:
        installation.stop()
