"""Recent decisions at the console: of a gateway, questioned, and decided anew for a draft."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from penstock.console.effects import replay
from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.authorizer import make_authorizer
from penstock.policy.access.emergencies import SituationBoard
from penstock.store.enforcement_points import RecentDecision
from tests.support.console.installation import ConsoleInstallation
from tests.support.console.ward import USERS, WARD, publish, subscribe
from tests.support.store.installation import until

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.needs("mosquitto-clients")]
NURSE_FOR_NINA = "kind: user\nname: nina\nroles: [nurse]\n"
CLOSED = "kind: role\nname: nurse\n"


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInstallation]:
    installation = ConsoleInstallation(
        tmp_path_factory.mktemp("decisions"),
        parts=("broker", "gateway", "console"),
        definitions=WARD,
        users=USERS,
        gateway={"filtering": {"strict": True}},
    )
    installation.start()
    yield installation
    installation.stop()


@pytest.fixture(scope="module")
def session(ward: ConsoleInstallation) -> Iterator[str]:
    """Let omar read and nina not, and give the officer's session."""
    readers = [subscribe(ward, user, "care") for user in ("omar", "nina")]
    opened = ward.sign_in("officer")

    def seen() -> bool:
        publish(ward, "ward/p-17/vitals", patient="p-17", pulse=81, note="between us")
        found = decisions(ward, opened, q="vitals")
        return {("omar", True), ("nina", False)} <= {(it["user"], it["allowed"]) for it in found}

    until(seen, "both decisions")
    yield opened
    for it in readers:
        it.terminate()
        it.wait(30)


def decisions(ward: ConsoleInstallation, session: str, **asked: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ward.data("/access/decisions.json?" + urlencode(asked), session)[
        "rows"
    ]
    return found


def test_a_denied_delivery_is_found_and_explained(ward: ConsoleInstallation, session: str) -> None:
    denied = next(it for it in decisions(ward, session, q="nina") if not it["allowed"])
    assert denied["topic"] == "ward/p-17/vitals"
    assert denied["purposes"] == ["care"]
    assert denied["publisher"] == "pump"
    first, _, query = denied["why"].partition("?")
    verdict = ward.data(f"{first}.json?{query}", session)["verdict"]
    assert verdict["allowed"] is False
    assert verdict["rule"] == denied["rule"]
    assert {"rule": "role nurse", "decides": False}.items() <= next(
        it for it in verdict["considered"] if it["rule"] == "role nurse"
    ).items()
    # Nothing of what the message said is kept.
    assert "between us" not in str(decisions(ward, session))


def test_a_draft_tells_which_recent_decisions_it_turns(
    ward: ConsoleInstallation, session: str
) -> None:
    def rows(text: str) -> list[str]:
        page = ward.act("/definitions/review", session, text=text)
        assert page.status == 200, page.text
        start = page.text.index('id="replay"')
        part = html.unescape(page.text[start : page.text.index("</section>", start)])
        plain = re.sub(r"<[^>]+>", " ", part)
        return [" ".join(it.split()) for it in re.findall(r"(denied → .*|allowed → .*)", plain)]

    opens = rows(NURSE_FOR_NINA)
    assert len(opens) == 1
    assert opens[0].startswith("denied → allowed nina read ward/p-17/vitals care")
    closes = rows("kind: user\nname: omar\nroles: []\n")
    assert [it.startswith("allowed → denied omar read") for it in closes] == [True]
    assert rows("kind: purpose\nname: teaching\n") == []


def test_recent_decisions_are_for_those_who_administer_and_looking_is_recorded(
    ward: ConsoleInstallation, session: str
) -> None:
    auditor = ward.sign_in("auditor")
    assert ward.ask("/access/decisions.json", session=auditor).status == 403
    assert ward.ask("/access/decisions", session=auditor).status == 403
    assert "Recent decisions" not in ward.page("/access", auditor)
    assert ward.data("/audit.json?kind=console.decisions", session)["rows"]


def test_only_what_is_known_is_decided_anew() -> None:
    before = DefinitionSet.build(read_text(WARD).documents)
    looks = read_text(
        "kind: policy\nname: fast\nsubject: anyone\nallow: read\nfilter: 'ward/#'\n"
        "when: t.payload.pulse > 100\n"
    )
    after = before.change(looks.documents)
    read = RecentDecision(time.time(), "read", "nina", "nina", "ward/1/vitals", ["care"], "pump")
    denied, gone = read._replace(allowed=False), read._replace(user="piet")
    found = replay(
        [denied, denied, read, gone],
        make_authorizer(before),
        make_authorizer(after),
        SituationBoard(),
    )
    # What the draft looks into, and what was decided otherwise than it would be now.
    assert (found.unknown, found.same, found.changes) == (4, 0, [])
    late = replay(
        [denied], make_authorizer(before), make_authorizer(before), SituationBoard(), seconds=-1
    )
    assert (late.left, late.same) == (1, 0)
