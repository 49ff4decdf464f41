"""`penstock situation` as an officer calls it; the store's rows are a gateway's."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import penstock_lab.demo
from penstock.cli import main
from penstock.cli.session import open_database
from penstock.store.database import Database
from penstock.store.detection.journal import DetectedTransition, DetectionStore, JournalBatch
from penstock.store.detection.tables import Cause

Run = Callable[..., tuple[int, str, str]]
FOLDER = Path(penstock_lab.demo.__file__).parent / "nursing_home"
AT = int(datetime(2026, 3, 1, 8, tzinfo=UTC).timestamp() * 1000)
ANN, BOB, EVE, CARL = (("--as", it, "--password-file", it) for it in ("ann", "bob", "eve", "carl"))
WHY = ("--reason", "collapsed in the garden")
START = ("situation", "start", "covid", "patient-1", "Severe", *WHY, "--wait", "0")
RIGHTS = """
kind: group
name: on-duty
members: [user:bob, user:eve]
---
kind: right
name: emergencies/covid
subjects: [user:ann, group:on-duty]
break_glass: [covid]
---
kind: right
name: emergencies/pulmonary
subjects: [user:carl]
break_glass: [pulmonary]
"""


class Terminal(io.StringIO):
    """Somebody at a keyboard."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PENSTOCK_ACTOR", "ann")

    def call(*arguments: str, told: str = "", terminal: bool = False) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", Terminal(told) if terminal else io.StringIO(told))
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        printed = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, printed.out, printed.err

    _configure(tmp_path)
    (tmp_path / "rights.yaml").write_text(RIGHTS)
    assert call("apply", "-f", str(FOLDER), "-f", "rights.yaml")[0] == 0
    for user in ("ann", "bob", "eve", "carl"):
        assert call("password", user, told=f"{user}'s word\n")[0] == 0
        (tmp_path / user).touch(0o600)
        (tmp_path / user).write_text(f"{user}'s word\n")
    return call


def _configure(folder: Path, *, two_persons: bool = False, open_mode: bool = False) -> None:
    gateway = {
        "open_mode": open_mode,
        "authentication": {"passwords": "keys/passwords"},
        "emergencies": {"two_persons": two_persons},
    }
    (folder / "penstock.yaml").write_text(json.dumps({"gateway": gateway}))


@pytest.fixture
def gateway(run: Run) -> Iterator[DetectionStore]:
    """Give what a gateway that detects writes with, after it has detected something."""
    with open_database() as database:
        yield _detect(database)


def _detect(database: Database) -> DetectionStore:
    store = DetectionStore(database, "test", seconds=300)
    store.acquire()
    steps = [
        DetectedTransition(AT, "covid", "patient-1", None, "Suspected", "NewSymptom"),
        DetectedTransition(
            AT + 60_000, "covid", "patient-1", "Suspected", "Symptomatic", "PositiveWithSymptoms"
        ),
        DetectedTransition(
            AT + 61_000, "pulmonary", "patient-2", None, "Dyspnea", "Breathlessness"
        ),
    ]
    store.append(JournalBatch(1, b"", steps))
    return store


def _carry_out(gateway: DetectionStore, request: str, trouble: str = "") -> None:
    step = DetectedTransition(
        AT + 70_000, "covid", "patient-1", "Symptomatic", "Severe", None, Cause.MANUAL, request
    )
    gateway.append(JournalBatch(2, b"", [] if trouble else [step], [(request, trouble)]))


