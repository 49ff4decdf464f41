"""Reservations: the purposes that a topic is reserved for, compiled, and the decision that follows.

Rules that hold here:
- How a purpose set stands to an access purpose, its effect, depends on the two alone, so what is
  remembered is never stale. What has to be forgotten when reservations change is which sets
  apply to a topic.
- A million reservations for the same purposes share one object. Equal sets may still have
  two, when the pool was emptied in between: nothing may depend on there being one.
- Everything remembered is bounded; beyond the bound it is worked out again.
- Where each of a million reservations has a set of its own, that set is kept as two tuples:
  a frozenset of one purpose takes four times as much. Sets are built when they are asked for.
- The effective purposes of a topic are the union of the allowed and the union of the
  prohibited purposes of all reservations whose filter matches it.
- Reserving a filter again overwrites; reserving it with None removes the reservation.
- Store (flat or tree) and cache change the work, never an answer. A change forgets the
  cached topics that the changed filter matches, and no others.
- `decide` is the hot path: cached it is two dictionary lookups, uncached one walk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from penstock.model.purposes import ALLOWS, SILENT, PurposeSet
from penstock.model.topics import decode_topic
from penstock.policy.filter_store import FilterStore, FlatFilters, TopicCache
from penstock.policy.filter_tree import FilterTree

_EFFECTS_LIMIT = 4_096
_SETS_LIMIT = 16_384
_COMBINATIONS_LIMIT = 16_384

Purposes = tuple[str, ...]


class PurposeEffects(dict[str | None, int]):
    """PROHIBITS, SILENT or ALLOWS by access purpose; `effects[ap]` is all it takes."""

    __slots__ = ("aip", "pip")

    def __init__(self, aip: Purposes, pip: Purposes) -> None:
        super().__init__()
        self.aip = aip
        self.pip = pip

    @property
    def purposes(self) -> PurposeSet:
        """The set that stands so."""
        return PurposeSet(frozenset(self.aip), frozenset(self.pip))

    @property
    def prohibits_only(self) -> bool:
        """Tell whether the set says nothing but what is prohibited."""
        return bool(self.pip) and not self.aip

    def __missing__(self, ap: str | None) -> int:
        if len(self) >= _EFFECTS_LIMIT:
            self.clear()
        effect = self[ap] = self.purposes.effect(ap)
        return effect

    # Two of them are the same when they are one: what each remembers says nothing.
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__  # type: ignore[assignment]


class Unreserved(PurposeEffects):
    """The effect where no reservation applies: the same for everybody."""

    __slots__ = ("effect",)

    def __init__(self, *, allowed: bool) -> None:
        super().__init__((), ())
        self.effect = ALLOWS if allowed else SILENT

    def __missing__(self, ap: str | None) -> int:
        return self.effect


class EffectPool:
    """Gives the same object for the same set, and for the same combination of sets."""

    __slots__ = ("_combinations", "_sets")

    def __init__(self) -> None:
        self._sets: dict[tuple[Purposes, Purposes], PurposeEffects] = {}
        # A combination is named by the ids of its parts, which it keeps alive.
        self._combinations: dict[
            tuple[int, ...], tuple[Sequence[PurposeEffects], PurposeEffects]
        ] = {}

    def of(self, purposes: PurposeSet) -> PurposeEffects:
        """Return the effects of a set."""
        key = (tuple(sorted(purposes.aip)), tuple(sorted(purposes.pip)))
        effects = self._sets.get(key)
        if effects is None:
            if len(self._sets) >= _SETS_LIMIT:
                self._sets.clear()
            effects = self._sets[key] = PurposeEffects(*key)
        return effects

    def combine(self, parts: Sequence[PurposeEffects]) -> PurposeEffects:
        """Return the effects of the union of one or more sets."""
        if len(parts) == 1:
            return parts[0]
        key = tuple(map(id, parts))
        known = self._combinations.get(key)
        if known is not None:
            return known[1]
        purposes = PurposeSet(
            frozenset().union(*(part.aip for part in parts)),
            frozenset().union(*(part.pip for part in parts)),
        )
        if len(self._combinations) >= _COMBINATIONS_LIMIT:
            self._combinations.clear()
        combined = self.of(purposes)
        self._combinations[key] = (tuple(parts), combined)
        return combined


CACHE_LIMIT = 65_536


class Reservations:
    """All reservations of a gateway.

    `tree` and `cached` choose the store; `allow_unreserved` says whether topics without a
    reservation are open to everybody.
    """

    decide: Callable[[str | bytes, str | None], bool]

    def __init__(
        self,
        *,
        tree: bool = True,
        cached: bool = True,
        allow_unreserved: bool = True,
        cache_limit: int = CACHE_LIMIT,
    ) -> None:
        self._pool = EffectPool()
        self._cache_limit = cache_limit
        self._tree = tree
        self._store: FilterStore[PurposeEffects] = _make_store(tree=tree)
        self.configure(tree=tree, cached=cached, allow_unreserved=allow_unreserved)

    def configure(self, *, tree: bool, cached: bool, allow_unreserved: bool) -> None:
        """Change the store, the cache and what holds where nothing is reserved."""
        self._unreserved = Unreserved(allowed=allow_unreserved)
        if tree != self._tree:
            held = list(self._store.items())
            self._tree = tree
            self._store = _make_store(tree=tree)
            for filter_, effects in held:
                self._store.set(filter_, effects)
        self._cache = TopicCache(self._work_out, self._cache_limit) if cached else None
        self.decide = self._decide_by_cache(self._cache) if self._cache is not None else self._walk

    @property
    def allow_unreserved(self) -> bool:
        """Whether topics without a reservation are open to everybody."""
        return self._unreserved[None] > 0

    def __len__(self) -> int:
        return len(self._store)

    def items(self) -> Iterator[tuple[str, PurposeSet]]:
        """Yield all reservations."""
        return ((filter_, effects.purposes) for filter_, effects in self._store.items())

    def get(self, filter_: str) -> PurposeSet | None:
        """Return the reservation of exactly this filter."""
        held = self._store.get(filter_)
        return held.purposes if held is not None else None

    def reserve(
        self, filter_: str, purposes: PurposeSet | None
    ) -> tuple[PurposeEffects | None, PurposeEffects | None]:
        """Set or, with None, remove a reservation; return what was there and what is."""
        new = self._pool.of(purposes) if purposes is not None else None
        old = self._store.remove(filter_) if new is None else self._store.set(filter_, new)
        if old is not new and self._cache is not None:
            self._cache.forget(filter_)
        return old, new

    def replace_all(self, reservations: Iterable[tuple[str, PurposeSet]]) -> None:
        """Put these in place of all there are."""
        self._store.clear()
        for filter_, purposes in reservations:
            self._store.set(filter_, self._pool.of(purposes))
        if self._cache is not None:
            self._cache.forget_all()

    def effective(self, topic: str) -> PurposeSet | None:
        """Return the effective purposes of a topic, None where nothing is reserved."""
        parts = self._store.matching(topic)
        return self._pool.combine(parts).purposes if parts else None

    def affected(self, filter_: str) -> Iterator[tuple[str, PurposeSet]]:
        """Yield the reservations that apply to some topic of the filter.

        For a topic these are the ones that contribute to its effective purposes.
        """
        found = self._store.overlapping(filter_)
        return ((there, effects.purposes) for there, effects in found)

    def covering(self, filter_: str) -> list[PurposeEffects]:
        """Return the effects of the reservations that apply to every topic of the filter."""
        return self._store.covering(filter_)

    def overlapping(self, filter_: str) -> Iterator[PurposeEffects]:
        """Yield the effects of the reservations that apply to some topic of the filter."""
        return self._store.overlapping_values(filter_)

    def _work_out(self, topic: str) -> PurposeEffects:
        parts = self._store.matching(topic)
        return self._pool.combine(parts) if parts else self._unreserved

    @staticmethod
    def _decide_by_cache(
        cache: TopicCache[PurposeEffects],
    ) -> Callable[[str | bytes, str | None], bool]:
        # A closure, because looking the cache up on self would cost as much as the decision.
        def decide(topic: str | bytes, ap: str | None) -> bool:
            return cache[topic][ap] > 0

        return decide

    def _walk(self, topic: str | bytes, ap: str | None) -> bool:
        """Decide without a cache: no union is built, each set is asked for itself."""
        if isinstance(topic, bytes):
            topic = decode_topic(topic)
        parts = self._store.matching(topic)
        if not parts:
            return self._unreserved[ap] > 0
        allowed = False
        for effects in parts:
            effect = effects[ap]
            if effect < 0:
                return False
            if effect:
                allowed = True
        return allowed


def _make_store(*, tree: bool) -> FilterStore[PurposeEffects]:
    return FilterTree[PurposeEffects](share=True) if tree else FlatFilters[PurposeEffects]()
