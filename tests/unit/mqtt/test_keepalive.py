import math

from penstock.mqtt import KeepAlive


def test_a_server_waits_one_and_a_half_intervals() -> None:
    keep_alive = KeepAlive(60, now=1_000.0)
    assert keep_alive.lost_at() == 1_090.0
    keep_alive.heard = 1_050.0
    assert keep_alive.lost_at() == 1_140.0


def test_zero_turns_keep_alive_off() -> None:
    keep_alive = KeepAlive(0, now=5.0)
    assert keep_alive.lost_at() == math.inf
    assert keep_alive.ping_at() == math.inf
    assert keep_alive.unanswered_at() == math.inf


def test_a_client_speaks_in_every_interval() -> None:
    keep_alive = KeepAlive(10, now=0.0)
    assert keep_alive.ping_at() == 10.0
    keep_alive.spoke = 4.0
    assert keep_alive.ping_at() == 14.0


def test_a_client_waits_half_an_interval_for_the_answer() -> None:
    keep_alive = KeepAlive(10, now=0.0)
    keep_alive.ping(9.0)
    assert keep_alive.ping_at() == math.inf
    assert keep_alive.unanswered_at() == 14.0
    keep_alive.pong(10.0)
    assert keep_alive.unanswered_at() == math.inf
    assert (keep_alive.heard, keep_alive.ping_at()) == (10.0, 19.0)
