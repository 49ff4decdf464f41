"""Puts decisions on purposes into words. Asked for after the fact, never on the hot path.

Rules that hold here:
- An explanation repeats the decision by the plainest way, reservation by reservation, and
  never takes one of its own: the tests compare the two.
- It looks at so many reservations at most: a refusal must not cost more than the decision.
- Reservations are named as they are written: `reservation a/#{billing|marketing}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nsmallest
from itertools import islice

from penstock.errors import quote
from penstock.model.purposes import ALLOWS, PROHIBITS, PurposeSet
from penstock.model.topics import covers
from penstock.policy.decision import Considered, Explanation, Part, list_considered
from penstock.policy.purposes.reservations import Reservations
from penstock.policy.purposes.settings import Mode, PurposeSettings
from penstock.policy.purposes.subscriptions import Subscription

DEFAULT_RULE = "allow_without_reservation"
SCAN_LIMIT = 1_000
EMPTY_LEVEL = "(empty)"
# Indentation and letters of several bytes come on top of what is counted here.
_BYTES_PER_CHARACTER = 2

_EFFECTS = {PROHIBITS: "prohibits", ALLOWS: "allows"}


def explain_topic(reservations: Reservations, topic: str, ap: str | None) -> Explanation:
    """Explain whether a subscription for this purpose may receive from the topic."""
    applying = sorted(reservations.affected(topic), key=_by_levels)
    considered, more = list_considered(
        Considered(name_reservation(filter_, purposes), effect(purposes, ap))
        for filter_, purposes in applying
    )
    if not applying:
        return _explain_unreserved(
            f"topic {quote(topic)}", allow_unreserved=reservations.allow_unreserved
        )
    allowed = False
    deciding = _first(applying, lambda purposes: purposes.effect(ap) == PROHIBITS)
    reason = f"it prohibits {ap}"
    if deciding is None:
        deciding = _first(applying, lambda purposes: purposes.effect(ap) == ALLOWS)
        allowed = deciding is not None
        reason = f"it allows {ap}"
    if deciding is None:
        deciding = name_reservation(*applying[0])
        reason = _say_silence(f"topic {quote(topic)} is reserved", ap)
    return Explanation(allowed, deciding, reason, considered, more, part=Part.RESERVATIONS)


def explain_filter(
    reservations: Reservations,
    filter_: str,
    ap: str | None,
    settings: PurposeSettings,
    *,
    allowed: bool,
) -> Explanation:
    """Explain why a subscription was accepted or refused as a whole."""
    mode, allow_unreserved = settings.mode, settings.allow_without_reservation
    if mode is Mode.ON_PUBLISH:
        return Explanation(
            allowed=True, rule="filter_on_publish", reason="each delivery is checked instead"
        )
    considered, more = list_considered(
        Considered(name_reservation(there, purposes), effect(purposes, ap))
        for there, purposes in reservations.affected(filter_)
    )
    if allowed:
        if mode is Mode.ON_SUBSCRIBE:
            rule, reason = "filter_on_subscribe", f"nothing below {quote(filter_)} forbids it"
        elif settings.hybrid_partial:
            rule = "hybrid_partial"
            reason = f"something below {quote(filter_)} may allow it; each delivery is checked"
        else:
            rule = "filter_hybrid"
            reason = f"what holds for all of {quote(filter_)} allows it; each delivery is checked"
        return Explanation(True, rule, reason, considered, more)  # noqa: FBT003
    if not considered:
        return _explain_unreserved(f"filter {quote(filter_)}", allow_unreserved=allow_unreserved)
    rule, reason = _find_refusal(reservations, filter_, ap, mode, allow_unreserved=allow_unreserved)
    return Explanation(False, rule, reason, considered, more)  # noqa: FBT003


def explain_message(ap: str | None, message: PurposeSet) -> Explanation:
    """Explain whether a message admits a purpose by what it says for itself."""
    own = f"purposes of the message {message}"
    admitted = message.admits(ap)
    whom = ap or "a subscription without purpose"
    return Explanation(
        admitted,
        own,
        f"the message {'admits' if admitted else 'does not admit'} {whom}",
        (Considered(own, "admits" if admitted else "refuses"),),
        part=Part.MESSAGE_PURPOSES,
    )


def name_reservation(filter_: str, purposes: PurposeSet) -> str:
    """Return what a reservation is called in explanations."""
    return f"reservation {filter_}{purposes}"


def name_subscription(subscription: Subscription) -> str:
    """Return what a subscription is called in explanations."""
    return f"subscription {subscription.text} with {_say_purpose(subscription.ap)}"


def explain_group(member: Subscription, ap: str | None) -> Explanation:
    """Explain why a subscription cannot join a group whose members have another purpose."""
    return Explanation(
        allowed=False,
        rule=f"shared subscription {member.text}",
        reason=f"its members have {_say_purpose(member.ap)}, not {_say_purpose(ap)}",
    )


def effect(purposes: PurposeSet, ap: str | None) -> str:
    """Say in a word how a set stands to an access purpose."""
    if ap is None:
        return "asks for a purpose"
    return _EFFECTS.get(purposes.effect(ap), f"says nothing on {ap}")


def draw_reservations(reservations: Reservations, limit: int, most_bytes: int | None = None) -> str:
    """Draw reservations as a tree, level by level, in the order of their filters."""
    lines: list[str] = []
    above: list[str] = []
    drawn = size = 0
    for filter_, purposes in nsmallest(limit, reservations.items(), key=_by_levels):
        levels = filter_.split("/")
        size += len(filter_) + sum(map(len, purposes.aip)) + sum(map(len, purposes.pip))
        if most_bytes is not None and size > most_bytes // _BYTES_PER_CHARACTER:
            break
        drawn += 1
        shared = 0
        while shared < min(len(above), len(levels) - 1) and above[shared] == levels[shared]:
            shared += 1
        for depth in range(shared, len(levels)):
            end = f" {purposes}" if depth == len(levels) - 1 else ""
            lines.append(f"{'  ' * depth}{levels[depth] or EMPTY_LEVEL}{end}")
        above = levels
    if len(reservations) > drawn:
        lines.append(f"… and {len(reservations) - drawn} more")
    return "\n".join(lines) or "nothing is reserved"


def _find_refusal(
    reservations: Reservations,
    filter_: str,
    ap: str | None,
    mode: Mode,
    *,
    allow_unreserved: bool,
) -> tuple[str, str]:
    covering: list[tuple[str, PurposeSet]] = []
    partial: list[tuple[str, PurposeSet]] = []
    for there, purposes in islice(reservations.affected(filter_), SCAN_LIMIT):
        (covering if covers(there, filter_) else partial).append((there, purposes))
    relevant = covering + partial if mode is Mode.ON_SUBSCRIBE else covering
    deciding = _first(relevant, lambda purposes: purposes.effect(ap) == PROHIBITS)
    if deciding is not None:
        return deciding, f"it prohibits {ap} on topics of {quote(filter_)}"
    if covering and _first(covering, lambda purposes: purposes.compatible(ap)) is None:
        return name_reservation(*covering[0]), _say_silence(
            f"filter {quote(filter_)} is reserved", ap
        )
    if not covering and not allow_unreserved:
        return DEFAULT_RULE, f"not all topics of {quote(filter_)} are reserved"
    deciding = _first(
        partial,
        lambda purposes: not (purposes.compatible(ap) or (covering and purposes.prohibits_only)),
    )
    rule = deciding or "filter_on_subscribe"
    return rule, _say_silence(f"topics of {quote(filter_)} are reserved", ap)


def _explain_unreserved(what: str, *, allow_unreserved: bool) -> Explanation:
    state = "open" if allow_unreserved else "closed, in strict mode"
    return Explanation(
        allowed=allow_unreserved,
        rule=DEFAULT_RULE,
        reason=f"{what} is not reserved, and such topics are {state}",
        part=Part.RESERVATIONS,
    )


def _first(
    reservations: Iterable[tuple[str, PurposeSet]], wanted: Callable[[PurposeSet], object]
) -> str | None:
    return next(
        (name_reservation(there, held) for there, held in reservations if wanted(held)), None
    )


def _say_purpose(ap: str | None) -> str:
    return f"purpose {ap}" if ap else "no purpose"


def _say_silence(what: str, ap: str | None) -> str:
    return f"{what}, but not for {ap}" if ap else f"{what}, and the subscription has no purpose"


def _by_levels(reservation: tuple[str, PurposeSet]) -> list[str]:
    return reservation[0].split("/")
