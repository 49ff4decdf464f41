"""What is allowed now: the purposes of the present epoch, and how long that is known.

    store ──▶ follower ──▶ take ──┐
                                  ├──▶ engine, settings, rights ──▶ generation + 1
    command ──▶ store ──▶ take ───┘

Rules that hold here:
- Everything here happens on the gateway's loop, in one step. Others look at `generation`
  to know that something has changed since they remembered a decision.
- A set of definitions is taken once, and an older one never after a newer one.
- `fresh_until` is the moment (of `boot_clock`) from which on nothing is known to hold: who
  decides must look at it first.
- Policies, preferences and situations are asked for at the end of `delivery` (`Guard`). The
  same step of the loop takes over their definitions; definitions that cannot be compiled
  close the gateway: what it cannot check, it denies.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.definitions.authorizer import settings_in_force
from penstock.gateway.authorization.decision_cache import UNDECIDED
from penstock.gateway.authorization.guard import Guard
from penstock.gateway.authorization.policies import Policies
from penstock.gateway.counters import DECISION
from penstock.gateway.session import ANONYMOUS, Session
from penstock.gateway.translation import MESSAGE_AIP, MESSAGE_PIP, stamp
from penstock.model import kinds
from penstock.model.document import Document, Key
from penstock.model.purposes import PurposeError, PurposeSet
from penstock.mqtt import Publish, encode_subscription_identifiers
from penstock.mqtt.properties import UserProperties
from penstock.policy.access.engine import AccessEngine
from penstock.policy.access.principals import Membership
from penstock.policy.authorizer import AccessRequest, Authorizer
from penstock.policy.purposes.command_rights import OPEN_RIGHTS, CommandRights
from penstock.policy.purposes.declared_purposes import RULE as UNDECLARED
from penstock.policy.purposes.declared_purposes import DeclaredPurposes
from penstock.policy.purposes.engine import PurposeEngine, SubscriptionChanges
from penstock.policy.purposes.settings import PurposeSettings
from penstock.policy.purposes.subscriptions import Subscription
from penstock.store.definitions.snapshots import Snapshot
from penstock.store.sessions import StoredSubscription

RESERVATION = "reservation"
PRESUBSCRIPTION = "presubscription"
SETTINGS = "purpose-settings"
PURPOSE = kinds.Purpose.kind
_PURPOSE_KINDS = kinds.kinds_of(kinds.Concern.PURPOSES) - {PURPOSE}
_GRANTING_KINDS = kinds.kinds_of(kinds.Concern.COMMANDS)
_AT_ONCE = 1_000
"""Where more than these, and more than half of all reservations change, all are taken anew."""

_SAMPLE = 64
_QOS = 0x03
_STAMPS_LIMIT = 65_536
_LONGEST = 512
_UNREAD = PurposeSet()


@dataclass(frozen=True, slots=True)
class Turn:
    """What a change of the rules means for subscriptions that clients hold."""

    paused: tuple[Subscription, ...] = ()
    resumed: tuple[Subscription, ...] = ()

    def join(self, changes: SubscriptionChanges) -> Turn:
        """Return both changes as one; what turned twice ends where it stands now."""
        if not changes:
            return self
        touched = {id(it): it for it in (*self.paused, *self.resumed)}
        touched |= {id(it): it for it in (*changes.paused, *changes.resumed)}
        paused = tuple(it for it in touched.values() if not it.active)
        return Turn(paused, tuple(it for it in touched.values() if it.active))


class Rules:
    """The purpose engine of one gateway, kept at the newest epoch that is known."""

    def __init__(
        self,
        settings: PurposeSettings,
        *,
        open_mode: bool = False,
    ) -> None:
        self.engine = PurposeEngine(settings)
        self.declared = DeclaredPurposes()
        self.open_mode = open_mode
        self.initial = settings
        """The settings that hold where no definition says otherwise."""
        self.snapshot: Snapshot | None = None
        self.generation = 0
        self.fresh_until = 0.0
        self.policies = Policies()
        self.guard: Guard | None = None
        """What decides beside purposes; None only where there is no gateway around it."""
        self.remembers = True
        self.lasting = True
        """Whether what was decided last may be remembered by topic and properties."""
        self.refusal = ""
        """The policy or preference that denied what was decided last, if one did."""
        self._overlay: dict[Key, Document | None] = {}
        self._presubscribed: dict[str, tuple[str, str, str]] = {}
        self._purposes: dict[UserProperties, PurposeSet | None] = {}
        self._stamps: dict[tuple[str, str], bytes] = {}
        self._rights: dict[tuple[str, str], CommandRights] = {}
        self._membership: Membership | None = None
        self._granting: dict[Key, Document] = {}
        self._decisions = 0

    @property
    def epoch(self) -> int:
        """The epoch of what is known."""
        return self.snapshot.epoch if self.snapshot else 0

    @property
    def enforceable(self) -> bool:
        """Whether the definitions can be carried out; else everything is denied."""
        return self.policies.trouble is None

    # --- changes ---

    def take(self, snapshot: Snapshot, changed: Iterable[Key]) -> Turn:
        """Take over a set of definitions of which these may differ from what was known."""
        held = self.snapshot
        if held is not None and snapshot.mark == held.mark:
            return Turn()
        given = keys = list(changed)
        self.declared.take(snapshot.documents, keys)
        turn = Turn()
        reserved = sum(key.kind == RESERVATION for key in keys)
        if reserved > max(_AT_ONCE, len(self.engine.reservations) // 2):
            turn = turn.join(self._replace_reservations(snapshot))
            keys = [key for key in keys if key.kind != RESERVATION]
        for key in keys:
            if key.kind in _PURPOSE_KINDS and key not in self._overlay:
                turn = turn.join(self._apply(key, snapshot.documents.get(key)))
            elif key.kind in _GRANTING_KINDS:
                self._granting.pop(key, None)
                if key in snapshot.documents:
                    self._granting[key] = snapshot.documents[key]
        turned = self.policies.take(snapshot.documents, given)
        if turned.program and self.guard is not None:
            self.guard.detection.follow(self.policies.program)
        self.snapshot = snapshot
        self._invalidate()
        return turn

    def try_out(self, documents: dict[Key, Document | None]) -> Turn:
        """Let changes hold at this gateway alone, until they are stored or taken back."""
        turn = Turn()
        for key, document in documents.items():
            self._overlay[key] = document
            turn = turn.join(self._apply(key, document))
        self._invalidate()
        return turn

    def unsaved(self) -> dict[Key, Document | None]:
        """Return the changes that hold at this gateway alone."""
        return dict(self._overlay)

    def settle(
        self, saved: Iterable[Key], tried: Mapping[Key, Document | None] | None = None
    ) -> Turn:
        """Take note that changes were stored: what the store holds goes before them again.

        `tried` is what was `unsaved` when storing began; what was tried out since stays.
        """
        overlay = self._overlay
        return self._take_back(
            [
                key
                for key in saved
                if key in overlay
                and (tried is None or (key in tried and tried[key] is overlay[key]))
            ]
        )

    def reload(self) -> Turn:
        """Go back to what the store holds."""
        return self._take_back(list(self._overlay))

    def _take_back(self, keys: list[Key]) -> Turn:
        turn = Turn()
        for key in keys:
            del self._overlay[key]
            document = self.snapshot.documents.get(key) if self.snapshot else None
            turn = turn.join(self._apply(key, document))
        if keys:
            self._invalidate()
        return turn

    def _invalidate(self) -> None:
        self.generation += 1
        self._stamps.clear()
        self._rights.clear()
        self._membership = None
        settings = self.engine.settings
        self.remembers = settings.cache_reservations and settings.cache_subscriptions

    def _replace_reservations(self, snapshot: Snapshot) -> SubscriptionChanges:
        """Take over all reservations: many changes cost more than all anew."""
        held = {key: it for key, it in snapshot.documents.items() if key.kind == RESERVATION}
        for key, document in self._overlay.items():
            if key.kind == RESERVATION:
                held.pop(key, None)
                if document is not None:
                    held[key] = document
        # Most reservations share their purposes with others: each set is read and checked once.
        known: dict[tuple[tuple[str, ...], tuple[str, ...]], PurposeSet] = {}

        def read(body: Any) -> PurposeSet:
            said = (tuple(body.get("allow", ())), tuple(body.get("prohibit", ())))
            purposes = known.get(said)
            if purposes is None:
                if len(known) >= _STAMPS_LIMIT:
                    known.clear()
                purposes = known[said] = PurposeSet.of(*said)
            return purposes

        return self.engine.replace_reservations(
            (key.name, read(it.body)) for key, it in held.items()
        )

    def _apply(self, key: Key, document: Document | None) -> SubscriptionChanges:
        body = document.body if document is not None else None
        if key.kind == RESERVATION:
            purposes = None
            if body is not None:
                purposes = PurposeSet.of(body.get("allow", ()), body.get("prohibit", ()))
            return self.engine.reserve(key.name, purposes)
        if key.kind == PRESUBSCRIPTION:
            self._presubscribe(key.name, body)
            return SubscriptionChanges()
        return self.engine.configure(settings_in_force(self.initial, body))

    def presubscription(self, client: str, text: str) -> str | None:
        """Return the name of the definition that presubscribes a client to a filter."""
        names = [name for name, held in self._presubscribed.items() if held[:2] == (client, text)]
        return max(names, default=None)

    def _presubscribe(self, name: str, body: Any) -> None:
        # The name says nothing: what it stood for must be remembered to be taken back.
        before = self._presubscribed.pop(name, None)
        if body is not None:
            now = self._presubscribed[name] = (body["client"], body["filter"], body["purpose"])
            self._settle_presubscription(*now[:2])
        if before is not None:
            self._settle_presubscription(*before[:2])

    def _settle_presubscription(self, client: str, text: str) -> None:
        # Where several definitions speak of the same, the last by name does.
        name = self.presubscription(client, text)
        purpose = self._presubscribed[name][2] if name is not None else None
        self.engine.presubscribe(client, text, purpose)

    # --- questions ---

    def rights(self, session: Session) -> CommandRights:
        """Return what a session may command."""
        if self.open_mode:
            return OPEN_RIGHTS
        who = (session.principal, session.client_id)
        known = self._rights.get(who)
        if known is None:
            if len(self._rights) >= _STAMPS_LIMIT:
                self._rights.clear()
            known = self._rights[who] = self._work_out_rights(session)
        return known

    def stamp(self, session: Session) -> bytes:
        """Return the encoded properties that mark a publisher's messages in this epoch."""
        guard = self.guard
        who = (session.principal, session.client_id if guard and guard.decides else "")
        known = self._stamps.get(who)
        if known is None:
            if len(self._stamps) >= _STAMPS_LIMIT:
                self._stamps.clear()
            further = guard.stamp_of(session) if guard is not None else ()
            known = self._stamps[who] = stamp(session.principal, self.epoch, further)
        return known

    def restore(
        self, session: Session, held: StoredSubscription, options: int
    ) -> Subscription | None:
        """Take a subscription up again as it was made; None where it is refused now.

        One that was plain stays plain, although a presubscription may have come since.
        """
        if not self.declared.admits(held.purpose):
            return None
        return self.engine.subscribe(
            session.client_id,
            held.filter,
            held.purpose,
            options & _QOS,
            options=options,
            identifier=held.identifier,
            presubscribed=False,
            owner=session.principal,
        ).subscription

    def delivery(self, session: Session, packet: Publish) -> bytes | None:
        """Decide on a delivery: the properties to send it with, or None where it is denied.

        The identifiers of the client's own subscriptions that let it pass stand in them.
        `UNDECIDED`: it depends on situations that are in doubt.
        """
        self._decisions += 1
        started = time.perf_counter() if not self._decisions % _SAMPLE else 0.0
        properties = packet.properties
        message = self._message_purposes(properties.reserved)
        permits = self.engine.permits
        decides = self.policies.decides
        known = session.by_number if self.enforceable and (self.guard or not decides) else {}
        self.lasting = True
        self.refusal = ""
        own: list[int] = []
        allowed = False
        judge = None
        if self.guard is not None and decides:
            judge = self.guard.judge(session, packet)
        for number in properties.subscription_identifiers:
            subscription = known.get(number)
            if (
                subscription is not None
                and subscription.active
                and permits(subscription, packet.topic)
                and (message is None or message.admits(subscription.ap))
                and (judge is None or judge.allows(subscription.ap))
            ):
                allowed = True
                if subscription.identifier:
                    own.append(subscription.identifier)
        if judge is not None:
            self.lasting = judge.lasting
            self.refusal = "" if allowed else judge.refusal
            if judge.awaiting_leader:
                return UNDECIDED
        if started:
            DECISION.observe(time.perf_counter() - started)
        if not allowed:
            return None
        return properties.kept + encode_subscription_identifiers(own) if own else properties.kept

    def explain(self, session: Session, packet: Publish) -> str:
        """Name the rule that denies a delivery; nothing where no subscription is known."""
        if not self.enforceable:
            return "definitions"
        message = self._message_purposes(packet.properties.reserved)
        for number in packet.properties.subscription_identifiers:
            known = session.purpose_under(number)
            if known is not None:
                (ap,) = known
                if not self.declared.admits(ap):
                    return UNDECLARED
                authorizer = Authorizer(self.engine, self.declared, AccessEngine())
                request = AccessRequest("read", packet.topic, purpose=ap, message_purposes=message)
                return authorizer.explain(request).rule
        return ""

    def _message_purposes(self, reserved: UserProperties) -> PurposeSet | None:
        """Read the purposes that a message carries; what cannot be read admits nobody."""
        if not reserved:
            return None
        known = self._purposes.get(reserved, _UNREAD)
        if known is not _UNREAD:
            return known
        found = dict(reserved)
        read: PurposeSet | None = None
        if MESSAGE_AIP in found or MESSAGE_PIP in found:
            try:
                read = PurposeSet.of(
                    found.get(MESSAGE_AIP, "").split(",") if found.get(MESSAGE_AIP) else (),
                    found.get(MESSAGE_PIP, "").split(",") if found.get(MESSAGE_PIP) else (),
                )
            except PurposeError:
                return PurposeSet()
        if sum(len(name) + len(value) for name, value in reserved) <= _LONGEST:
            if len(self._purposes) >= _STAMPS_LIMIT:
                self._purposes.clear()
            self._purposes[reserved] = read
        return read

    def _work_out_rights(self, session: Session) -> CommandRights:
        documents = self._granting
        if self._membership is None:
            self._membership = Membership(
                kinds.Group.model_validate({"name": key.name, **document.body})
                for key, document in documents.items()
                if key.kind == kinds.Group.kind
            )
        user = None if session.principal == ANONYMOUS else session.principal
        names = {"anyone", f"client:{session.client_id}"}
        names |= {f"group:{it}" for it in self._membership.groups_of(user, session.client_id)}
        if user is not None:
            names.add(f"user:{user}")
        given = [
            document.body
            for key, document in documents.items()
            if key.kind == kinds.Right.kind and not names.isdisjoint(document.body["subjects"])
        ]
        return CommandRights(
            reserve=tuple(it for body in given for it in body.get("reserve", ())),
            presubscribe=tuple(it for body in given for it in body.get("presubscribe", ())),
            administer=any(body.get("administer", False) for body in given),
        )
