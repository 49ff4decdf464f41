"""Purposes: paths in a hierarchy, sets of them, and when an access purpose is compatible.

Rules that hold here:
- A purpose is a path such as `marketing/individualized`; its ancestors are its prefixes.
- A purpose set has allowed (AIP) and prohibited (PIP) intended purposes. An access purpose
  (AP) is compatible with it when the AP or an ancestor is allowed and neither the AP nor an
  ancestor is prohibited. Without an AP nothing is compatible.
- Written `{aip,…|pip,…}`: `{}` is no set at all, `{|}` allows nobody, `{|x}` has
  prohibitions only.
- Purposes are compared as written. The characters `{ } | , + #`, control characters and
  blanks at either end are refused, so that each set has one way to be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.errors import PenstockError, quote

PURPOSE_LIMIT = 255
SET_LIMIT = 1_000

PROHIBITS: Final = -1
SILENT: Final = 0
ALLOWS: Final = 1

_RESERVED = frozenset("{}|,+#")


class PurposeError(PenstockError):
    """A purpose or a set of purposes is not well formed."""


def check_purpose(text: str) -> str:
    """Return the text if it is a purpose."""
    if not text:
        raise PurposeError("purpose '' is empty", fix="name a purpose such as billing/invoices")
    if len(text) > PURPOSE_LIMIT:
        raise PurposeError(
            f"purpose {quote(text)} has {len(text)} characters",
            fix=f"use at most {PURPOSE_LIMIT}",
        )
    wrong = next((c for c in text if c in _RESERVED or not c.isprintable()), None)
    if wrong is not None:
        raise PurposeError(
            f"purpose {quote(text)} contains {quote(wrong)}",
            fix="leave out { } | , + # and control characters",
        )
    if text != text.strip():
        raise PurposeError(
            f"purpose {quote(text)} begins or ends with a blank", fix="write it without the blank"
        )
    if "" in text.split("/"):
        raise PurposeError(
            f"purpose {quote(text)} has an empty level", fix="put exactly one '/' between levels"
        )
    return text


def lineage(purpose: str) -> tuple[str, ...]:
    """Return the purpose and its ancestors, nearest first."""
    line = [purpose]
    end = purpose.rfind("/")
    while end >= 0:
        line.append(purpose[:end])
        end = purpose.rfind("/", 0, end)
    return tuple(line)


def is_related(one: str, other: str) -> bool:
    """Say whether two purposes are the same, or one comprises the other."""
    return one in lineage(other) or other in lineage(one)


@dataclass(frozen=True, slots=True)
class PurposeSet:
    """Allowed and prohibited intended purposes."""

    aip: frozenset[str] = frozenset()
    pip: frozenset[str] = frozenset()

    @classmethod
    def of(cls, aip: Iterable[str] = (), pip: Iterable[str] = ()) -> PurposeSet:
        """Build a set from purposes that come from outside: each is checked."""
        made = cls(frozenset(map(check_purpose, aip)), frozenset(map(check_purpose, pip)))
        if len(made.aip) + len(made.pip) > SET_LIMIT:
            raise PurposeError(
                f"a set of {len(made.aip) + len(made.pip)} purposes is too large",
                fix=f"name at most {SET_LIMIT}; an ancestor stands for all purposes below it",
            )
        return made

    def __str__(self) -> str:
        allowed = ",".join(sorted(self.aip))
        prohibited = ",".join(sorted(self.pip))
        # An empty set must not look like `{}`, which removes a reservation.
        divider = "|" if self.pip or not self.aip else ""
        return f"{{{allowed}{divider}{prohibited}}}"

    @property
    def prohibits_only(self) -> bool:
        """Tell whether this set says nothing but what is prohibited (`{|x}`)."""
        return bool(self.pip) and not self.aip

    def effect(self, ap: str | None) -> int:
        """Say how this set stands to an access purpose: PROHIBITS, SILENT or ALLOWS."""
        if ap is None:
            return SILENT
        line = lineage(ap)
        if not self.pip.isdisjoint(line):
            return PROHIBITS
        return SILENT if self.aip.isdisjoint(line) else ALLOWS

    def compatible(self, ap: str | None) -> bool:
        """Tell whether data under this set may be used for the access purpose."""
        return self.effect(ap) == ALLOWS

    def admits(self, ap: str | None) -> bool:
        """Tell whether a message that carries this set itself may be used for the purpose.

        What a message carries narrows what its topic allows. Prohibitions alone take away
        and require nothing else; a subscription without purpose gets no such message.
        """
        effect = self.effect(ap)
        return effect == ALLOWS or (effect == SILENT and ap is not None and self.prohibits_only)

    def narrow(self, other: PurposeSet) -> PurposeSet:
        """Join two sets that a message carries: it admits what both admit, and no more."""
        pip = self.pip | other.pip
        if self.prohibits_only:
            aip = other.aip
        elif other.prohibits_only:
            aip = self.aip
        else:
            aip = frozenset(
                purpose
                for mine, theirs in ((self.aip, other.aip), (other.aip, self.aip))
                for purpose in mine
                if not theirs.isdisjoint(lineage(purpose))
            )
        if not aip and not (self.prohibits_only and other.prohibits_only):
            # Nothing is left: `{|}`, for prohibitions alone would admit the rest.
            return PurposeSet()
        return PurposeSet(aip, pip)

    def union(self, other: PurposeSet) -> PurposeSet:
        """Combine two sets that apply to the same topic."""
        return PurposeSet(self.aip | other.aip, self.pip | other.pip)


def read_purposes(inside: str, *, divider: str = "|", separator: str = ",") -> PurposeSet | None:
    """Read what stands between the braces; nothing at all gives None."""
    if not inside:
        return None
    allowed, _, prohibited = inside.partition(divider)
    if divider in prohibited:
        raise PurposeError(
            f"purposes {quote(inside)} have more than one {quote(divider)}",
            fix="separate allowed from prohibited purposes once",
        )
    return PurposeSet.of(
        allowed.split(separator) if allowed else (),
        prohibited.split(separator) if prohibited else (),
    )
