"""Emergencies at the console: what it shows is recorded, what it sets is asked for by right."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.support.console.installation import ConsoleInstallation
from tests.support.console.ward import USERS, WARD, publish
from tests.support.store.installation import until

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.needs("mosquitto-clients")]


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInstallation]:
    installation = ConsoleInstallation(
        tmp_path_factory.mktemp("emergencies"),
        parts=("broker", "gateway", "console"),
        definitions=WARD,
        users=USERS,
    )
    installation.start()
    yield installation
    installation.stop()


def case(ward: ConsoleInstallation, session: str, subject: str) -> str | None:
    address = f"/emergencies/scenario.json?name=oxygen&subject={quote(subject)}"
    found = ward.data(address, session)["case"]
    return found["situation"] if found else None


def test_an_emergency_is_followed_from_its_start_to_its_end(ward: ConsoleInstallation) -> None:
    session = ward.sign_in("nurse")
    until(lambda: not ward.data("/emergencies.json", session)["trouble"], "the leader")
    for grade, situation in ((1, "Low"), (2, "Critical"), (0, "Low")):
        publish(ward, "ward/p-1/alarm", grade=grade)
        until(lambda wanted=situation: case(ward, session, "p-1") == wanted, situation)  # type: ignore[misc]
    page = ward.data("/emergencies/scenario.json?name=oxygen&subject=p-1", session)
    assert page["plan"]["occupied"] == {"Low": 1}
    assert [it["policy"] for it in page["opened"]] == ["doctor-on-call"]
    assert page["opened"][0]["people"] == ["frey"]
    assert {it["cause"]: it["to"] for it in page["onward"]} == {
        "Critical": "Critical",
        "Recovered": "",
    }
    publish(ward, "ward/p-1/alarm", grade=0)
    until(lambda: case(ward, session, "p-1") is None, "the end")
    steps = ward.data("/emergencies/history.json?subject=p-1", session)["steps"]
    assert [(it["target"], it["way"]) for it in steps] == [
        ("", "over"),
        ("Low", "down"),
        ("Critical", "up"),
        ("Low", "up"),
    ]
    assert steps[0]["why"] == "event Recovered"


def test_the_glass_is_broken_with_a_reason_and_on_record(ward: ConsoleInstallation) -> None:
    nurse, officer = ward.sign_in("nurse"), ward.sign_in("officer")
    form = {"scenario": "oxygen", "subject": "p-2", "situation": "Low", "reason": "pale lips"}
    unknown = ward.act("/emergencies/start", nurse, **form)
    assert unknown.status == 422
    assert "The name is right" in unknown.text
    assert 'value="pale lips"' in unknown.text
    assert case(ward, nurse, "p-2") is None
    done = ward.act("/emergencies/start", nurse, **form, sure="yes")
    assert done.status == 303
    assert case(ward, nurse, "p-2") == "Low"
    assert "p-2 is in Low of oxygen" in ward.page(done.headers["location"], nurse)
    ended = ward.act(
        "/emergencies/end", nurse, scenario="oxygen", subject="p-2", reason="a false alarm"
    )
    assert ended.status == 303
    assert case(ward, nurse, "p-2") is None
    steps = ward.data("/emergencies/history.json?subject=p-2", nurse)["steps"]
    assert [it["reason"] for it in steps] == ["a false alarm", "pale lips"]
    assert all(it["by_hand"] and it["why"] == "by hand of nurse" for it in steps)
    rows = ward.data("/audit.json?kind=situation.requested&who=nurse", officer)["rows"]
    assert len(rows) == 2
    assert "pale lips" not in str(rows)


def test_who_has_no_right_sets_nothing_and_is_on_record(ward: ConsoleInstallation) -> None:
    officer = ward.sign_in("officer")
    form = {"scenario": "oxygen", "subject": "p-3", "situation": "Low", "reason": "curious"}
    answer = ward.act("/emergencies/start", officer, **form, sure="yes")
    assert answer.status == 403
    assert "break_glass" in answer.text
    assert case(ward, officer, "p-3") is None
    rows = ward.data("/audit.json?kind=situation.refused&who=officer", officer)["rows"]
    assert rows[0]["outcome"] == "denied"
    assert "Break the glass" not in ward.page("/emergencies/scenario?name=oxygen", officer)
    stranger = ward.sign_in("auditor")
    for path in ("", "/scenario?name=oxygen", "/history"):
        first, _, query = path.partition("?")
        for ending in ("", ".json", ".live"):
            if ending == ".live" and "history" in path:
                continue
            asked = f"/emergencies{first}{ending}?{query}"
            assert ward.ask(asked, session=stranger).status == 403
    for verb in ("start", "end", "approve", "withdraw"):
        assert ward.act(f"/emergencies/{verb}", stranger, **form).status == 403


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("situation", "None", "has no situation"),
        ("hold", "100d", "7d at most"),
        ("hold", "soon", "not a duration"),
        ("reason", "", "cannot be recorded"),
        ("scenario", "floods", "there is no scenario"),
    ],
)
def test_what_nobody_could_carry_out_is_refused(
    ward: ConsoleInstallation, field: str, value: str, told: str
) -> None:
    form = {"scenario": "oxygen", "subject": "p-4", "situation": "Low", "reason": "x"}
    form["sure"] = "yes"
    answer = ward.act("/emergencies/start", ward.sign_in("nurse"), **{**form, field: value})
    assert answer.status == 422
    assert told in answer.text


def test_subjects_and_reasons_are_shown_as_text(ward: ConsoleInstallation) -> None:
    nurse = ward.sign_in("nurse")
    evil = "<svg onload=alert(1)>"
    form = {"scenario": "oxygen", "subject": evil, "situation": "Low", "reason": evil}
    assert ward.act("/emergencies/start", nurse, **form, sure="yes").status == 303
    for path in (
        "/emergencies",
        "/emergencies/history",
        f"/emergencies/scenario?name=oxygen&subject={quote(evil)}",
        f"/emergencies/history?subject={quote(evil)}",
    ):
        page = ward.page(path, nurse)
        assert "&lt;svg onload" in page
        assert "<svg onload" not in page
    ended = {"scenario": "oxygen", "subject": evil, "reason": "over"}
    assert ward.act("/emergencies/end", nurse, **ended).status == 303
