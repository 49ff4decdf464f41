"""The broker's own topics, which begin with `$`: who may read them, and who may write there.

`$SYS/#` tells how many clients there are and what they do, `$CONTROL/#` commands a broker. Clients
reach the broker as the gateway does, so the broker cannot tell them apart.

Rules that hold here:
- Who reads such a topic needs the right to monitor it. A right to a filter is a right to every
  filter it covers, and to no other. A leading wildcard means no such topic (MQTT5 4.7.2).
- Who writes to one needs the right to administer.
- Nobody has a right that is not given. In open mode everybody has all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from penstock.errors import quote
from penstock.model.topics import covers
from penstock.policy.access.principals import Action
from penstock.policy.decision import Considered, Explanation, Part, list_considered

MARK: Final = "$"
MONITOR: Final = "right to monitor"
ADMINISTER: Final = "administer"


class MonitorGrant(NamedTuple):
    """A filter of the broker's topics that somebody may read, and the definition that says so."""

    subject: str
    filter: str
    rule: str


class BrokerTopics:
    """What everybody may do with the broker's own topics."""

    __slots__ = ("_administrators", "_monitors", "_open")

    def __init__(
        self,
        monitors: Iterable[MonitorGrant] = (),
        administrators: Iterable[tuple[str, str]] = (),
        *,
        open_mode: bool = False,
    ) -> None:
        self._open = open_mode
        self._monitors = tuple(sorted(monitors))
        self._administrators = tuple(sorted(administrators))

    def admits(self, subjects: Collection[str], action: Action, filter_: str) -> bool:
        """Tell whether one whom these subjects mean may read or write such a filter or topic."""
        if self._open:
            return True
        if action == "write":
            return any(subject in subjects for subject, _ in self._administrators)
        return any(it.subject in subjects and covers(it.filter, filter_) for it in self._monitors)

    def explain(self, subjects: Collection[str], action: Action, filter_: str) -> Explanation:
        """Say the same, and which rights were looked at."""
        part = Part.BROKER_TOPICS
        if self._open:
            return Explanation(
                allowed=True, rule="open mode", reason="everybody may do everything", part=part
            )
        if action == "write":
            theirs = [rule for subject, rule in self._administrators if subject in subjects]
            others = [rule for subject, rule in self._administrators if subject not in subjects]
            missing, rule = "may write to the broker's own topics", ADMINISTER
        else:
            covering = [it for it in self._monitors if covers(it.filter, filter_)]
            theirs = [it.rule for it in covering if it.subject in subjects]
            others = [it.rule for it in covering if it.subject not in subjects]
            missing, rule = f"has the right to monitor {quote(filter_)}", MONITOR
        considered, more = list_considered(
            [
                *(Considered(it, "lets them") for it in sorted(set(theirs))),
                *(Considered(it, "is for others") for it in sorted(set(others) - set(theirs))),
            ]
        )
        if theirs:
            reason = f"it covers {quote(filter_)}"
            return Explanation(True, theirs[0], reason, considered, more, part=part)  # noqa: FBT003
        reason = f"the principal is none that {missing}"
        return Explanation(False, rule, reason, considered, more, part=part)  # noqa: FBT003
