"""What was decided on deliveries to one client, remembered by topic and property list.

Rules that hold here:
- What depends on more than the topic and the property list (the situation, the time, the
  payload) is not remembered here.
- Remembered is the finished property list to send, or None where the delivery is denied,
  and beside it the rule that denied it.
- Every change of the rules, and every change of the client's subscriptions, forgets all.
- As many as a client may need are remembered, and none that is long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.mqtt import Publish

if TYPE_CHECKING:
    from penstock.gateway.authorization.rules import Rules
    from penstock.gateway.session import Session

UNDECIDED: Final = b"\x00undecided"
_LIMIT: Final = 2_048
_LONGEST: Final = 256

Subject = tuple[str, bytes]
"""What a decision depends on: the topic, and the property list as it came."""


Refusal = tuple[str, str]
"""What denies a delivery, in a word, and the name of the rule."""


class Verdicts:
    """The memory of one connection; `known` is looked into on the way of every message."""

    __slots__ = ("_denying", "_refused", "_rules", "known")

    def __init__(self, rules: Rules) -> None:
        self.known: dict[Subject, bytes | None] = {}
        self._denying: dict[Subject, Refusal] = {}
        self._refused: tuple[Subject | None, str] = (None, "")
        self._rules = rules

    def decide(self, session: Session, packet: Publish, subject: Subject) -> bytes | None:
        """Decide on a delivery, and remember it where that holds for the next one.

        `UNDECIDED` says that it cannot be decided now.
        """
        rules = self._rules
        listed = rules.delivery(session, packet)
        if listed is UNDECIDED:
            return listed
        if listed is None:
            # Who asks for the rule does so next, with this very subject.
            self._refused = (subject, rules.refusal)
        if rules.remembers and rules.lasting and len(subject[1]) <= _LONGEST:
            if len(self.known) >= _LIMIT:
                self.known.clear()
            self.known[subject] = listed
        return listed

    def name_rule(self, session: Session, packet: Publish, subject: Subject) -> Refusal:
        """Say what denies a delivery, and name the rule."""
        refusal = self._denying.get(subject)
        if refusal is not None:
            return refusal
        just_now, policy = self._refused
        if just_now is subject and policy:
            refusal = ("policy", policy)
            lasting = subject in self.known
        else:
            rule = self._rules.explain(session, packet)
            refusal = ("purpose" if rule else "unknown_subscription", rule)
            lasting = len(subject[1]) <= _LONGEST
        if lasting:
            if len(self._denying) >= _LIMIT:
                self._denying.clear()
            self._denying[subject] = refusal
        return refusal

    def forget(self) -> None:
        """Forget what was decided."""
        self.known.clear()
        self._denying.clear()
