"""Purpose limitation as one state: what the gateway asks on every packet.

    reserve ──► reservations ──► admissions ──► pause, resume
                     │               ▲
    deliver ◄──── decide         subscribe (purpose given, presubscribed or none)

Rules that hold here:
- No I/O, no clock: each method takes its step at once, so that the gateway reads the state
  and acts on it with nothing in between.
- In all modes an active subscription receives from a topic only what the topic's
  reservations allow its access purpose. The authorizer adds what else must allow it.
- A subscription is active exactly as long as it would be accepted if it were made now.
- Input is checked before anything changes; an error leaves the state as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from penstock.errors import UsageError
from penstock.model.purposes import PurposeSet, check_purpose
from penstock.model.topics import (
    SubscribedFilter,
    check_filter,
    check_topic,
    parse_subscribed,
)
from penstock.policy.decision import Explanation
from penstock.policy.filter_store import check_depth
from penstock.policy.purposes.admissions import Admissions, FilterCoverage
from penstock.policy.purposes.explanations import (
    draw_reservations,
    explain_group,
)
from penstock.policy.purposes.reservations import CACHE_LIMIT, Reservations
from penstock.policy.purposes.settings import PurposeSettings
from penstock.policy.purposes.subscriptions import (
    Content,
    Presubscriptions,
    Subscription,
    Subscriptions,
)

TREE_LIMIT = 1_000

Decide = Callable[[str | bytes, str | None], bool]
"""Tells whether the reservations of a topic allow a purpose."""
Permits = Callable[[Subscription, str | bytes], bool]
"""Tells the same for an active subscription, by what its admission has shown where it has."""


@dataclass(frozen=True, slots=True)
class SubscriptionChanges:
    """What a change means for subscriptions: which to end upstream, which to make again."""

    paused: tuple[Subscription, ...] = ()
    resumed: tuple[Subscription, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.paused or self.resumed)

    def join(self, later: SubscriptionChanges) -> SubscriptionChanges:
        """Return both changes as one; what changed twice ends where it stands now."""
        if not later:
            return self
        touched = {id(it): it for it in (*self.paused, *self.resumed)}
        touched |= {id(it): it for it in (*later.paused, *later.resumed)}
        return _sort_changes(touched.values())


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to a SUBSCRIBE: the decision, the subscription, the one it put an end to."""

    decision: Explanation
    subscription: Subscription | None
    replaced: Subscription | None

    @property
    def allowed(self) -> bool:
        """Tell whether the subscription was accepted."""
        return self.decision.allowed


