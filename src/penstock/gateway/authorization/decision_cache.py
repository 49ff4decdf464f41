"""Decisions on deliveries to one client, cached by topic and property list.

Rules that hold here:
- Only a decision that is `lasting` is kept: what depends on more than the topic and the
  property list (the situation, the time, the payload) is decided anew.
- What may pass is kept as the finished property list to send, in `passing`; what may not, with
  the rule that denies it.
- Every change of the rules, and every change of the client's subscriptions, forgets all.
- As many as a client may need are kept, and none that is long.
"""

from __future__ import annotations

from typing import Final

from penstock.gateway.authorization.delivery_check import DeliveryCheck, DeliveryDecision
from penstock.gateway.session import Session
from penstock.mqtt import Publish

_LIMIT: Final = 2_048
_LONGEST: Final = 256

DeliveryKey = tuple[str, bytes]
"""What a lasting decision depends on: the topic, and the property list as it came."""


class DecisionCache:
    """The cache of one connection; `passing` is looked into on the way of every message."""

    __slots__ = ("_check", "_denied", "passing")

    def __init__(self, check: DeliveryCheck) -> None:
        self.passing: dict[DeliveryKey, bytes] = {}
        self._denied: dict[DeliveryKey, DeliveryDecision] = {}
        self._check = check

    def decide(self, session: Session, packet: Publish, key: DeliveryKey) -> DeliveryDecision:
        """Decide on a delivery that is not `passing`, and keep what holds for the next one."""
        denied = self._denied.get(key)
        if denied is not None:
            return denied
        decision = self._check.decide(session, packet)
        if decision.lasting and len(key[1]) <= _LONGEST:
            if len(self.passing) + len(self._denied) >= _LIMIT:
                self.forget()
            if decision.properties is None:
                self._denied[key] = decision
            else:
                self.passing[key] = decision.properties
        return decision

    def forget(self) -> None:
        """Forget what was decided."""
        self.passing.clear()
        self._denied.clear()
