"""Which purposes there are, who may claim which, and who may give purpose commands.

Rules that hold here:
- As long as no purpose is declared, every purpose may be used. From the first declaration
  on a subscription is made for a declared one, or for none.
- That holds for what clients have subscribed to before, too: a purpose that nobody has
  declared, or that is no longer declared, lets nothing pass.
- A right to a purpose is a right to all purposes below it, and to none above it: who may
  claim `care` may claim `care/nursing`, and who may claim `care/nursing` not `care`.
- Nobody may claim what is not given to them. In open mode everybody may claim everything.
- Who they are is said by their subjects: `user:NAME`, `client:ID`, `group:NAME`, `anyone`.
- Whether a right is asked for at all is a setting (`claims_need_right`): the authorizer
  looks at it before it asks here.
- A right to a filter is a right to every filter it covers, and to no other: who may reserve
  `a/+` may not reserve `a/#`. A leading wildcard gives no right to `$…`.
- Nobody has a right that is not given. The open mode gives all of them to everybody; it is
  for trials.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.errors import quote
from penstock.model.document import Key
from penstock.model.kinds import Purpose
from penstock.model.purposes import lineage
from penstock.model.topics import check_filter, covers, parse_subscribed
from penstock.policy.decision import Considered, Explanation, Part, list_considered
from penstock.policy.purposes.commands import (
    Advertise,
    Command,
    DefineType,
    Presubscribe,
    Reserve,
    ShowAffected,
    ShowCombined,
)
from penstock.policy.purposes.type_definitions import TypeGrant

UNDECLARED = "declared purposes"
_COMPARED = 1_000


class DeclaredPurposes:
    """The names of the purposes of the present epoch."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        # A dict, because it keeps its order: the first ones are those compared.
        self._names: dict[str, None] = {}

    def take(self, documents: Container[Key], changed: Iterable[Key]) -> None:
        """Take over a set of definitions of which these may differ from what was known."""
        for key in changed:
            if key.kind != Purpose.kind:
                continue
            if key in documents:
                self._names[key.name] = None
            else:
                self._names.pop(key.name, None)

    def admits(self, purpose: str | None) -> bool:
        """Tell whether an access purpose may be used."""
        return purpose is None or not self._names or purpose in self._names

    def object_to(self, purpose: str | None) -> str:
        """Say what is wrong with an access purpose; nothing where it may be used."""
        if purpose is None or self.admits(purpose):
            return ""
        near = self.nearest(purpose)
        fix = f"did you mean {near!r}?" if near else "declare it, or use one that is declared"
        return f"there is no purpose {quote(purpose)} → {fix}"

    def nearest(self, purpose: str) -> str | None:
        """Return the declared purpose that a misspelt one may mean."""
        # Comparing takes long for many names, and anybody may ask.
        some = [name for name, _ in zip(self._names, range(_COMPARED), strict=False)]
        return next(iter(difflib.get_close_matches(purpose, some, n=1)), None)


UNCLAIMED: Final = "right to claim"
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
            UNCLAIMED,
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


@dataclass(frozen=True, slots=True)
class CommandRights:
    """What a principal may command."""

    reserve: tuple[str, ...] = ()
    presubscribe: tuple[str, ...] = ()
    administer: bool = False
    everything: bool = False
    advertise: tuple[str, ...] = ()
    define: tuple[TypeGrant, ...] = ()

    def __post_init__(self) -> None:
        below = (it for grant in self.define for it in grant.below)
        for filter_ in (*self.reserve, *self.presubscribe, *self.advertise, *below):
            check_filter(filter_)

    @property
    def may_ask(self) -> bool:
        """Whether there are questions that a principal with these rights may ask."""
        return self.everything or self.administer or bool(self.reserve)

    def may(self, command: Command) -> Explanation:
        """Decide whether a principal with these rights may give a command."""
        if self.everything:
            return Explanation(allowed=True, rule="open mode", reason="everybody may do everything")
        match command:
            case Reserve(filter=reserved):
                told = _decide("reserve", self.reserve, reserved)
            case Advertise(filter=advertised):
                told = _decide("advertise", self.advertise, advertised)
            case DefineType():
                told = _decide_type(self.define, command)
            case Presubscribe(filter=text):
                told = _decide("presubscribe", self.presubscribe, parse_subscribed(text).filter)
            case ShowCombined(topic=asked) | ShowAffected(filter=asked) if not self.administer:
                told = _decide("reserve", self.reserve, asked)
            case _:
                may = "may administer" if self.administer else "may not administer"
                told = Explanation(self.administer, "administer", f"the principal {may}")
        return told


OPEN_RIGHTS = CommandRights(everything=True)


def _decide_type(granted: tuple[TypeGrant, ...], command: DefineType) -> Explanation:
    considered = []
    for there in granted:
        admits = there.admits(command.stream, command.filters)
        says = "covers it" if admits else "does not cover"
        considered.append(Considered(f"define {there}", says))
        if admits:
            reason = f"it covers {quote(command.stream)} and its topics"
            return Explanation(True, "define", reason, tuple(considered))  # noqa: FBT003
    reason = f"no right to define covers {quote(command.stream)} and its topics"
    return Explanation(False, "define", reason, tuple(considered))  # noqa: FBT003


def _decide(right: str, granted: tuple[str, ...], filter_: str) -> Explanation:
    considered = tuple(
        Considered(f"{right} {there}", "covers it" if covers(there, filter_) else "does not cover")
        for there in granted
    )
    for there in granted:
        if covers(there, filter_):
            return Explanation(
                True,  # noqa: FBT003
                f"{right} {there}",
                f"it covers {quote(filter_)}",
                considered,
            )
    return Explanation(
        False,  # noqa: FBT003
        right,
        f"no right to {right} covers {quote(filter_)}",
        considered,
    )
