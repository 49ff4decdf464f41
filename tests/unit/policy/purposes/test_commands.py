"""Commands in topics, well formed and malformed."""

from __future__ import annotations

import pytest

from penstock.model.purposes import PurposeSet
from penstock.model.topics import TopicError
from penstock.policy.purposes.commands import (
    Clear,
    Command,
    CommandError,
    Persist,
    Presubscribe,
    Reload,
    Reserve,
    Reset,
    SendFor,
    SetSetting,
    ShowAffected,
    ShowCombined,
    ShowTree,
    parse_publish,
    parse_subscribe,
)
from penstock.policy.purposes.settings import Notation

XY = PurposeSet.of(["x"], ["y"])


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("!RESERVE/a/b{x|y}", Reserve("a/b", XY)),
        ("!RESERVE/a/HASH{x|y}", Reserve("a/#", XY)),
        ("!RESERVE/PLUS/b/HASH{x|y}", Reserve("+/b/#", XY)),
        ("!RESERVE/a{}", Reserve("a", None)),
        ("!RESERVE/a{|}", Reserve("a", PurposeSet())),
        ("!RESERVE/a{|x}", Reserve("a", PurposeSet.of([], ["x"]))),
        ("!RESERVE//{x|y}", Reserve("/", XY)),
        ("!RESERVE/a{b}/c{x|y}", Reserve("a{b}/c", XY)),
        ("!RESERVE/$SYS/HASH{x|y}", Reserve("$SYS/#", XY)),
        ("!AIP/a/b{x|y}", SendFor("a/b", XY)),
        ("!AIP/a/HASH{x}", SendFor("a/HASH", PurposeSet.of(["x"]))),
        ("!PBAC/PRESUB/c1/a/HASH{x/z}", Presubscribe("c1", "a/#", "x/z")),
        ("!PBAC/PRESUB/c1/$share/g/a{x}", Presubscribe("c1", "$share/g/a", "x")),
        ("!PBAC/PRESUB/c1/a{}", Presubscribe("c1", "a", None)),
        ("!PBAC/CLEAR", Clear()),
        ("!PBAC/RESET", Reset()),
        ("!PBAC/PERSIST", Persist()),
        ("!PBAC/RELOAD", Reload()),
        ("!PBAC/TREE", ShowTree()),
        ("!PBAC/CRES/a/b", ShowCombined("a/b")),
        ("!PBAC/ARES/a/PLUS/HASH", ShowAffected("a/+/#")),
    ],
)
def test_published_commands(topic: str, expected: Command | SendFor) -> None:
    assert parse_publish(topic, b"") == expected


