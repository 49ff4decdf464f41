from __future__ import annotations

from dataclasses import replace

from penstock.config.gateway import GatewaySettings
from penstock.gateway import limits as module
from penstock.gateway.counters import Counters
from penstock.gateway.limits import Arrival, Arrivals, Limits

LIMITS = replace(
    Limits.of(GatewaySettings()),
    connections=8,
    connections_per_address=6,
    unauthenticated=4,
    unauthenticated_per_address=3,
    handshakes=2,
)


class Door:
    """Arrivals with a clock of their own, and who was cut off."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.now = 100.0
        self.cut: list[str] = []
        self.arrivals = Arrivals(limits, Counters(), lambda: self.now)

    def admit(self, address: str, name: str = "", *, tls: bool = False) -> Arrival | None:
        return self.arrivals.admit(address, lambda: self.cut.append(name), tls=tls)

    def let_in(self, address: str) -> Arrival | None:
        arrival = self.admit(address)
        if arrival is not None:
            self.arrivals.connected(arrival)
        return arrival


def test_connections_are_counted_as_a_whole_and_by_address() -> None:
    door = Door(replace(LIMITS, connections=3, connections_per_address=2))
    one, two = door.let_in("1.2.3.4"), door.let_in("1.2.3.4")
    assert one
    assert two
    assert not door.admit("1.2.3.4")
    four = door.let_in("5.6.7.8")
    assert four
    assert not door.admit("5.6.7.8")
    door.arrivals.leave(one)
    door.arrivals.leave(one)
    assert door.let_in("1.2.3.4")
    assert not door.admit("5.6.7.8")
    assert len(door.arrivals) == 3
    door.arrivals.leave(two)
    door.arrivals.leave(four)
    assert door.let_in("5.6.7.8")
    assert door.let_in("5.6.7.8")


def test_who_has_not_authenticated_gives_way_to_other_networks() -> None:
    door = Door()
    for name in "abc":
        assert door.admit("1.1.1.1", name)
    assert not door.admit("1.1.1.1", "d")
    assert door.admit("2.2.2.2", "e")
    assert door.admit("3.3.3.3", "f")
    assert door.cut == ["a"]
    assert door.arrivals.unauthenticated == 4


def test_within_a_network_the_oldest_gives_way_after_its_time() -> None:
    door = Door()
    for name in "abc":
        door.admit("1.1.1.1", name)
    door.now += module.PATIENCE
    assert door.admit("1.1.1.1", "d")
    assert door.cut == ["a"]


def test_unauthenticated_connections_do_not_use_up_those_of_clients() -> None:
    door = Door()
    for number in range(7):
        assert door.let_in(f"9.9.9.{number}")
    assert door.admit("1.1.1.1", "a")
    assert not door.admit("1.1.1.1", "b")
    assert not door.admit("2.2.2.2", "c")
    assert len(door.arrivals) == 8


def test_handshakes_have_a_limit_of_their_own() -> None:
    door = Door()
    first = door.admit("1.1.1.1", "a", tls=True)
    assert first
    assert not door.admit("1.1.1.1", "b", tls=True)
    assert door.admit("2.2.2.2", "c", tls=True)
    assert not door.admit("3.3.3.3", "d", tls=True)
    door.arrivals.secured(first)
    assert door.admit("3.3.3.3", "d", tls=True)
    assert door.admit("4.4.4.4", "e")
    assert len(door.arrivals) == 4


def test_what_strangers_have_sent_is_bounded_in_bytes() -> None:
    door = Door()
    small, large = door.admit("1.1.1.1", "small"), door.admit("2.2.2.2", "large")
    assert small
    assert large
    door.arrivals.hold(large, module.HELD_BYTES)
    door.arrivals.hold(small, 10)
    assert door.cut == ["large"]
    assert door.arrivals.held_bytes == 10
    door.arrivals.hold(small, 0)
    assert door.arrivals.held_bytes == 0


def test_a_host_of_ipv6_is_one_address_whatever_it_chooses() -> None:
    door = Door(replace(LIMITS, connections_per_address=2))
    assert door.let_in("2001:db8::1")
    assert door.let_in("2001:db8::2:3")
    assert not door.admit("2001:db8::ffff")
    assert door.let_in("2001:db8:0:1::1")
    assert door.let_in("::ffff:1.2.3.4")
    assert door.let_in("1.2.3.4")
    assert not door.admit("1.2.3.4")
