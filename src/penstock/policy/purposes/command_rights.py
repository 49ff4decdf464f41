"""Rights on commands: who may reserve which filter, and who may administer.

Rules that hold here:
- A right to a filter is a right to every filter it covers, and to no other: who may reserve
  `a/+` may not reserve `a/#`. A leading wildcard gives no right to `$…`.
- Nobody has a right that is not given. The open mode gives all of them to everybody; it is
  for trials.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import quote
from penstock.model.topics import check_filter, covers, parse_subscribed
from penstock.policy.decision import Considered, Explanation
from penstock.policy.purposes.commands import (
    Command,
    Presubscribe,
    Reserve,
    ShowAffected,
    ShowCombined,
)


@dataclass(frozen=True, slots=True)
class CommandRights:
    """What a principal may command."""

    reserve: tuple[str, ...] = ()
    presubscribe: tuple[str, ...] = ()
    administer: bool = False
    everything: bool = False

    def __post_init__(self) -> None:
        for filter_ in (*self.reserve, *self.presubscribe):
            check_filter(filter_)

    @property
    def may_ask(self) -> bool:
        """Whether there are questions that a principal with these rights may ask."""
        return self.everything or self.administer or bool(self.reserve)

    def may(self, command: Command) -> Explanation:
        """Decide whether a principal with these rights may give a command."""
        if self.everything:
            return Explanation(allowed=True, rule="open mode", reason="everybody may do everything")
        if isinstance(command, Reserve):
            return _decide("reserve", self.reserve, command.filter)
        if isinstance(command, Presubscribe):
            inner = parse_subscribed(command.filter).filter
            return _decide("presubscribe", self.presubscribe, inner)
        if not self.administer and isinstance(command, ShowCombined | ShowAffected):
            asked = command.topic if isinstance(command, ShowCombined) else command.filter
            return _decide("reserve", self.reserve, asked)
        reason = "the principal " + ("may administer" if self.administer else "may not administer")
        return Explanation(self.administer, "administer", reason)


OPEN_RIGHTS = CommandRights(everything=True)


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
