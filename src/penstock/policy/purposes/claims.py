"""Claims: who may subscribe for which purposes.

Rules that hold here:
- A right to a purpose is a right to all purposes below it, and to none above it: who may
  claim `care` may claim `care/nursing`, and who may claim `care/nursing` not `care`.
- Nobody may claim what is not given to them. In open mode everybody may claim everything.
- Who they are is said by their subjects: `user:NAME`, `client:ID`, `group:NAME`, `anyone`.
- Whether a right is asked for at all is a setting (`claims_need_right`): the authorizer
  looks at it before it asks here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from penstock.model.purposes import lineage
from penstock.policy.decision import Considered, Explanation, Part, list_considered

RULE: Final = "right to claim"
_NOBODY: Final[Mapping[str, str]] = {}


class Grant(NamedTuple):
    """A purpose that somebody may claim, and the definition that says so."""

    subject: str
    purpose: str
    rule: str


class PurposeClaims:
    """What everybody may claim."""

    __slots__ = ("_claimants", "_open")

    def __init__(self, grants: Iterable[Grant] = (), *, open_mode: bool = False) -> None:
        self._open = open_mode
        self._claimants: dict[str, dict[str, str]] = {}
        for subject, purpose, rule in grants:
            self._claimants.setdefault(purpose, {}).setdefault(subject, rule)

    def admits(self, subjects: Collection[str], purpose: str) -> bool:
        """Tell whether one whom these subjects mean may claim a purpose."""
        claimants = self._claimants
        return self._open or any(
            not claimants.get(it, _NOBODY).keys().isdisjoint(subjects) for it in lineage(purpose)
        )

    def explain(self, subjects: Collection[str], purpose: str) -> Explanation:
        """Say the same, and which rights were looked at."""
        if self._open:
            return Explanation(
                allowed=True, rule="open mode", reason="everybody may claim", part=Part.CLAIMS
            )
        covering = sorted(self._covering(purpose))
        given = [it for it in covering if it.subject in subjects]
        theirs = {it.rule for it in given}
        others = {it.rule for it in covering} - theirs
        considered, more = list_considered(
            [
                *(Considered(rule, f"lets them claim {purpose}") for rule in sorted(theirs)),
                *(Considered(rule, "is for others") for rule in sorted(others)),
            ]
        )
        if given:
            first = given[0]
            reason = f"it lets them claim {first.purpose}"
            return Explanation(
                True,  # noqa: FBT003
                first.rule,
                reason,
                considered,
                more,
                part=Part.CLAIMS,
            )
        reason = f"nothing gives them the right to claim {purpose}"
        return Explanation(
            False,  # noqa: FBT003
            RULE,
            reason,
            considered,
            more,
            part=Part.CLAIMS,
        )

    def covering(self, purposes: Iterable[str]) -> list[Grant]:
        """Return what lets somebody claim one of these purposes, or one below it."""
        wanted = list(purposes)
        below = {
            claimed
            for claimed in self._claimants
            if any(it in lineage(claimed) or claimed in lineage(it) for it in wanted)
        }
        return sorted(
            Grant(subject, purpose, rule)
            for purpose in below
            for subject, rule in self._claimants[purpose].items()
        )

    def _covering(self, purpose: str) -> Iterator[Grant]:
        for it in lineage(purpose):
            for subject, rule in self._claimants.get(it, _NOBODY).items():
                yield Grant(subject, it, rule)
