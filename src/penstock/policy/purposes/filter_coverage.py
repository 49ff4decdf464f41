"""What surrounds a subscribed filter: the reservations that decide on it as a whole.

A reservation that covers the filter applies to all its topics; one that merely overlaps it
applies to some. From how these stand to an access purpose two answers follow:

- `whole`: no topic of the filter is forbidden. What filtering on subscribe asks for. The
  union of the covering reservations must allow the purpose (without any: the default
  holds), and so must each partial one, taken at its word. A partial one with prohibitions
  only adds these to what the covering ones allow; without covering ones it allows nobody.
- `hopeless`: every topic of the filter is forbidden. What the hybrid mode refuses.

Rules that hold here:
- Both answers err on the safe side: `whole` never holds where a topic is forbidden,
  `hopeless` never where one is allowed.
- Reservations are counted by distinct set, and per access purpose by stance, so that a
  change is worked in without looking at the other reservations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from penstock.model.purposes import ALLOWS, PROHIBITS
from penstock.policy.purposes.purpose_effects import Stances
from penstock.policy.purposes.reservations import Reservations
from penstock.policy.purposes.subscriptions import Subscription


class Tally:
    """How the surrounding reservations stand to one access purpose, counted."""

    __slots__ = ("_ap", "adding", "allowing", "covered", "forbidding", "hindering", "offering")

    def __init__(self, ap: str | None) -> None:
        self._ap = ap
        self.covered = 0  # covering reservations
        self.allowing = 0  # of these, those that allow
        self.forbidding = 0  # of these, those that prohibit
        self.offering = 0  # partial reservations that allow
        self.hindering = 0  # partial ones that do not
        self.adding = 0  # of these, those with prohibitions only, which do not prohibit it

    def count(self, stances: Stances, number: int, *, covers: bool) -> None:
        """Count reservations with this set; a negative number takes them out."""
        stance = stances[self._ap]
        if covers:
            self.covered += number
            self.allowing += number * (stance == ALLOWS)
            self.forbidding += number * (stance == PROHIBITS)
        else:
            self.offering += number * (stance == ALLOWS)
            self.hindering += number * (stance != ALLOWS)
            self.adding += number * (stance == 0 and stances.prohibits_only)

    def whole(self, *, allow_unreserved: bool) -> bool:
        """Tell that no topic of the filter is forbidden."""
        if not self.covered:
            return allow_unreserved and not self.hindering
        return self.allowing > 0 and not self.forbidding and self.hindering == self.adding

    def hopeless(self, *, allow_unreserved: bool) -> bool:
        """Tell that every topic of the filter is forbidden."""
        if self.forbidding:
            return True
        if self.allowing or self.offering:
            return False
        return bool(self.covered) or not allow_unreserved


class Surroundings:
    """The reservations around one filter, and the subscriptions that look to them."""

    __slots__ = ("_covering", "_partial", "_tallies", "filter", "members")

    def __init__(self, filter_: str) -> None:
        self.filter = filter_
        self.members: dict[str | None, dict[Subscription, None]] = {}
        self._covering: Counter[Stances] = Counter()
        self._partial: Counter[Stances] = Counter()
        self._tallies: dict[str | None, Tally] = {}

    @classmethod
    def survey(cls, filter_: str, reservations: Reservations) -> Surroundings:
        """Look at all reservations around a filter."""
        made = cls(filter_)
        made._covering.update(reservations.covering(filter_))
        made._partial.update(reservations.overlapping(filter_))
        made._partial -= made._covering  # covering ones overlap, too
        return made

    @classmethod
    def survey_unless(
        cls,
        filter_: str,
        reservations: Reservations,
        ap: str | None,
        refuses: Callable[[Tally], bool],
    ) -> Surroundings | None:
        """Look at the reservations around a filter until their tally is refused.

        A tally that is not `whole` never becomes so with more partial reservations. That
        keeps the refusal of a wide filter from looking at a million of them.
        """
        made = cls(filter_)
        made._covering.update(reservations.covering(filter_))
        tally = made.tally(ap)
        if refuses(tally):
            return None
        counts: Counter[Stances] = Counter()
        counts.subtract(made._covering)
        for stances in reservations.overlapping(filter_):
            counts[stances] += 1
            if counts[stances] == 1:
                tally.count(stances, 1, covers=False)
                if refuses(tally):
                    return None
        made._partial = +counts
        return made

    def tally(self, ap: str | None) -> Tally:
        """Return how the reservations stand to an access purpose."""
        tally = self._tallies.get(ap)
        if tally is None:
            tally = Tally(ap)
            for covers, counts in ((True, self._covering), (False, self._partial)):
                for stances, number in counts.items():
                    tally.count(stances, number, covers=covers)
        return tally

    def change(self, old: Stances | None, new: Stances | None, *, covers: bool) -> None:
        """Work in that one reservation around the filter changed."""
        counts = self._covering if covers else self._partial
        for stances, number in ((old, -1), (new, 1)):
            if stances is None:
                continue
            counts[stances] += number
            if not counts[stances]:
                del counts[stances]
            for tally in self._tallies.values():
                tally.count(stances, number, covers=covers)

    def join(self, subscription: Subscription) -> None:
        """Add a subscription to this filter; its purpose is tallied from now on."""
        ap = subscription.ap
        self._tallies[ap] = self.tally(ap)
        self.members.setdefault(ap, {})[subscription] = None

    def leave(self, subscription: Subscription) -> None:
        """Take a subscription out, and the tally that only it asked for."""
        ap = subscription.ap
        del self.members[ap][subscription]
        if not self.members[ap]:
            del self.members[ap]
            del self._tallies[ap]
