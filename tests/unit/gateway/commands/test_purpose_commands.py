from __future__ import annotations

import json

import pytest

from penstock.errors import PenstockError, UnavailableError
from penstock.mqtt import ReasonCode
from penstock.policy.purposes.commands import (
    Clear,
    Persist,
    Presubscribe,
    Reload,
    SetSetting,
    ShowCombined,
)
from tests.support.gateway.command_store import CARE, KEY, STORED, Sender, give


def test_a_change_is_stored_holds_here_and_is_acknowledged() -> None:
    sender, store = give(CARE, ShowCombined("a/b"))
    assert store.stored() == {KEY: STORED}
    assert store.reasons == ["reserved a/# by MQTT command"]
    assert store.passed_on == 1
    assert [json.loads(it) for it in sender.answers] == [
        {"topic": "a/b", "purposes": {"allow": ["care"], "prohibit": []}}
    ]
    assert (sender.confirmed, sender.denied) == (2, [])


def test_without_auto_persist_a_change_holds_here_alone_until_it_is_stored_or_taken_back() -> None:
    _, store = give(CARE, auto_persist=False)
    assert store.stored() == {}
    assert store.rules.unsaved() == {KEY: STORED}
    _, store = give(CARE, Persist(), auto_persist=False)
    assert store.stored() == {KEY: STORED}
    assert store.rules.unsaved() == {}
    _, store = give(CARE, Reload(), auto_persist=False)
    assert store.rules.unsaved() == store.stored() == {}
    assert store.rules.engine.effective("a/b") is None


def test_who_turns_auto_persist_on_has_that_stored() -> None:
    _, store = give(SetSetting("auto_persist", value=True), auto_persist=False)
    (held,) = store.stored().values()
    assert held.kind == "purpose-settings"
    assert held.body["auto_persist"] is True


def test_a_presubscription_said_twice_is_one_definition() -> None:
    said = [Presubscribe("other", "a/#", purpose) for purpose in ("care", "research")]
    _, store = give(*said)
    (held,) = store.stored().values()
    assert held.body == {"client": "other", "filter": "a/#", "purpose": "research"}
    _, store = give(*said, Presubscribe("other", "a/#", None))
    assert store.stored() == {}


def test_clear_ends_reservations_and_presubscriptions() -> None:
    _, store = give(CARE, Presubscribe("other", "a/#", "care"), Clear())
    assert store.stored() == {}


def test_who_has_no_right_changes_nothing() -> None:
    sender, store = give(CARE, open_mode=False)
    assert sender.denied == [("right", ReasonCode.NOT_AUTHORIZED)]
    assert (sender.confirmed, store.stored()) == (0, {})


def test_who_commands_too_often_changes_nothing() -> None:
    sender, store = give(CARE, sender=Sender(within_rate=False))
    assert sender.denied == [("rate", ReasonCode.QUOTA_EXCEEDED)]
    assert store.stored() == {}


@pytest.mark.parametrize("auto_persist", [True, False])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UnavailableError("the store is away"), ("stale", ReasonCode.UNSPECIFIED_ERROR)),
        (PenstockError("that cannot be"), ("malformed", ReasonCode.TOPIC_NAME_INVALID)),
    ],
)
def test_what_cannot_be_done_changes_nothing_and_is_told(
    error: Exception,
    told: tuple[str, ReasonCode],
    auto_persist: bool,  # noqa: FBT001
) -> None:
    sender, store = give(CARE, error=error, auto_persist=auto_persist)
    assert sender.denied == [told]
    assert sender.confirmed == 0
    assert store.rules.unsaved() == store.stored() == {}
