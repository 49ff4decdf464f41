"""Places of strangers, against rules that are looked up in a plain list."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.limits import Claim, FairPlaces

PATIENCE = 3.0

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.sampled_from("aabc"), st.integers(1, 5)),
        st.tuples(st.just("leave"), st.integers(0, 30), st.none()),
        st.tuples(st.just("later"), st.sampled_from([0.5, 4.0]), st.none()),
    ),
    max_size=60,
)


class Held(list[tuple[int, str, float]]):
    """Who has a place: peer, network, since when; the oldest first."""

    def oldest(self, network: str) -> tuple[int, float]:
        return next((peer, since) for peer, net, since in self if net == network)

    def expect(self, network: str, now: float, total: int, each: int, claim: Claim[int]) -> None:
        """Check what became of a claim."""
        counts = Counter(net for _, net, _ in self)
        held, most = counts[network], max(counts.values(), default=0)
        if held < each and len(self) < total:
            assert claim == (True, None)
            return
        greediest = {net for net, count in counts.items() if count == most}
        if held < each and most > held + 1:
            assert claim.granted
            assert claim.displaced in {self.oldest(net)[0] for net in greediest}
            return
        among = {network} if held else greediest
        if claim.granted:
            assert (claim.displaced, True) in {
                (peer, now - since >= PATIENCE) for peer, since in map(self.oldest, among)
            }
        else:
            assert any(now - self.oldest(net)[1] < PATIENCE for net in among)


@given(STEPS, st.integers(1, 6), st.integers(1, 4))
def test_places_are_shared_as_the_rules_say(
    steps: list[tuple[str, object, int | None]], total: int, each: int
) -> None:
    places: FairPlaces[int] = FairPlaces(total, each, PATIENCE)
    held = Held()
    now, last = 100.0, 0
    for what, argument, room in steps:
        if what == "claim":
            network, last = str(argument), last + 1
            claim = places.claim(network, last, now, room=room)
            held.expect(network, now, min(total, room or total), each, claim)
            if claim.granted:
                held[:] = [it for it in held if it[0] != claim.displaced]
                held.append((last, network, now))
        elif what == "leave":
            places.leave(int(str(argument)))
            held[:] = [it for it in held if it[0] != argument]
        else:
            now += float(str(argument))
        assert len(places) == len(held) <= total
        assert all(peer in places for peer, _, _ in held)
        assert max(Counter(net for _, net, _ in held).values(), default=0) <= each


@given(st.integers(2, 8), st.integers(10, 50))
def test_whoever_takes_everything_keeps_no_other_network_out(total: int, flood: int) -> None:
    places: FairPlaces[str] = FairPlaces(total, total, PATIENCE)
    for number in range(flood):
        places.claim("attacker", f"flood-{number}", 0.0)
    assert places.claim("somebody", "honest", 0.0).granted
    for number in range(flood):
        places.claim("attacker", f"more-{number}", 0.0)
        assert "honest" in places
