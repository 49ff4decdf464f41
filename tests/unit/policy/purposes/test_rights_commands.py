"""Rights on commands."""

from __future__ import annotations

import pytest

from penstock.model.purposes import PurposeSet
from penstock.model.topics import TopicError
from penstock.policy.purposes.commands import (
    Clear,
    Command,
    Persist,
    Presubscribe,
    Reload,
    Reserve,
    Reset,
    SetSetting,
    ShowAffected,
    ShowCombined,
    ShowTree,
)
from penstock.policy.purposes.rights import OPEN_RIGHTS, CommandRights

SOME = CommandRights(reserve=("a/#", "b/+"), presubscribe=("p/#",))
ADMIN = CommandRights(administer=True)


@pytest.mark.parametrize(
    ("command", "some", "admin"),
    [
        (Reserve("a/b/c", None), True, False),
        (Reserve("a/#", PurposeSet()), True, False),
        (Reserve("b/c", None), True, False),
        (Reserve("b/#", None), False, False),
        (Reserve("#", None), False, False),
        (Reserve("c", None), False, False),
        (Presubscribe("c1", "p/#", "x"), True, False),
        (Presubscribe("c1", "$share/g/p/q", "x"), True, False),
        (Presubscribe("c1", "a/b", "x"), False, False),
        (ShowCombined("a/b"), True, True),
        (ShowCombined("c"), False, True),
        (ShowAffected("a/+"), True, True),
        (ShowAffected("#"), False, True),
        (SetSetting("auto_persist", True), False, True),  # noqa: FBT003
        (Clear(), False, True),
        (Reset(), False, True),
        (Persist(), False, True),
        (Reload(), False, True),
        (ShowTree(), False, True),
    ],
)
def test_rights(command: Command, some: bool, admin: bool) -> None:  # noqa: FBT001
    assert SOME.may(command).allowed is some
    assert ADMIN.may(command).allowed is admin
    assert not CommandRights().may(command).allowed
    assert OPEN_RIGHTS.may(command).allowed


def test_a_leading_wildcard_gives_no_right_to_dollar_topics() -> None:
    assert not CommandRights(reserve=("#",)).may(Reserve("$SYS/x", None)).allowed
    assert OPEN_RIGHTS.may(Reserve("$SYS/x", None)).allowed


def test_decisions_name_the_right() -> None:
    allowed = SOME.may(Reserve("b/c", None))
    assert allowed.rule == "reserve b/+"
    denied = SOME.may(Reserve("c", None))
    assert denied.rule == "reserve"
    assert [item.effect for item in denied.considered] == ["does not cover"] * 2


def test_rights_are_filters() -> None:
    with pytest.raises(TopicError):
        CommandRights(reserve=("a/#/b",))
