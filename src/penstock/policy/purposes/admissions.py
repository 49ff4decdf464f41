"""Decides on subscriptions as wholes: when they are made, and whenever reservations change.

Rules that hold here:
- Filtering on subscribe admits a subscription when no topic of its filter is forbidden to
  it, the hybrid mode when the combined purposes of its filter allow it (with `hybrid_partial`:
  when not all topics are forbidden), filtering on publish always.
- With `hybrid_tag`, the hybrid mode marks subscriptions of which no topic is forbidden, so
  that deliveries through them need no check.
- The coverage of a filter is kept as long as a subscription to it is, in the modes that need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.model.topics import covers
from penstock.policy.decision import Explanation
from penstock.policy.filters.store import FilterStore, FlatFilters
from penstock.policy.filters.tree import FilterTree
from penstock.policy.purposes.explanations import explain_filter
from penstock.policy.purposes.filter_coverage import EffectCounts, FilterCoverage
from penstock.policy.purposes.reservations import PurposeEffects, Reservations
from penstock.policy.purposes.settings import Mode, PurposeSettings
from penstock.policy.purposes.subscriptions import Subscription


class Admissions:
    """The coverage of all subscriptions that the mode has to watch."""

    __slots__ = ("_coverage", "_reservations", "_settings")

    def __init__(self, reservations: Reservations) -> None:
        self._reservations = reservations
        self._settings = PurposeSettings()
        self._coverage: FilterStore[FilterCoverage] = FilterTree()

    def configure(
        self, settings: PurposeSettings, subscriptions: Iterable[Subscription]
    ) -> list[Subscription]:
        """Judge all subscriptions under these settings and the present reservations.

        Return those that were active and are paused now, or the other way round.
        """
        self._settings = settings
        self._coverage = FilterTree() if settings.use_tree_store else FlatFilters()
        turned = []
        for subscription in subscriptions:
            was_active = subscription.active
            self.join(subscription, self._find_coverage(subscription.filter))
            if subscription.active != was_active:
                turned.append(subscription)
        return turned

    def admit(self, filter_: str, ap: str | None) -> tuple[Explanation, FilterCoverage | None]:
        """Decide on a new subscription; return its coverage, for `join`."""
        mode = self._settings.mode
        if mode is Mode.ON_SUBSCRIBE and self._coverage.get(filter_) is None:
            coverage = FilterCoverage.collect_unless(filter_, self._reservations, ap, self._refuses)
            allowed = coverage is not None
        else:
            coverage = self._find_coverage(filter_)
            allowed = coverage is None or not self._refuses(coverage.effects_on(ap))
        decision = explain_filter(
            self._reservations,
            filter_,
            ap,
            self._settings,
            allowed=allowed,
        )
        return decision, coverage

    def join(self, subscription: Subscription, coverage: FilterCoverage | None) -> None:
        """Take a subscription in, active or paused as it deserves."""
        if coverage is None:
            subscription.active, subscription.whole = True, False
            return
        coverage.join(subscription)
        self._coverage.set(coverage.filter, coverage)
        counts = coverage.effects_on(subscription.ap)
        subscription.active, subscription.whole = not self._refuses(counts), self._tags(counts)

    def leave(self, subscription: Subscription) -> None:
        """Take a subscription out."""
        coverage = self._coverage.get(subscription.filter)
        if coverage is not None:
            coverage.leave(subscription)
            if not coverage.members:
                self._coverage.remove(subscription.filter)

    def change(
        self, filter_: str, old: PurposeEffects | None, new: PurposeEffects | None
    ) -> list[Subscription]:
        """Work in that a reservation changed; return the subscriptions that turned."""
        turned: list[Subscription] = []
        for coverage in list(self._coverage.overlapping_values(filter_)):
            coverage.change(old, new, covers=covers(filter_, coverage.filter))
            turned += self._settle(coverage)
        return turned

    def _settle(self, coverage: FilterCoverage) -> Iterator[Subscription]:
        for ap, members in coverage.members.items():
            counts = coverage.effects_on(ap)
            active, whole = not self._refuses(counts), self._tags(counts)
            one = next(iter(members))
            # Members with one purpose stand together, so that one speaks for all.
            if one.active == active and one.whole == whole:
                continue
            for member in members:
                member.whole = whole
                if member.active != active:
                    member.active = active
                    yield member

    def _find_coverage(self, filter_: str) -> FilterCoverage | None:
        """Return the coverage of a filter; None in the mode that needs none."""
        if self._settings.mode is Mode.ON_PUBLISH:
            return None
        known = self._coverage.get(filter_)
        return known or FilterCoverage.collect(filter_, self._reservations)

    def _refuses(self, counts: EffectCounts) -> bool:
        settings = self._settings
        allow_unreserved = settings.allow_without_reservation
        if settings.mode is Mode.ON_SUBSCRIBE:
            return not counts.whole(allow_unreserved=allow_unreserved)
        if settings.hybrid_partial:
            return counts.hopeless(allow_unreserved=allow_unreserved)
        return not counts.combined(allow_unreserved=allow_unreserved)

    def _tags(self, counts: EffectCounts) -> bool:
        settings = self._settings
        return (
            settings.hybrid_tag
            and settings.mode is Mode.HYBRID
            and counts.whole(allow_unreserved=settings.allow_without_reservation)
        )