def _json(run: Run, *arguments: str) -> Any:
    code, out, err = run("situation", *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def _audited(run: Run) -> list[str]:
    code, out, _ = run("audit", "tail", "--json", "-n", "1000")
    assert code == 0
    assert run("audit", "verify")[0] == 0
    kinds = [json.loads(line)["kind"] for line in out.splitlines()]
    return [kind for kind in kinds if kind.startswith("situation.")]


@pytest.mark.usefixtures("gateway")
def test_list_shows_what_holds(run: Run) -> None:
    told = _json(run, "list")
    assert told["trouble"] is None
    assert [(it["scenario"], it["subject"], it["situation"], it["level"])
            for it in told["situations"]] == [
        ("covid", "patient-1", "Symptomatic", 4),
        ("pulmonary", "patient-2", "Dyspnea", 1),
    ]  # fmt: skip
    assert len(_json(run, "list", "--subject", "patient-2")["situations"]) == 1
    code, out, _ = run("situation", "list", "--scenario", "covid")
    assert code == 0
    assert "Symptomatic" in out
    assert "Dyspnea" not in out
    code, _, err = run("situation", "list", "--scenario", "covit")
    assert code == 2
    assert "scenarios are: covid, pulmonary" in err


def test_without_a_detecting_gateway_that_is_told(run: Run) -> None:
    code, out, _ = run("situation", "list")
    assert code == 0
    assert "no emergency holds" in out
    assert "no gateway has detected anything yet" in out
    with open_database() as database:
        _detect(database).release()
    assert _json(run, "list")["trouble"].startswith("no gateway detects since")


@pytest.mark.usefixtures("gateway")
def test_history_tells_times_and_causes(run: Run) -> None:
    steps = _json(run, "history", "--subject", "patient-1")
    assert [(it["from"], it["to"], it["event"], it["cause"]) for it in steps] == [
        ("Suspected", "Symptomatic", "PositiveWithSymptoms", "detected"),
        (None, "Suspected", "NewSymptom", "detected"),
    ]
    assert steps[1]["at"] == "2026-03-01T08:00:00+00:00"
    before = _json(run, "history", "--before", str(steps[0]["number"]))
    assert [it["to"] for it in before] == ["Suspected"]
    code, out, _ = run("situation", "history")
    assert code == 0
    assert "event PositiveWithSymptoms" in out
    assert "at (UTC)" in out
    code, _, err = run("situation", "history", "--scenario", "covit")
    assert code == 2
    assert "scenarios are: covid, pulmonary" in err


@pytest.mark.usefixtures("gateway")
def test_explain_says_why_and_what_it_opens_to_whom(run: Run) -> None:
    told = _json(run, "explain", "covid", "patient-1")
    assert told["plan"] == "covid-19"
    assert told["situation"]["situation"] == "Symptomatic"
    assert told["because"]["event"] == "PositiveWithSymptoms"
    assert told["evolution"] == {"number": 4, "actions": [], "priority": 5}
    assert {"event": "SevereSymptom", "to": "Severe"} in told["next"]
    people = {it["policy"]: it["people"] for it in told["policies"]}
    assert people == {
        "external_specialist/read-physiological": ["specialist-1"],
        "medical_personnel/read-location": ["nurse-1", "physician-1"],
        "relative/read-bulletin": ["relative-1"],
    }
    code, out, _ = run("situation", "explain", "covid", "patient-3")
    assert code == 0
    assert "patient-3 is in no situation" in out
    assert "NewSymptom → Suspected" in out


FLOOR = """
kind: vocabulary
name: floors
subject: {floor: int}
---
kind: scenario
name: covid
plan: covid-19
attribute: pid
subject_filter: s.floor == 1
---
kind: attributes
name: user:patient-2
values: {floor: 1}
"""


@pytest.mark.usefixtures("gateway")
def test_nobody_is_put_into_a_case_that_does_not_involve_them(run: Run, tmp_path: Path) -> None:
    (tmp_path / "floor.yaml").write_text(FLOOR)
    assert run("apply", "-f", "floor.yaml")[0] == 0
    code, _, err = run(*START, *ANN)
    assert code == 2
    assert "let its subject_filter involve them" in err.replace("\n", " ")
    other = tuple("patient-2" if it == "patient-1" else it for it in START)
    run(*other, *ANN)
    (asked,) = _json(run, "requests")
    assert (asked["subject"], asked["state"]) == ("patient-2", "ready")


LASTING = """
kind: plan
name: pulmonary-issues
situations: [{id: Dyspnea, level: 1}, {id: LowOxygenSaturation, level: 1}]
evolutions:
  - {event: Breathlessness, to: Dyspnea}
  - {event: BelowThresholdO2, to: LowOxygenSaturation}
  - {after: 36h, from: Dyspnea}
"""


def test_explain_tells_who_is_involved_and_when_it_ends_by_itself(
    run: Run, gateway: DetectionStore, tmp_path: Path
) -> None:
    told = _json(run, "explain", "covid", "patient-1")
    staff, kin = {"physician-1", "nurse-1", "specialist-1"}, {"patient-1", "relative-1"}
    assert set(told["involved"]) == staff | kin
    assert told["subject_filter"].startswith("s.uid == c.subject")
    out = run("situation", "explain", "covid", "patient-1")[1]
    assert "it involves nurse-1, patient-1, physician-1, relative-1, specialist-1:" in out
    assert _json(run, "explain", "pulmonary", "patient-2")["involved"] is None
    (tmp_path / "plan.yaml").write_text(LASTING)
    assert run("apply", "-f", "plan.yaml")[0] == 0
    (onward,) = _json(run, "explain", "pulmonary", "patient-2")["next"]
    assert onward == {
        "event": None,
        "to": None,
        "after": 129_600,
        "at": "2026-03-02T20:01:01+00:00",
    }
    assert "from here: after 36h → ⊥" in run("situation", "explain", "pulmonary", "patient-2")[1]
    over = DetectedTransition(
        AT + 129_661_000, "pulmonary", "patient-2", "Dyspnea", None, None, Cause.DURATION
    )
    gateway.append(JournalBatch(2, b"", [over]))
    assert "its longest duration is over" in run("situation", "history")[1]


@pytest.mark.usefixtures("gateway")
def test_the_diagram_marks_what_holds(run: Run, tmp_path: Path) -> None:
    given = ("situation", "diagram", "covid-19", "--current", "--output")
    assert run(*given, "plan.svg")[0] == 0
    text = (tmp_path / "plan.svg").read_text()
    ET.fromstring(text)  # noqa: S314 - our own text
    assert "level 4 · 1 here" in text
    code, out, _ = run(*given, "-")
    assert code == 0
    assert out == text
    assert run(*given, "no/such/folder.svg")[0] == 3
    code, _, err = run("situation", "diagram", "covid", "--output", "-")
    assert code == 2
    assert "plans are: covid-19, pulmonary-issues" in err


def test_a_start_by_hand_is_carried_out_by_the_gateway_and_kept_with_its_reason(
    run: Run, gateway: DetectionStore
) -> None:
    code, _, err = run(*START, *ANN)
    assert code == 1
    assert "no gateway has carried it out yet: it has not answered in time" in err
    (asked,) = _json(run, "requests")
    assert (asked["actor"], asked["state"]) == ("ann", "ready")
    _carry_out(gateway, asked["request"])
    assert _json(run, "requests") == []
    told = _json(run, "explain", "covid", "patient-1")
    assert told["situation"]["situation"] == "Severe"
    assert told["because"]["reason"] == "collapsed in the garden"
    _, out, _ = run("situation", "history", "--limit", "1")
    assert "by hand of ann: collapsed in the garden" in out
    assert _audited(run) == ["situation.requested"]


@pytest.mark.parametrize("persons", [1, 2])
def test_who_is_held_is_shown_with_until_when(
    run: Run, gateway: DetectionStore, tmp_path: Path, persons: int
) -> None:
    _configure(tmp_path, two_persons=persons > 1)
    run(*START, "--hold", "30m", *ANN)
    (asked,) = _json(run, "requests")
    assert asked["hold_seconds"] == 1800
    assert "held for 0:30:00" in run("situation", "requests")[1]
    if persons > 1:
        run("situation", "approve", asked["request"], "--wait", "0", *BOB)
    _carry_out(gateway, asked["request"])
    (held,) = _json(run, "list", "--subject", "patient-1")["situations"]
    assert held["held_until"] == "2026-03-01T08:31:10+00:00"
    code, out, _ = run("situation", "list")
    assert code == 0
    assert "held until (UTC)" in out
    assert "2026-03-01 08:31:10" in out
    told = "(held until 2026-03-01 08:31:10)"
    assert told in run("situation", "history", "--limit", "1")[1]
    assert "held until 2026-03-01 08:31:10 UTC" in run("situation", "explain", *START[2:4])[1]
    step = DetectedTransition(
        AT + 1_870_000, "covid", "patient-1", "Severe", None, None, Cause.TIME
    )
    gateway.append(JournalBatch(3, b"", [step]))
    assert _json(run, "list", "--subject", "patient-1")["situations"] == []
    assert "the time is over that it was held for" in run("situation", "history")[1]
    _, out, _ = run("audit", "tail", "--json", "-n", "1000", "--kind", "situation.requested")
    assert json.loads(out)["details"]["hold_seconds"] == 1800


@pytest.mark.parametrize("hold", ["8d", "0s", "-5m", "soon"])
def test_nobody_is_held_for_ever_or_not_at_all(run: Run, hold: str) -> None:
    code, _, err = run(*START, *ANN, f"--hold={hold}")
    assert code == 2
    assert f"'{hold}'" in err
    assert _json(run, "requests", "--all") == []


@pytest.mark.usefixtures("gateway")
def test_a_name_that_nobody_knows_is_asked_about(run: Run) -> None:
    def start(subject: str, *more: str, told: str = "") -> str:
        given = ("situation", "start", "covid", subject, "Severe", *WHY, "--wait", "0")
        return run(*given, *more, *ANN, told=told, terminal=bool(told))[2].replace("\n", " ")

    for subject in ("patient-11", "user:patient-1"):
        assert f"'{subject}' stands in no definition" in start(subject)
    assert _json(run, "requests", "--all") == []
    # The names of the demo's people, by group, attribute and wearer of a sensor.
    for subject in ("patient-3", "patient-1"):
        assert "no gateway has carried it out" in start(subject)
    assert "no gateway has carried it out" in start("patient-11", "--yes")
    assert "was not meant" in start("patient-12", told="n\n")
    assert "no gateway has carried it out" in start("patient-12", told="y\n")


def test_who_had_a_case_is_known(run: Run, gateway: DetectionStore) -> None:
    steps = [
        DetectedTransition(AT, "pulmonary", "visitor", None, "Dyspnea", "Breathlessness"),
        DetectedTransition(AT + 1, "pulmonary", "visitor", "Dyspnea", None, "NormalBreathing"),
    ]
    gateway.append(JournalBatch(2, b"", steps))
    _, _, err = run("situation", "start", "covid", "visitor", "Severe", *WHY, "--wait", "0", *ANN)
    assert "no gateway has carried it out" in err


def test_what_the_gateway_refuses_is_told(run: Run, gateway: DetectionStore) -> None:
    run("situation", "end", "covid", "patient-1", *WHY, "--wait", "0", *ANN)
    (asked,) = _json(run, "requests")
    assert asked["situation"] is None
    _carry_out(gateway, asked["request"], trouble="there is no such scenario any more")
    (settled,) = _json(run, "requests", "--all")
    assert (settled["state"], settled["trouble"]) == (
        "failed",
        "there is no such scenario any more",
    )


@pytest.mark.usefixtures("gateway")
def test_nothing_is_ended_that_does_not_hold(run: Run) -> None:
    """A slip of the pen must not pass for an emergency that is over."""
    for subject in ("patient-11", "patient-2"):
        code, _, err = run("situation", "end", "covid", subject, *WHY, *ANN)
        assert code == 2
        assert "there is nothing to end" in err.replace("\n", " ")
    assert _json(run, "requests", "--all") == []


@pytest.mark.usefixtures("gateway")
def test_a_request_can_be_withdrawn(run: Run) -> None:
    run(*START, *ANN)
    (asked,) = _json(run, "requests")
    assert run("situation", "withdraw", asked["request"], *CARL)[0] == 1
    assert _json(run, "withdraw", asked["request"], *ANN)["state"] == "withdrawn"
    code, _, err = run("situation", "withdraw", asked["request"], *ANN)
    assert code == 2
    assert "is withdrawn" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("covit", "patient-1", "Severe"), "scenarios are: covid, pulmonary"),
        (("covid", "patient-1", "Grave"), "name one of Possible, Suspected"),
    ],
)
def test_what_cannot_be_is_refused_at_once(run: Run, arguments: tuple[str, ...], told: str) -> None:
    code, _, err = run("situation", "start", *arguments, *WHY, *ANN)
    assert code == 2
    assert told in err
    assert _json(run, "requests", "--all") == []


