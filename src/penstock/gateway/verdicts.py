"""What was decided on deliveries to one client, remembered by topic and property list.

Rules that hold here:
- Remembered is the finished property list to send, or None where the delivery is denied,
  and beside it the rule that denied it.
- Every change of the rules, and every change of the client's subscriptions, forgets all.
- As many as a client may need are remembered, and none that is long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.mqtt import Publish

if TYPE_CHECKING:
    from penstock.gateway.rules import Rules
    from penstock.gateway.session import Session

UNDECIDED: Final = b"\x00undecided"
_LIMIT: Final = 2_048
_LONGEST: Final = 256

Subject = tuple[str, bytes]
"""What a decision depends on: the topic, and the property list as it came."""


class Verdicts:
    """The memory of one connection; `known` is looked into on the way of every message."""

    __slots__ = ("_denying", "_rules", "known")

    def __init__(self, rules: Rules) -> None:
        self.known: dict[Subject, bytes | None] = {}
        self._denying: dict[Subject, str] = {}
        self._rules = rules

    def decide(self, session: Session, packet: Publish, subject: Subject) -> bytes | None:
        """Decide on a delivery, and remember it."""
        listed = self._rules.delivery(session, packet)
        if self._rules.remembers and len(subject[1]) <= _LONGEST:
            if len(self.known) >= _LIMIT:
                self.known.clear()
            self.known[subject] = listed
        return listed

    def name_rule(self, session: Session, packet: Publish, subject: Subject) -> str:
        """Name the rule that denies a delivery; nothing where no subscription is known."""
        rule = self._denying.get(subject)
        if rule is None:
            rule = self._rules.explain(session, packet)
            if len(subject[1]) <= _LONGEST:
                if len(self._denying) >= _LIMIT:
                    self._denying.clear()
                self._denying[subject] = rule
        return rule

    def forget(self) -> None:
        """Forget what was decided."""
        self.known.clear()
        self._denying.clear()