def test_settings_take_their_value_from_the_payload() -> None:
    assert parse_publish("!PBAC/SET/filter_hybrid", b"true") == SetSetting("filter_hybrid", True)  # noqa: FBT003
    assert parse_publish("!PBAC/SET/auto_persist", b"false") == SetSetting("auto_persist", False)  # noqa: FBT003
    with pytest.raises(CommandError) as caught:
        parse_publish("!PBAC/SET/filter_hybrid", b"secret")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "topic",
    [
        "!",
        "!RESERVE",
        "!RESERVE/",
        "!RESERVE/a",
        "!RESERVE/{x}",
        "!RESERVE/a{x",
        "!RESERVE/a{x}b",
        "!RESERVE/a{x|y|z}",
        "!RESERVE/a{x,}",
        "!RESERVE/a{ x}",
        "!RESERVE/HASH/a{x}",
        "!RESERVE/a\0{x}",
        "!RESREVE/a{x}",
        "!reserve/a{x}",
        "!AP/a{x}",
        "!AIP/a{}",
        "!AIP/{x}",
        "!AIP/!RESERVE/a{x}",
        "!AIP/a",
        "!PBAC",
        "!PBAC/",
        "!PBAC/NOTHING",
        "!PBAC/CLEAR/all",
        "!PBAC/PRESUB/c1{x}",
        "!PBAC/PRESUB//a{x}",
        "!PBAC/PRESUB/c1/a{x,y}",
        "!PBAC/PRESUB/c1/a{x|y}",
        "!PBAC/PRESUB/c1/HASH/a{x}",
        "!PBAC/SET/no_such_setting",
        "!PBAC/SET",
        "!PBAC/CRES/",
        "!PBAC/ARES/a/HASH/b",
    ],
)
def test_malformed_commands_are_quoted(topic: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse_publish(topic, b"true")
    assert repr(topic) in caught.value.message
    assert caught.value.fix


@pytest.mark.parametrize(
    ("text", "filter_", "group", "ap"),
    [
        ("a/#", "a/#", None, None),
        ("!AP/a/#{x/y}", "a/#", None, "x/y"),
        ("!AP/a/HASH{x}", "a/#", None, "x"),
        ("!AP/PLUS/b{x}", "+/b", None, "x"),
        ("!AP/$share/g/a/PLUS{x}", "a/+", "g", "x"),
        ("$share/g/a", "a", "g", None),
        ("a/HASH", "a/HASH", None, None),
    ],
)
def test_subscribed_filters(text: str, filter_: str, group: str | None, ap: str | None) -> None:
    parsed = parse_subscribe(text)
    assert (parsed.subscribed.filter, parsed.subscribed.group, parsed.ap) == (filter_, group, ap)


@pytest.mark.parametrize(
    "text",
    [
        "!AP",
        "!AP/a",
        "!AP/a{}",
        "!AP/a{x,y}",
        "!AP/a{x,y|r.z}",
        "!AP/a{x|}",
        "!AP/a{|}",
        "!AP/a{|r.z % 2}",
        "!AP/a{|%FF}",
        "!AP/{x}",
        "!AP/!AP/a{x}{y}",
        "!AP/a/#/b{x}",
        "!PBAC/#",
        "!RESERVE/a{x}",
        "!#",
    ],
)
def test_malformed_filters(text: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse_subscribe(text)
    assert repr(text) in caught.value.message


@pytest.mark.parametrize(
    ("text", "ap", "content"),
    [
        ("!AP/a/PLUS{care|r.x > 1}", "care", "r.x > 1"),
        ("!AP/a/PLUS{|r.x %25 2 == 1}", None, "r.x % 2 == 1"),
        (
            "!AP/a/PLUS{|r.s == %22a%2B%7B%23%7D%22 || r.x / 2 == 1}",
            None,
            'r.s == "a+{#}" || r.x / 2 == 1',
        ),
    ],
)
def test_content_filters(text: str, ap: str | None, content: str) -> None:
    parsed = parse_subscribe(text)
    assert (parsed.subscribed.filter, parsed.ap, parsed.content) == ("a/+", ap, content)


def test_plain_filters_keep_their_own_errors() -> None:
    with pytest.raises(TopicError):
        parse_subscribe("a/#/b")


def test_another_notation() -> None:
    notation = Notation(
        prefix="~~",
        reserve="r",
        access="s",
        opening="<<",
        closing=">>",
        divider="--",
        separator=";",
        rest="**",
    )
    reserve = parse_publish("~~r/a/**<<x;z--y>>", b"", notation)
    assert reserve == Reserve("a/#", PurposeSet.of(["x", "z"], ["y"]))
    assert parse_subscribe("~~s/a/**<<x>>", notation).ap == "x"
    assert parse_subscribe("!AP/a{x}", notation).ap is None


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("!PBAC/CRES/a/b", True),
        ("!PBAC/CRES/#", True),
        ("!PBAC/ARES/+/HASH", True),
        ("!PBAC/CRES", False),
        ("!PBAC/CRES/", False),
        ("!PBAC/#", False),
        ("!PBAC/+/a", False),
        ("!PBAC/TREE", False),
        ("!PBAC/CLEAR", False),
        ("!RESERVE/a", False),
    ],
)
def test_only_questions_can_be_subscribed_to_and_only_where_answers_are_published(
    text: str,
    accepted: bool,  # noqa: FBT001
) -> None:
    with pytest.raises(CommandError):
        parse_subscribe(text)
    if accepted:
        asked = parse_subscribe(text, answers=True)
        assert (asked.subscribed.text, asked.ap, asked.answers) == (text, None, True)
    else:
        with pytest.raises(CommandError):
            parse_subscribe(text, answers=True)