def test_who_has_no_right_is_refused_and_on_record(run: Run, tmp_path: Path) -> None:
    for how in (("start", "covid", "patient-1", "Severe"), ("end", "covid", "patient-1")):
        code, _, err = run("situation", *how, *WHY, *CARL)
        assert code == 1
        told = err.replace("\n", " ")
        assert "'carl' has no right to set situations of 'covid' by hand" in told
        assert "whose `break_glass` names the scenario" in told
    code, _, err = run(*START)
    assert code == 2
    assert "a login name proves nothing" in err
    assert _json(run, "requests", "--all") == []
    code, out, _ = run("audit", "tail", "--json", "-n", "1000", "--kind", "situation.refused")
    first, second = (json.loads(line) for line in out.splitlines())
    assert first["outcome"] == second["outcome"] == "denied"
    assert first["details"] == {"reason": "right", "scenario": "covid", "situation": "Severe"}
    assert first["subject"] == second["subject"]
    assert first["actor"] is not None
    # For trials nobody needs a right, and nobody is asked who they are.
    _configure(tmp_path, open_mode=True)
    assert "no gateway has carried it out yet" in run(*START)[2]


def test_a_right_is_needed_to_approve_and_still_held_by_who_asked(
    run: Run, gateway: DetectionStore, tmp_path: Path
) -> None:
    _configure(tmp_path, two_persons=True)
    assert run(*START, *ANN)[0] == 0
    (asked,) = _json(run, "requests")
    approve = ("situation", "approve", asked["request"], "--wait", "0")
    assert "'carl' has no right" in run(*approve, *CARL)[2]
    (tmp_path / "rights.yaml").write_text(RIGHTS.replace("user:ann, ", ""))
    assert run("apply", "-f", "rights.yaml")[0] == 0
    assert "'ann' has no right" in run(*approve, *BOB)[2]
    assert _json(run, "requests")[0]["state"] == "open"
    assert gateway.load()[1] == 0


def test_two_persons_prove_who_they_are_and_differ(
    run: Run, gateway: DetectionStore, tmp_path: Path
) -> None:
    _configure(tmp_path, two_persons=True)
    code, _, err = run(*START)
    assert code == 2
    assert "a login name proves nothing" in err
    code, _, err = run(*START, "--as", "eve", "--password-file", "bob")
    assert code == 1
    assert "wrong user name or password" in err
    code, out, _ = run(*START, *EVE)
    assert code == 0
    assert "a second person must approve it" in out
    (asked,) = _json(run, "requests")
    assert asked["state"] == "open"
    approve = ("situation", "approve", asked["request"], "--wait", "0")
    code, _, err = run(*approve, *EVE)
    assert code == 1
    assert "whoever made a request cannot approve it" in err
    assert "carried it out yet" in run(*approve, *BOB)[2]
    _carry_out(gateway, asked["request"])
    _, out, _ = run("situation", "history", "--limit", "1")
    assert "by hand of eve, approved by bob" in out
    assert _audited(run) == [
        "situation.refused",  # a wrong password
        "situation.requested",
        "situation.approved",  # denied: by the same person
        "situation.approved",
    ]
