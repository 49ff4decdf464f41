"""Decides on subscriptions as wholes: when they are made, and whenever reservations change.

Rules that hold here:
- Filtering on subscribe admits a subscription when no topic of its filter is forbidden to
  it, the hybrid mode when not all are, filtering on publish always.
- With `hybrid_tag`, the hybrid mode marks subscriptions of which no topic is forbidden, so
  that deliveries through them need no check.
- What surrounds a filter is kept as long as a subscription to it is, and in the modes that
  look at it only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.model.topics import covers
from penstock.policy.decision import Decision
from penstock.policy.filters.store import FilterStore, FlatFilters
from penstock.policy.filters.tree import FilterTree
from penstock.policy.purposes.explanations import explain_filter
from penstock.policy.purposes.filter_coverage import Surroundings, Tally
from penstock.policy.purposes.purpose_effects import Stances
from penstock.policy.purposes.reservations import Reservations
from penstock.policy.purposes.settings import Mode, PurposeSettings
from penstock.policy.purposes.subscriptions import Subscription


class Admissions:
    """The surroundings of all subscriptions that the mode has to watch."""

    __slots__ = ("_reservations", "_settings", "_surroundings")

    def __init__(self, reservations: Reservations) -> None:
        self._reservations = reservations
        self._settings = PurposeSettings()
        self._surroundings: FilterStore[Surroundings] = FilterTree()

    def configure(
        self, settings: PurposeSettings, subscriptions: Iterable[Subscription]
    ) -> list[Subscription]:
        """Judge all subscriptions under these settings and the present reservations.

        Return those that were active and are paused now, or the other way round.
        """
        self._settings = settings
        self._surroundings = FilterTree() if settings.use_tree_store else FlatFilters()
        turned = []
        for subscription in subscriptions:
            was_active = subscription.active
            self.join(subscription, self._look_around(subscription.filter))
            if subscription.active != was_active:
                turned.append(subscription)
        return turned

    def admit(self, filter_: str, ap: str | None) -> tuple[Decision, Surroundings | None]:
        """Decide on a new subscription; return what surrounds it, for `join`."""
        mode = self._settings.mode
        if mode is Mode.ON_SUBSCRIBE and self._surroundings.get(filter_) is None:
            around = Surroundings.survey_unless(filter_, self._reservations, ap, self._refuses)
            allowed = around is not None
        else:
            around = self._look_around(filter_)
            allowed = around is None or not self._refuses(around.tally(ap))
        decision = explain_filter(
            self._reservations,
            filter_,
            ap,
            mode,
            allowed=allowed,
            allow_unreserved=self._settings.allow_without_reservation,
        )
        return decision, around

    def join(self, subscription: Subscription, around: Surroundings | None) -> None:
        """Take a subscription in, active or paused as it deserves."""
        if around is None:
            subscription.active, subscription.whole = True, False
            return
        around.join(subscription)
        self._surroundings.set(around.filter, around)
        tally = around.tally(subscription.ap)
        subscription.active, subscription.whole = not self._refuses(tally), self._tags(tally)

    def leave(self, subscription: Subscription) -> None:
        """Take a subscription out."""
        around = self._surroundings.get(subscription.filter)
        if around is not None:
            around.leave(subscription)
            if not around.members:
                self._surroundings.remove(subscription.filter)

    def change(self, filter_: str, old: Stances | None, new: Stances | None) -> list[Subscription]:
        """Work in that a reservation changed; return the subscriptions that turned."""
        turned: list[Subscription] = []
        for around in list(self._surroundings.overlapping_values(filter_)):
            around.change(old, new, covers=covers(filter_, around.filter))
            turned += self._settle(around)
        return turned

    def _settle(self, around: Surroundings) -> Iterator[Subscription]:
        for ap, members in around.members.items():
            tally = around.tally(ap)
            active, whole = not self._refuses(tally), self._tags(tally)
            one = next(iter(members))
            # Members with one purpose stand together, so that one speaks for all.
            if one.active == active and one.whole == whole:
                continue
            for member in members:
                member.whole = whole
                if member.active != active:
                    member.active = active
                    yield member

    def _look_around(self, filter_: str) -> Surroundings | None:
        """Return what surrounds a filter; None in the mode that does not look."""
        if self._settings.mode is Mode.ON_PUBLISH:
            return None
        known = self._surroundings.get(filter_)
        return known or Surroundings.survey(filter_, self._reservations)

    def _refuses(self, tally: Tally) -> bool:
        allow_unreserved = self._settings.allow_without_reservation
        if self._settings.mode is Mode.ON_SUBSCRIBE:
            return not tally.whole(allow_unreserved=allow_unreserved)
        return tally.hopeless(allow_unreserved=allow_unreserved)

    def _tags(self, tally: Tally) -> bool:
        settings = self._settings
        return (
            settings.hybrid_tag
            and settings.mode is Mode.HYBRID
            and tally.whole(allow_unreserved=settings.allow_without_reservation)
        )
