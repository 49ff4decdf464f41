from __future__ import annotations

from penstock.gateway.session import HIGHEST_NUMBER, Session
from penstock.model.topics import parse_subscribed
from penstock.policy.purposes.subscriptions import Subscription


def subscription(text: str, ap: str | None = None) -> Subscription:
    return Subscription("c", parse_subscribed(text), ap, 1, options=1, identifier=7)


def test_a_filter_keeps_its_number_and_no_two_share_one() -> None:
    session = Session("c", "alice", 0)
    first = session.hold(subscription("a", "p"))
    assert (first.filter, first.purpose, first.options, first.identifier) == ("a", "p", 1, 7)
    second = session.hold(subscription("b"))
    again = session.hold(subscription("a", "q"))
    assert first.number == again.number != second.number
    assert session.by_number[first.number].ap == "q"


def test_a_dropped_number_is_unknown_and_not_given_again_soon() -> None:
    session = Session("c", "alice", 0)
    number = session.hold(subscription("a")).number
    session.drop("a")
    assert number not in session.by_number
    assert session.hold(subscription("a")).number != number
    session.drop("never there")


def test_numbers_begin_anew_without_meeting_those_in_use() -> None:
    session = Session("c", "alice", 0)
    held = session.hold(subscription("a")).number
    session.last_number = HIGHEST_NUMBER
    assert held == 1
    assert session.hold(subscription("b")).number == 2


def test_a_session_is_resumable_if_it_expires_later() -> None:
    assert not Session("c", "alice", 0).resumable
    assert Session("c", "alice", 1).resumable


def test_what_is_asleep_keeps_its_number_and_delivers_nothing() -> None:
    session = Session("c", "alice", 0)
    held = subscription("a", "p")
    number = session.hold(held).number
    assert session.purpose_under(number) == ("p",)
    asleep = session.put_to_sleep(held)
    assert asleep == session.dormant["a"]
    assert (asleep.number, asleep.purpose) == (number, "p")
    assert number not in session.by_number
    assert session.purpose_under(number) == ("p",)
    assert session.purpose_under(number + 1) is None
    session.drop("a")
    assert session.purpose_under(number) is None


def test_the_number_of_what_is_asleep_is_given_to_nobody_else() -> None:
    session = Session("c", "alice", 0)
    first = subscription("a", "p")
    number = session.hold(first).number
    session.put_to_sleep(first)
    session.last_number = HIGHEST_NUMBER  # the numbers begin anew
    assert session.hold(subscription("b")).number == number + 1
