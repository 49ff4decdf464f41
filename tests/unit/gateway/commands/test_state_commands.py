from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock.gateway.authorization.rules import Rules
from penstock.gateway.commands.purpose_commands import STATE_COMMANDS_PER_MINUTE
from penstock.gateway.commands.state_commands import (
    WAITING_LIMIT,
    CommandBudget,
    StateCommands,
    TooManyError,
    Wanted,
)
from penstock.model.document import Document, Key
from penstock.model.purposes import PurposeSet
from penstock.mqtt import ReasonCode
from penstock.policy.purposes.commands import (
    Clear,
    Command,
    Persist,
    Presubscribe,
    Reload,
    Reserve,
    Reset,
    SetSetting,
)
from penstock.policy.purposes.settings import PurposeSettings
from penstock.store import session_state
from penstock.store.definitions.documents import Snapshot
from penstock.store.session_state import StateLog
from tests.support.gateway.command_store import CARE, KEY, STORED, Sender, Store, give

OTHER = Reserve("b", PurposeSet.of(["ads"], ()))
PRESUBSCRIBED = Presubscribe("other", "a/#", "care")
HYBRID = SetSetting("filter_hybrid", value=True)
STATE_COMMANDS: list[Command] = [Clear(), Reset(), Persist(), Reload()]


def did(store: Store) -> list[str]:
    return [it.did for it in store.rules.state.commands]


def settings(store: Store) -> Document | None:
    return store.stored().get(Key("purpose-settings", "default"))


def test_clear_and_reset_leave_settings_alone() -> None:
    _, store = give(CARE, PRESUBSCRIBED, HYBRID, Clear(), CARE, Reset())
    assert set(store.stored()) == {Key("purpose-settings", "default")}
    assert store.rules.engine.settings.filter_hybrid
    assert did(store) == ["clear", "clear"]
    operation, then, whole = store.operations[-1]
    assert (operation, whole) == ("reset", True)
    assert isinstance(then, partial)
    assert then.func is session_state.clear


def test_reset_stores_the_settings_that_are_set_here() -> None:
    _, store = give(SetSetting("auto_persist", value=False), HYBRID)
    assert settings(store) is not None
    assert store.rules.unsaved().keys() == {Key("purpose-settings", "default")}
    on = SetSetting("auto_persist", value=True)
    _, store = give(SetSetting("auto_persist", value=False), HYBRID, CARE, on, Reset())
    held = settings(store)
    assert held is not None
    assert held.body["filter_hybrid"] is True
    assert store.rules.unsaved() == {}


def test_reload_goes_back_whatever_was_stored_since() -> None:
    since: list[Command] = [OTHER, Reserve("a/#", None), Presubscribe("other", "a/#", None)]
    for later in (since, [*since, Clear()], [Clear(), OTHER], [Reset(), HYBRID]):
        _, store = give(CARE, PRESUBSCRIBED, Persist(), *later, Reload())
        kept = {key for key in store.stored() if key.kind != "purpose-settings"}
        assert store.stored()[KEY] == STORED
        assert {it.kind for it in kept} == {"reservation", "presubscription"}
        assert len(kept) == 2
        assert did(store)[-1] == "reload"
        assert (settings(store) is not None) == (HYBRID in later)


def test_the_last_persisted_state_counts() -> None:
    _, store = give(CARE, Persist(), Clear(), OTHER, Persist(), Clear(), Reload())
    assert set(store.stored()) == {Key("reservation", "b")}


def test_where_nothing_was_persisted_reload_takes_back_what_was_tried_out() -> None:
    _, store = give(CARE, Reload())
    assert store.stored() == {KEY: STORED}
    assert did(store) == []


def test_without_auto_persist_clear_holds_here_alone() -> None:
    off = SetSetting("auto_persist", value=False)
    _, store = give(CARE, Persist(), off, OTHER, Clear())
    assert KEY in store.stored()
    assert store.rules.engine.effective("a/b") is None
    assert store.rules.engine.effective("b") is None
    assert (store.cleared_here, did(store)) == (1, ["persist"])
    _, store = give(CARE, Persist(), off, OTHER, Clear(), Reload())
    assert store.rules.engine.effective("a/b") is not None
    assert store.rules.unsaved() == {}


def test_clear_removes_what_was_only_released_here_as_well() -> None:
    """A release that was tried out must not save a stored reservation from CLEAR."""
    off, on = (SetSetting("auto_persist", value=it) for it in (False, True))
    _, store = give(CARE, off, Reserve("a/#", None), on, Clear())
    assert KEY not in store.stored()
    assert store.rules.unsaved() == {}


def test_what_was_persisted_in_another_history_is_refused() -> None:
    sender, store = give(CARE, Persist())
    foreign = StateLog(persisted=1).document()
    store.put(foreign)
    give(Reload(), sender=sender, store=store)
    assert sender.denied == [("malformed", ReasonCode.TOPIC_NAME_INVALID)]
    assert store.stored() == {KEY: STORED}


@pytest.mark.parametrize("command", STATE_COMMANDS)
def test_who_may_not_administer_changes_nothing(command: Command) -> None:
    sender, store = give(command, open_mode=False)
    assert sender.denied == [("right", ReasonCode.NOT_AUTHORIZED)]
    assert (store.operations, store.cleared_here, store.passed_on) == ([], 0, 0)


def test_all_together_are_bounded_and_others_go_on() -> None:
    many: list[Command] = [STATE_COMMANDS[it % 4] for it in range(STATE_COMMANDS_PER_MINUTE + 5)]
    sender, store = give(*many, CARE)
    assert sender.denied == [("rate", ReasonCode.QUOTA_EXCEEDED)] * 5
    assert store.stored() == {KEY: STORED}


def test_a_budget_fills_up_again() -> None:
    now = [1_000.0]
    budget = CommandBudget(6, lambda: now[0])
    assert [budget.take() for _ in range(8)] == [True] * 6 + [False] * 2
    now[0] += 10
    assert [budget.take() for _ in range(2)] == [True, False]
    now[0] += 3_600
    assert sum(budget.take() for _ in range(20)) == 6


def test_commands_come_one_after_another_and_only_a_few_wait() -> None:
    async def use() -> None:
        rules = Rules(PurposeSettings(), open_mode=True)
        store = Halting(rules)
        state = StateCommands(rules, store, CommandBudget(1_000))
        sender = Sender()
        given = [
            asyncio.create_task(state.carry_out(sender, Clear())) for _ in range(WAITING_LIMIT)
        ]
        await asyncio.sleep(0)
        with pytest.raises(TooManyError):
            await state.carry_out(sender, Persist())
        store.go_on.set()
        assert all(await asyncio.gather(*given))
        assert store.most == 1
        assert await state.carry_out(sender, Persist())

    asyncio.run(use())


class Halting(Store):
    """A store that takes a while, and notes how many are in it at a time."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self.go_on = asyncio.Event()
        self.most = self.inside = 0

    async def edit(self, work_out: Callable[[Snapshot], Wanted], **said: Any) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        await self.go_on.wait()
        await asyncio.sleep(0)
        await super().edit(work_out, **said)
        self.inside -= 1