class PurposeEngine:
    """Reservations, subscriptions and presubscriptions under one set of settings.

    `decide(topic, ap)` and `permits(subscription, topic)` are the hot paths. They
    are replaced when a setting changes: look them up on the engine for each use.
    """

    decide: Decide
    permits: Permits

    def __init__(
        self,
        settings: PurposeSettings | None = None,
        *,
        reservation_limit: int = 2_000_000,
        presubscription_limit: int = 1_000_000,
        cache_limit: int = CACHE_LIMIT,
    ) -> None:
        self.settings = settings or PurposeSettings()
        self.reservations = Reservations(cache_limit=cache_limit)
        self.presubscriptions = Presubscriptions()
        self.subscriptions = Subscriptions()
        self._reservation_limit = reservation_limit
        self._presubscription_limit = presubscription_limit
        self._admissions = Admissions(self.reservations)
        self.configure(self.settings)

    # Reservations

    def reserve(self, filter_: str, purposes: PurposeSet | None) -> SubscriptionChanges:
        """Reserve a filter for these purposes, or remove its reservation with None."""
        check_depth(check_filter(filter_))
        if purposes is not None and self.reservations.get(filter_) is None:
            self._check_count("reservations", len(self.reservations) + 1, self._reservation_limit)
        old, new = self.reservations.reserve(filter_, purposes)
        if old is new:
            return SubscriptionChanges()
        changed = self._admissions.change(filter_, old, new)
        return _sort_changes(changed) if changed else SubscriptionChanges()

    def replace_reservations(
        self, reservations: Iterable[tuple[str, PurposeSet]]
    ) -> SubscriptionChanges:
        """Put these in place of all reservations there are."""
        held = list(reservations)
        self._check_count("reservations", len(held), self._reservation_limit)
        for filter_, _ in held:
            check_depth(check_filter(filter_))
        self.reservations.replace_all(held)
        return _sort_changes(self._admissions.configure(self.settings, self.subscriptions))

    def effective(self, topic: str) -> PurposeSet | None:
        """Return the union of the purposes a topic is reserved for, None if it is not."""
        return self.reservations.effective(check_topic(topic))

    def affected(self, filter_: str) -> Iterator[tuple[str, PurposeSet]]:
        """Yield the reservations that apply to some topic of a filter."""
        return self.reservations.affected(check_filter(filter_))

    def tree(self, limit: int = TREE_LIMIT, *, most_bytes: int | None = None) -> str:
        """Draw the reservations, as many as the limits say."""
        return draw_reservations(self.reservations, limit, most_bytes)

    # Settings

    def configure(self, settings: PurposeSettings) -> SubscriptionChanges:
        """Put all settings in place of the present ones."""
        self.settings = settings
        self.reservations.configure(
            tree=settings.use_tree_store,
            cached=settings.cache_reservations,
            allow_unreserved=settings.allow_without_reservation,
        )
        self.decide = self.reservations.decide
        self.permits = _make_permits(self.decide, check=settings.checks_deliveries)
        return _sort_changes(self._admissions.configure(settings, self.subscriptions))

    # Subscriptions

    def presubscribe(self, client: str, filter_: str, ap: str | None) -> None:
        """Store the purpose of a client's plain subscriptions to a filter; None removes it."""
        if not client:
            raise UsageError("the client id is empty", fix="name the client to presubscribe")
        check_depth(parse_subscribed(filter_).filter)
        if ap is not None:
            check_purpose(ap)
            if self.presubscriptions.get(client, filter_) is None:
                count = len(self.presubscriptions) + 1
                self._check_count("presubscriptions", count, self._presubscription_limit)
        self.presubscriptions.set(client, filter_, ap)

    def subscribe(
        self,
        client: str,
        text: str,
        ap: str | None = None,
        qos: int = 0,
        *,
        options: int = 0,
        identifier: int = 0,
        presubscribed: bool = True,
        owner: str = "",
        content: Content | None = None,
    ) -> Admission:
        """Take a subscription to a filter, `$share/…` included; without AP it is plain.

        `owner` is whose the group of a shared one is.

        A plain one stands for what was presubscribed, unless it is not to look there. It takes
        the place of the client's subscription with the same text; if it is refused, that one
        ends all the same.
        """
        subscribed = parse_subscribed(text)
        check_depth(subscribed.filter)
        if ap is not None:
            check_purpose(ap)
        elif presubscribed:
            found = self.presubscriptions.find(client, subscribed)
            ap = found.ap if found else None
        replaced = self.unsubscribe(client, text)
        decision, coverage = self._admit(subscribed, ap, owner)
        if not decision.allowed:
            return Admission(decision, None, replaced)
        subscription = Subscription(
            client,
            subscribed,
            ap,
            qos,
            options=options,
            identifier=identifier,
            owner=owner,
            content=content,
        )
        self.subscriptions.add(subscription)
        self._admissions.join(subscription, coverage)
        return Admission(decision, subscription, replaced)

    def unsubscribe(self, client: str, text: str) -> Subscription | None:
        """End the subscription of a client and return it, if there was one."""
        gone = self.subscriptions.remove(client, text)
        if gone is not None:
            self._admissions.leave(gone)
        return gone

    def end_session(self, client: str) -> tuple[Subscription, ...]:
        """End all subscriptions of a client; its presubscriptions stay."""
        ended = self.subscriptions.of(client)
        for subscription in ended:
            self.unsubscribe(client, subscription.text)
        return ended

    # Inside

    def _admit(
        self, subscribed: SubscribedFilter, ap: str | None, owner: str = ""
    ) -> tuple[Explanation, FilterCoverage | None]:
        for member in self.subscriptions.group(subscribed.text, owner).values():
            if member.ap != ap:
                return explain_group(member, ap), None
            break  # the members of a group have one purpose
        return self._admissions.admit(subscribed.filter, ap)

    @staticmethod
    def _check_count(what: str, count: int, limit: int) -> None:
        if count > limit:
            raise UsageError(
                f"{count} {what} are more than the limit of {limit}",
                fix=f"reserve wider filters or raise the limit of {what}",
            )


def _make_permits(decide: Decide, *, check: bool) -> Permits:
    # Closures, because looking things up on the engine would cost as much as the decision.
    def permit_checked(subscription: Subscription, topic: str | bytes) -> bool:
        return subscription.whole or decide(topic, subscription.ap)

    def permit_admitted(subscription: Subscription, topic: str | bytes) -> bool:  # noqa: ARG001
        return True

    return permit_checked if check else permit_admitted


def _sort_changes(changed: Iterable[Subscription]) -> SubscriptionChanges:
    changed = list(changed)
    return SubscriptionChanges(
        tuple(subscription for subscription in changed if not subscription.active),
        tuple(subscription for subscription in changed if subscription.active),
    )
