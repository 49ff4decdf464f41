from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import Notation, NotationError
from penstock.client.commands import NOTATION, list_purposes
from penstock.model.purposes import PurposeError, PurposeSet, check_purpose
from penstock.policy.purposes import commands
from penstock.policy.purposes.commands import parse_publish, parse_subscribe
from penstock.policy.purposes.settings import Notation as GatewayNotation

WORDS = st.text("abcäß 0{}-", min_size=1, max_size=6)
LEVELS = st.lists(WORDS | st.just("+"), min_size=1, max_size=4)
FILTERS = st.builds(
    lambda levels, rest: "/".join([*levels, *rest]), LEVELS, st.sampled_from([[], ["#"]])
)
PURPOSES = st.lists(st.text("abc-", min_size=1, max_size=4), min_size=1, max_size=3).map("/".join)
SETS = st.lists(PURPOSES, max_size=3)


@given(FILTERS, SETS, SETS)
def test_the_gateway_reads_reservations_as_they_were_meant(
    filter_: str, aip: list[str], pip: list[str]
) -> None:
    read = parse_publish(NOTATION.reservation(filter_, aip, pip), b"")
    assert read == commands.Reserve(filter_, PurposeSet.of(aip, pip))
    assert parse_publish(NOTATION.release(filter_), b"") == commands.Reserve(filter_, None)


@given(FILTERS, PURPOSES)
def test_the_gateway_reads_subscriptions_as_they_were_meant(filter_: str, purpose: str) -> None:
    read = parse_subscribe(NOTATION.subscription(filter_, purpose))
    assert (read.subscribed.text, read.ap) == (filter_, purpose)


@given(FILTERS, PURPOSES | st.none())
def test_the_gateway_reads_presubscriptions_as_they_were_meant(
    filter_: str, purpose: str | None
) -> None:
    read = parse_publish(NOTATION.presubscription("meter{1}", filter_, purpose), b"")
    assert read == commands.Presubscribe("meter{1}", filter_, purpose)


@given(SETS, SETS)
def test_the_gateway_reads_the_purposes_of_one_message(aip: list[str], pip: list[str]) -> None:
    read = parse_publish(NOTATION.one_message("a/{b}", aip, pip), b"")
    assert read == commands.SendFor("a/{b}", PurposeSet.of(aip, pip))


def test_other_words_and_characters() -> None:
    words = {
        "prefix": "$$",
        "reserve": "R",
        "access": "A",
        "intended": "I",
        "administer": "M",
        "presubscribe": "P",
        "rest": "~~",
        "one": "~",
        "opening": "<",
        "closing": ">",
        "divider": ";",
        "separator": "&",
    }
    ours, theirs = Notation(**words), GatewayNotation(**words)
    text = ours.reservation("a/+/#", ["x", "y"], ["z"])
    assert text == "$$R/a/~/~~<x&y;z>"
    assert parse_publish(text, b"", theirs) == commands.Reserve(
        "a/+/#", PurposeSet.of(["x", "y"], ["z"])
    )
    read = parse_subscribe(ours.subscription("a/#", "x/y"), theirs)
    assert (read.subscribed.text, read.ap) == ("a/#", "x/y")


def test_nobody_and_nothing_are_written_differently() -> None:
    assert NOTATION.reservation("a", [], []) == "!RESERVE/a{|}"
    assert NOTATION.reservation("a", [], ["x"]) == "!RESERVE/a{|x}"
    assert NOTATION.reservation("a", ["x"], []) == "!RESERVE/a{x}"
    assert NOTATION.release("a") == "!RESERVE/a{}"


@pytest.mark.parametrize(
    "purpose",
    ["", " x", "x ", "a{b", "a}", "a|b", "a,b", "a+", "#", "a\0", "a//b", "/a", "a" * 256],
)
def test_purposes_that_would_be_read_differently_are_refused(purpose: str) -> None:
    with pytest.raises(NotationError, match="is not a purpose"):
        NOTATION.subscription("a", purpose)
    with pytest.raises(NotationError):
        NOTATION.reservation("a", [purpose], [])
    with pytest.raises(NotationError):
        NOTATION.reservation("a", [], [purpose])


@pytest.mark.parametrize("filter_", ["", "a/HASH", "PLUS/a", "a#", "a/b+/c"])
def test_filters_that_would_be_read_differently_are_refused(filter_: str) -> None:
    with pytest.raises(NotationError, match="filter"):
        NOTATION.reservation(filter_, ["x"], [])


@pytest.mark.parametrize("client_id", ["", "a/b", "a+", "#", "\0"])
def test_client_ids_that_would_be_read_differently_are_refused(client_id: str) -> None:
    with pytest.raises(NotationError, match="client id"):
        NOTATION.presubscription(client_id, "a", "x")


def test_one_text_is_not_taken_for_a_list_of_letters() -> None:
    with pytest.raises(NotationError, match=r"write \['marketing'\]"):
        list_purposes("marketing")


@given(st.text("ab/ {}|,+#\0\n", max_size=6))
def test_the_client_and_the_gateway_agree_on_what_a_purpose_is(text: str) -> None:
    try:
        check_purpose(text)
    except PurposeError:
        with pytest.raises(NotationError):
            NOTATION.check_purpose(text)
    else:
        assert NOTATION.check_purpose(text) == text
