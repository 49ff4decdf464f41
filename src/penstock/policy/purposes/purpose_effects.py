"""Compiled purpose sets: how a set stands to each access purpose, remembered once asked.

Rules that hold here:
- A effect depends on the set and the access purpose alone, so what is remembered is never
  stale. What has to be forgotten when reservations change is which sets apply to a topic.
- A million reservations for the same purposes share one object. Equal sets may still have
  two, when the pool was emptied in between: nothing may depend on there being one.
- Everything remembered is bounded; beyond the bound it is worked out again.
- Where each of a million reservations has a set of its own, that set is kept as two tuples:
  a frozenset of one purpose takes four times as much. Sets are built when they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.purposes import ALLOWS, SILENT, PurposeSet

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
