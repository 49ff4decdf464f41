"""Decides on subscriptions as wholes, by how reservations cover their filters.

A reservation that covers the filter applies to all its topics; one that merely overlaps it
applies to some. From their effects on an access purpose three answers follow:

- `whole`: no topic of the filter is forbidden. Filtering on subscribe asks for it. The
  union of the covering reservations must allow the purpose (without any: the default
  holds), and so must each partial one, taken at its word. A partial one with prohibitions
  only adds these to what the covering ones allow; without covering ones it allows nobody.
- `combined`: the union of the covering reservations allows the purpose; without any the default
  holds. The hybrid mode asks for it, as the paper does: what only a part of the filter allows
  is not what the filter allows.
- `hopeless`: every topic of the filter is forbidden. With `hybrid_partial` the hybrid mode refuses
  nothing else.

Rules that hold here:
- `whole` and `hopeless` err on the safe side: `whole` never holds where a topic is forbidden,
  `hopeless` never where one is allowed.
- Reservations are counted by distinct set, and per access purpose by effect, so that a
  change is incremental: it looks at no other reservation.
- Filtering on subscribe admits a subscription when no topic of its filter is forbidden to
  it, the hybrid mode when the combined purposes of its filter allow it (with `hybrid_partial`:
  when not all topics are forbidden), filtering on publish always.
- With `hybrid_tag`, the hybrid mode marks subscriptions of which no topic is forbidden, so
  that deliveries through them need no check.
- The coverage of a filter is kept as long as a subscription to it is, in the modes that need it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from penstock.model.purposes import ALLOWS, PROHIBITS
from penstock.model.topics import covers
from penstock.policy.decision import Explanation
from penstock.policy.filter_store import FilterStore, FlatFilters
from penstock.policy.filter_tree import FilterTree
from penstock.policy.purposes.explanations import explain_filter
from penstock.policy.purposes.reservations import PurposeEffects, Reservations
from penstock.policy.purposes.settings import Mode, PurposeSettings
from penstock.policy.purposes.subscriptions import Subscription


class EffectCounts:
    """The effects of the reservations on one access purpose, counted."""

    __slots__ = ("_ap", "adding", "allowing", "covered", "forbidding", "hindering", "offering")

    def __init__(self, ap: str | None) -> None:
        self._ap = ap
        self.covered = 0  # covering reservations
        self.allowing = 0  # of these, those that allow
        self.forbidding = 0  # of these, those that prohibit
        self.offering = 0  # partial reservations that allow
        self.hindering = 0  # partial ones that do not
        self.adding = 0  # of these, those with prohibitions only, which do not prohibit it

    def count(self, effects: PurposeEffects, number: int, *, covers: bool) -> None:
        """Count reservations with this set; a negative number takes them out."""
        effect = effects[self._ap]
        if covers:
            self.covered += number
            self.allowing += number * (effect == ALLOWS)
            self.forbidding += number * (effect == PROHIBITS)
        else:
            self.offering += number * (effect == ALLOWS)
            self.hindering += number * (effect != ALLOWS)
            self.adding += number * (effect == 0 and effects.prohibits_only)

    def whole(self, *, allow_unreserved: bool) -> bool:
        """Tell that no topic of the filter is forbidden."""
        if not self.covered:
            return allow_unreserved and not self.hindering
        return self.allowing > 0 and not self.forbidding and self.hindering == self.adding

    def combined(self, *, allow_unreserved: bool) -> bool:
        """Tell that what applies to all topics of the filter allows the purpose."""
        if not self.covered:
            return allow_unreserved
        return self.allowing > 0 and not self.forbidding

    def hopeless(self, *, allow_unreserved: bool) -> bool:
        """Tell that every topic of the filter is forbidden."""
        if self.forbidding:
            return True
        if self.allowing or self.offering:
            return False
        return bool(self.covered) or not allow_unreserved


class FilterCoverage:
    """The reservations that cover or overlap one filter, and the subscriptions to it."""

    __slots__ = ("_by_purpose", "_covering", "_partial", "filter", "members")

    def __init__(self, filter_: str) -> None:
        self.filter = filter_
        self.members: dict[str | None, dict[Subscription, None]] = {}
        self._covering: Counter[PurposeEffects] = Counter()
        self._partial: Counter[PurposeEffects] = Counter()
        self._by_purpose: dict[str | None, EffectCounts] = {}

    @classmethod
    def collect(cls, filter_: str, reservations: Reservations) -> FilterCoverage:
        """Look at all reservations that share a topic with a filter."""
        made = cls(filter_)
        made._covering.update(reservations.covering(filter_))
        made._partial.update(reservations.overlapping(filter_))
        made._partial -= made._covering  # covering ones overlap, too
        return made

    @classmethod
    def collect_unless(
        cls,
        filter_: str,
        reservations: Reservations,
        ap: str | None,
        refuses: Callable[[EffectCounts], bool],
    ) -> FilterCoverage | None:
        """Look at the reservations of a filter until their effects are refused.

        Effects that are not `whole` never become so with more partial reservations. That
        keeps the refusal of a wide filter from looking at a million of them.
        """
        made = cls(filter_)
        made._covering.update(reservations.covering(filter_))
        found = made.effects_on(ap)
        if refuses(found):
            return None
        counts: Counter[PurposeEffects] = Counter()
        counts.subtract(made._covering)
        for effects in reservations.overlapping(filter_):
            counts[effects] += 1
            if counts[effects] == 1:
                found.count(effects, 1, covers=False)
                if refuses(found):
                    return None
        made._partial = +counts
        return made

    def effects_on(self, ap: str | None) -> EffectCounts:
        """Return the effects on an access purpose."""
        found = self._by_purpose.get(ap)
        if found is None:
            found = EffectCounts(ap)
            for covers, counts in ((True, self._covering), (False, self._partial)):
                for effects, number in counts.items():
                    found.count(effects, number, covers=covers)
        return found

    def change(
        self, old: PurposeEffects | None, new: PurposeEffects | None, *, covers: bool
    ) -> None:
        """Work in that one reservation of the filter changed."""
        counts = self._covering if covers else self._partial
        for effects, number in ((old, -1), (new, 1)):
            if effects is None:
                continue
            counts[effects] += number
            if not counts[effects]:
                del counts[effects]
            for found in self._by_purpose.values():
                found.count(effects, number, covers=covers)

    def join(self, subscription: Subscription) -> None:
        """Add a subscription to this filter; its purpose is counted from now on."""
        ap = subscription.ap
        self._by_purpose[ap] = self.effects_on(ap)
        self.members.setdefault(ap, {})[subscription] = None

    def leave(self, subscription: Subscription) -> None:
        """Take a subscription out, and the counts that only it asked for."""
        ap = subscription.ap
        del self.members[ap][subscription]
        if not self.members[ap]:
            del self.members[ap]
            del self._by_purpose[ap]


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
        if not len(self._coverage):  # nothing is kept where deliveries are filtered
            return turned
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
