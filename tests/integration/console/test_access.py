"""Access at the console: what it tells is what the authorizer says, and changes are reviewed."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from tests.support.commands import run_command
from tests.support.console.installation import DEFINITIONS, Answer, ConsoleInstallation
from tests.support.store.installation import until

WARD = """
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
allow: [care]
---
kind: enforcement
name: default
policies: required
---
kind: role
name: nurse
claim: [care]
---
kind: role
name: ward-head
includes: [nurse]
---
kind: policy
name: nurses-read
subject: role:nurse
allow: read
filter: "ward/#"
---
kind: user
name: nina
---
kind: user
name: omar
roles: [ward-head]
---
kind: view
name: study
stream: vitals
roles: [nurse]
anonymizers:
- {anonymizer: suppression, keys: [patient]}
---
kind: right
name: watchers
subjects: [user:auditor]
monitor: ["$console/access"]
"""


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInstallation]:
    folder = tmp_path_factory.mktemp("access")
    installation = ConsoleInstallation(folder, definitions=DEFINITIONS + WARD)
    installation.start()
    yield installation
    installation.stop()


def why(ward: ConsoleInstallation, session: str, **asked: str) -> dict[str, object]:
    found: dict[str, object] = ward.data("/access/why.json?" + urlencode(asked), session)
    return found


def apply(ward: ConsoleInstallation, session: str, review: Answer) -> Answer:
    """Apply what a review shows, as its form would."""
    assert review.status == 200, review.text
    form = review.text[review.text.index('action="/definitions/apply"') :]
    text = re.search(r'<textarea name="text" hidden>\n(.*?)</textarea>', form, re.DOTALL)
    sent = {
        name: html.unescape(re.search(rf'name="{name}" value="([^"]*)"', form)[1])  # type: ignore[index]
        for name in ("mark", "back", "reason")
    }
    assert text is not None
    return ward.act("/definitions/apply", session, text=html.unescape(text[1]), **sent)


def test_users_and_roles_are_those_of_the_definitions(ward: ConsoleInstallation) -> None:
    session = ward.sign_in("officer")
    people = ward.data("/access.json", session)
    users = {it["name"]: it for it in people["users"]}
    assert users["omar"]["active"] == ["nurse", "ward-head"]
    assert users["nina"]["active"] == []
    assert users["officer"]["rights"] == ["right officers"]
    assert {it["name"]: it["users"] for it in people["roles"]} == {"nurse": 1, "ward-head": 1}
    role = ward.data("/access/role.json?name=nurse", session)
    assert role["users"] == ["omar"]
    assert role["views"] == ["study"]
    assert ward.ask("/access/user.json?name=nobody-has-it", session=session).status == 404


def test_the_matrix_is_that_of_the_command_line(ward: ConsoleInstallation) -> None:
    session = ward.sign_in("officer")
    told = json.loads(run_command(ward.folder, "access", "--json", "--all").stdout)
    shown = ward.data("/access/matrix.json?everybody=true", session)
    assert shown["cells"] == len(told["cells"])
    rank = {"none": 0, "removed": 1, "changed": 2, "added": 2, "full": 3}
    most: dict[tuple[str, str, str], str] = {}
    for it in told["cells"]:
        key = (it["source"], it["subject"], it["attribute"])
        most[key] = max(most.get(key, "none"), it["degree"], key=rank.__getitem__)
    found = {
        (table["source"], row["subject"], name): cell["degree"]
        for table in shown["tables"]
        for row in table["rows"]
        for name, cell in zip(table["attributes"], row["cells"], strict=True)
    }
    assert found == most
    assert "full" in most.values()


def test_a_role_that_is_given_changes_the_matrix(ward: ConsoleInstallation) -> None:
    session = ward.sign_in("officer")

    def sees() -> set[str]:
        tables = ward.data("/access/matrix.json?subject=nina", session)["tables"]
        cells = [it["degree"] for table in tables for row in table["rows"] for it in row["cells"]]
        return set(cells)

    assert sees() == {"none"}
    review = ward.act("/access/give", session, user="nina", role="nurse")
    assert "none → full" in html.unescape(review.text)
    assert "user/nina" in ward.snapshot()
    assert "roles" not in ward.snapshot()["user/nina"]  # a review changes nothing
    done = apply(ward, session, review)
    assert done.status == 303
    assert done.headers["location"] == "/access/user?name=nina"
    assert "full" in sees()
    apply(ward, session, ward.act("/access/take", session, user="nina", role="nurse"))
    assert sees() == {"none"}


def test_a_user_is_blocked_and_let_in_again(ward: ConsoleInstallation) -> None:
    session = ward.sign_in("officer")
    apply(ward, session, ward.act("/access/block", session, user="omar", blocked="yes"))
    assert ward.snapshot()["user/omar"]["blocked"] is True
    assert ward.data("/access/user.json?name=omar", session)["user"]["active"] == []
    asked = {"user": "omar", "topic": "ward/7/vitals", "purpose": "care"}
    assert why(ward, session, **asked)["verdict"]["rule"] == "blocked user"  # type: ignore[index]
    apply(ward, session, ward.act("/access/block", session, user="omar", blocked="no"))
    assert ward.snapshot()["user/omar"] == {"roles": ["ward-head"]}
    assert ward.act("/access/block", session, user="officer", blocked="yes").status == 422


def test_permissions_of_a_role_come_and_go(ward: ConsoleInstallation) -> None:
    session = ward.sign_in("officer")
    form = {"role": "ward-head", "target": "stream", "name": "vitals"}
    apply(ward, session, ward.act("/access/allow", session, **form))
    assert ward.snapshot()["role/ward-head"]["permissions"] == [{"stream": "vitals"}]
    gone = {"role": "ward-head", "permission": "read stream vitals"}
    apply(ward, session, ward.act("/access/revoke", session, **gone))
    assert "permissions" not in ward.snapshot()["role/ward-head"]
    assert ward.act("/access/revoke", session, **gone).status == 422
    # What names nothing is told by the editor, as it is for a text that somebody typed.
    wrong = ward.act("/access/allow", session, **{**form, "name": "{role.__class__}"})
    assert wrong.status == 422
    assert "class &#39;" not in wrong.text


def test_the_answer_is_that_of_check(ward: ConsoleInstallation) -> None:
    session = ward.sign_in("officer")
    asked = {"topic": "ward/7/vitals", "purpose": "research", "user": "omar"}
    given = [f"--{name if name != 'user' else 'subject'}={it}" for name, it in asked.items()]
    told = json.loads(run_command(ward.folder, "check", "--json", *given).stdout)
    found = why(ward, session, **asked)["verdict"]
    assert isinstance(found, dict)
    assert {name: found[name] for name in ("allowed", "rule", "reason")} == {
        name: told[name] for name in ("allowed", "rule", "reason")
    }
    assert [(it["rule"], it["effect"]) for it in found["considered"]] == [
        (it["rule"], it["effect"]) for it in told["considered"]
    ]
    assert why(ward, session, **{**asked, "purpose": "care"})["verdict"]["allowed"] is True  # type: ignore[index]
    assert why(ward, session, view="study", user="omar")["verdict"]["allowed"] is True  # type: ignore[index]
    assert why(ward, session, view="study", user="nina")["verdict"]["allowed"] is False  # type: ignore[index]
    typed = why(ward, session, **{**asked, "purpose": "caer"})
    assert "care" in str(typed["fix"])


def test_who_may_look_changes_nothing(ward: ConsoleInstallation) -> None:
    session = ward.sign_in("auditor")
    assert ward.data("/access.json", session)["may_change"] is False
    assert "Give…" not in ward.page("/access/user?name=nina", session)
    for path, form in (
        ("give", {"user": "nina", "role": "nurse"}),
        ("take", {"user": "omar", "role": "ward-head"}),
        ("block", {"user": "omar"}),
        ("allow", {"role": "nurse", "target": "stream", "name": "vitals"}),
        ("revoke", {"role": "nurse", "permission": "x"}),
    ):
        assert ward.act(f"/access/{path}", session, **form).status == 403
    stranger = ward.sign_in("nobody")
    for path in ("", "/user?name=nina", "/role?name=nurse", "/matrix", "/why"):
        first, _, query = path.partition("?")
        for ending in ("", ".json"):
            asked = f"/access{first}{ending}" + (f"?{query}" if query else "")
            assert ward.ask(asked, session=stranger).status == 403


def test_what_others_wrote_is_text(ward: ConsoleInstallation) -> None:
    session = ward.sign_in("officer")
    evil = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'
    # Names may hold much, texts everything.
    ward.apply(
        "kind: role\nname: bold\ndescription: '<script>alert(3)</script>'\n---\n"
        "kind: group\nname: g\nmembers: ['user:<u>x']\n"
    )
    until(lambda: "bold" in str(ward.data("/access.json", session)["roles"]), "the role")
    for path in (
        "/access",
        "/access?" + urlencode({"q": evil}),
        "/access/role?name=bold",
        "/access/user?" + urlencode({"name": "<u>x"}),
        "/access/matrix?everybody=true",
        "/access/why?" + urlencode({"topic": evil, "user": evil, "payload": evil, "roles": evil}),
        "/access/why?" + urlencode({"topic": evil, "user": evil, "purpose": evil}),
    ):
        page = ward.page(path, session)
        for wrong in ("<script>alert", "<img src=x", "<u>x"):
            assert wrong not in page, path


def test_back_leads_nowhere_else(ward: ConsoleInstallation) -> None:
    session = ward.sign_in("officer")
    for back in ("//evil.example", "https://evil.example", "/\\evil", "/x\r\ny"):
        text = "kind: purpose\nname: care\n"
        review = ward.act("/definitions/review", session, text=text, back=back)
        assert "evil" not in review.text
