"""The server over REST, as front ends and services see it: a real process, real sockets."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.support.server.installation import ServerInstallation


def states(server: ServerInstallation, subject: str, **asks: Any) -> list[tuple[str, str, str]]:
    kind, name = asks.popitem() if asks else ("subscriber", "segments")
    user = "segments" if kind == "subscriber" else name
    found = server.call("POST", f"/v1/{kind}s/{name}/states", {"subject": subject}, user=user)
    assert found.status == 200, found
    return [(it["control"], it["category"], it["state"]) for it in found.content["states"]]


def test_a_choice_is_answered_after_its_commit_with_what_is_persisted(
    server: ServerInstallation,
) -> None:
    made = server.choose("opt-out", subject="choice-1")
    assert made.status == 201
    assert made.content["repeated"] is False
    assert {(it["category"], it["state"]) for it in made.content["states"]} == {
        ("", "opt-out"), ("age", "opt-out"), ("gender", "opt-out")
    }  # fmt: skip
    with server.open_database() as database:
        out = server.open_broker(database).book._consent.opt_outs()
        assert out.marks is not None
        assert out.marks.of("choice-1") in out.refusing(["marketing"])
    again = server.choose("opt-in", subject="choice-1", categories=["age"])
    found = {it["category"]: it for it in again.content["states"]}
    assert (found["age"]["state"], found["gender"]["state"]) == ("opt-in", "opt-out")
    assert found["age"]["version"] > made.content["states"][0]["version"]
    assert ("ads", "age", "opt-in") in states(server, "choice-1")
    assert ("ads", "", "opt-out") in states(server, "choice-1", publisher="portal")


def test_a_single_request_is_accepted_followed_and_completed(server: ServerInstallation) -> None:
    made = server.submit(subject="single-1", key="single-1")
    assert (made.status, made.content["status"]) == (202, "INIT")
    again = server.submit(subject="single-1", key="single-1")
    assert again.content == made.content | {"repeated": True}
    path = f"/v1/requests/{made.content['request']}"
    shown = server.call("GET", path)
    assert shown.content["progress"] == [{"subscriber": "crm", "status": "INIT", "deadline": None}]
    assert "single-1" not in str(shown.content)
    for what, expected in (("acknowledge", "ACKNOWLEDGED"), ("complete", "COMPLETED")):
        said = server.call("POST", f"{path}/{what}", {"subscriber": "crm"}, user="crm")
        assert (said.status, said.content["status"]) == (200, expected)
    shown = server.call("GET", path)
    assert (shown.content["status"], shown.content["done"]) == ("COMPLETED", 1)


def test_a_key_that_names_another_request_is_a_conflict(server: ServerInstallation) -> None:
    assert server.submit(subject="one", key="conflict").status == 202
    refused = server.submit(subject="two", key="conflict")
    assert (refused.status, refused.content["code"]) == (409, "key-reused")
    assert "two" not in str(refused.content)
    assert refused.headers["content-type"] == "application/problem+json"


def test_a_batch_is_accepted_all_or_none(server: ServerInstallation) -> None:
    def batch(*actions: str) -> Any:
        requests = [
            {"publisher": "portal", "key": f"batch-{number}", "control": "ads",
             "action": action, "subject": f"batch-{number}"}
            for number, action in enumerate(actions)
        ]  # fmt: skip
        return server.call("POST", "/v1/requests/batch", {"requests": requests})

    assert batch("opt-out", "delete").status == 422
    assert ("ads", "", "opt-in") in states(server, "batch-0")
    made = batch("opt-out", "opt-out")
    assert made.status == 201
    assert [it["repeated"] for it in made.content["requests"]] == [False, False]
    assert ("ads", "", "opt-out") in states(server, "batch-1")


def test_own_requests_are_listed_page_by_page_newest_first(server: ServerInstallation) -> None:
    mine = [server.submit(user="app", publisher="app").content["request"] for _ in range(5)]
    seen: list[str] = []
    while True:
        after = f"&after={seen[-1]}" if seen else ""
        path = f"/v1/requests?publisher=app&limit=2{after}"
        page = server.call("GET", path, user="app").content["requests"]
        if not page:
            break
        seen += [it["request"] for it in page]
    assert seen == mine[::-1]
    done = server.call("GET", "/v1/requests?publisher=app&status=COMPLETED", user="app")
    assert done.content == {"requests": []}


def test_a_browser_signal_opts_out_of_the_controls_that_heed_it(
    server: ServerInstallation,
) -> None:
    given = {"publisher": "portal", "key": "gpc-1", "subject": "gpc"}
    for value in (None, "0", "true"):
        headers = {} if value is None else {"Sec-GPC": value}
        ignored = server.call("POST", "/v1/signals", given, headers=headers)
        assert (ignored.status, ignored.content) == (200, {"requests": []})
    made = server.call("POST", "/v1/signals", given, headers={"Sec-GPC": "1"})
    (accepted,) = made.content["requests"]
    assert {it["state"] for it in accepted["states"]} == {"opt-out"}
    given["key"] = "gpc-2"
    again = server.call("POST", "/v1/signals", given, headers={"Sec-GPC": "1"})
    assert again.content == {"requests": []}  # with every page: nothing is handed in again
    assert ("ads", "", "opt-out") in states(server, "gpc")


def test_a_publisher_learns_what_it_offers_and_how_to_try_again(
    server: ServerInstallation,
) -> None:
    found = server.call("GET", "/v1/publishers/portal").content
    assert (found["retries"], found["retry_gap"]) == (3, 0.05)
    assert [(it["name"], it["stateful"]) for it in found["controls"]] == [
        ("ads", True), ("forget", False)
    ]  # fmt: skip


def test_requests_in_the_words_of_opendsr(server: ServerInstallation) -> None:
    identity = "4f9f1d5e-7f35-4f3a-9d6b-2f6a0c1d2e3f"
    given = {
        "regulation": "gdpr", "subject_request_id": identity, "subject_request_type": "erasure",
        "submitted_time": "2026-11-18T12:00:00Z", "property_id": "portal",
        "subject_identities": [
            {"identity_type": "controller_customer_id", "identity_value": "dsr"}
        ],
    }  # fmt: skip
    found = server.call("GET", "/opendsr/discovery").content
    assert found["supported_subject_request_types"] == ["erasure", "access", "portability"]
    made = server.call("POST", "/opendsr/requests", given)
    assert (made.status, made.content["request_status"]) == (201, "pending")
    again = server.call("POST", "/opendsr/requests", given)
    assert again.content == made.content
    refused = given | {"subject_request_id": identity.replace("4f9", "5f9"),
                       "subject_request_type": "access"}  # fmt: skip
    assert server.call("POST", "/opendsr/requests", refused).status == 422
    told = given | {"status_callback_urls": ["https://x.example/"]}
    assert server.call("POST", "/opendsr/requests", told).status == 422
    own = server.call("GET", "/v1/requests?publisher=portal&limit=1").content["requests"][0]
    for status, expected in (("in_progress", "ACKNOWLEDGED"), ("completed", "COMPLETED")):
        callback = {"subject_request_id": own["request"], "request_status": status,
                    "subscriber": "crm"}  # fmt: skip
        said = server.call("POST", "/opendsr/callbacks", callback, user="crm")
        assert said.content["status"] == expected
    path = f"/opendsr/requests/portal/{identity}"
    assert server.call("GET", path).content["request_status"] == "completed"
    assert server.call("GET", path, user="app").status == 404


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"publisher": "app"}, 404),
        ({"publisher": "none"}, 404),
        ({"control": "nothing"}, 422),
        ({"action": "opt-out"}, 422),
        ({"subject": ""}, 422),
        ({"subject": "x" * 251}, 422),
        ({"subject": "\ud800"}, 422),
        ({"key": "a b"}, 422),
        ({"more": 1}, 422),
    ],
)
def test_what_is_wrong_gets_the_shape_of_all_problems(
    server: ServerInstallation, changed: dict[str, Any], status: int
) -> None:
    refused = server.submit(**({"subject": "somebody"} | changed))
    assert refused.status == status
    assert set(refused.content) == {"status", "code", "message", "fix", "places"}
    assert refused.content["fix"]
    assert "somebody" not in str(refused.content)


def test_users_of_the_password_file_are_known_too(server: ServerInstallation) -> None:
    def basic(text: str) -> int:
        proof = "Basic " + base64.b64encode(text.encode()).decode()
        path = "/v1/publishers/portal"
        return server.call("GET", path, user=None, headers={"Authorization": proof}).status

    assert basic("portal:pw-portal") == 200
    assert basic("portal:wrong") == 401
    assert basic("ghost:wrong") == 401
    assert basic("nocolon") == 401
