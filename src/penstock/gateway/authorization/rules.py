"""The rules in force: the authorizer at the newest epoch, and how long that is known.

    store ──▶ follower ──▶ take ──┐
                                  ├──▶ authorizer, settings, rights ──▶ generation + 1
    command ──▶ store ──▶ take ───┘

Rules that hold here:
- Everything here happens on the gateway's loop, in one step. Others look at `generation`
  to know that something has changed since they cached a decision.
- A set of definitions is taken once, and an older one never after a newer one.
- `fresh_until` is the moment (of `boot_clock`) from which on nothing is known to hold: who
  decides must look at it first.
- Opt-outs come by the same lease as definitions, each in a step of its own.
- Purposes, policies, preferences and events are taken over in the same step; definitions that
  cannot be compiled close the gateway (`enforceable`): what it cannot check, it denies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.cep.program import Program
from penstock.definitions.authorizer import settings_in_force
from penstock.definitions.set import Trust, trust_nothing
from penstock.gateway.authorization.compiled_definitions import (
    APART,
    AnswerTopics,
    CompiledDefinitions,
    GrantedRights,
    named_clients,
    read_reservations,
)
from penstock.gateway.authorization.credentials import MessageCredentials, TrustSource
from penstock.gateway.authorization.sealing import Sealing
from penstock.gateway.broker import CHOICE_LIMIT, CLIENT, FOR, stamp
from penstock.gateway.session import Session
from penstock.model import kinds
from penstock.model.document import KIND, Document, Key
from penstock.model.purposes import PurposeSet
from penstock.model.topics import parse_subscribed
from penstock.mqtt import encode_user_properties
from penstock.policy.authorizer import Authorizer
from penstock.policy.consent import OptOutIndex, Prohibitions
from penstock.policy.content_filters import ContentError, ContentFilter, ContentFilters
from penstock.policy.parts import Advertisements
from penstock.policy.purposes.commands import Advertise
from penstock.policy.purposes.engine import PurposeEngine, SubscriptionChanges
from penstock.policy.purposes.rights import CommandRights, DeclaredPurposes
from penstock.policy.purposes.settings import Notation, PurposeSettings
from penstock.policy.purposes.subscriptions import Subscription
from penstock.store.definitions.documents import Snapshot
from penstock.store.purpose_state import STATE, Excepted, StateCommand, StateLog
from penstock.store.sessions import StoredSubscription

RESERVATION = "reservation"
PRESUBSCRIPTION = "presubscription"
SETTINGS = "purpose-settings"
STATE_KINDS: Final = (RESERVATION, PRESUBSCRIPTION)
"""The definitions that are a part of the purpose state."""
PURPOSE = kinds.Purpose.kind
COMPARED: Final = 64
"""With how many changed filters others are compared; beyond that, trying out is cheaper."""

_PURPOSE_KINDS: Final = kinds.kinds_of(kinds.Concern.PURPOSES) - {PURPOSE}
_CLAIM_KINDS: Final = kinds.kinds_of(kinds.Concern.CLAIMS)
_MONITOR_KINDS: Final = frozenset(
    {kinds.Right.kind, kinds.AuthorisationRule.kind, kinds.Group.kind}
)
_TYPE: Final = kinds.Stream.kind
DECIDING: Final = (
    kinds.kinds_of(kinds.Concern.PURPOSES) - {PRESUBSCRIPTION} | _CLAIM_KINDS | {_TYPE}
)
_AT_ONCE: Final = 1_000
"""Where more than these, and more than half of all reservations change, all are taken anew."""
_CACHE_LIMIT: Final = 65_536
_QOS: Final = 0x03


class RuleChanges(NamedTuple):
    """What a new set of definitions means for what others hold."""

    subscriptions: SubscriptionChanges = SubscriptionChanges()
    program: Program | None = None
    """What is to be detected from now on, where that has changed."""
    compiled: bool = False
    """Whether more than purposes has changed: who means whom, and who has which roles."""
    commands: tuple[StateCommand, ...] = ()
    """What commands did to the purpose state, to be carried out on subscriptions."""
    roles: frozenset[tuple[str, str]] = frozenset()
    """The sessions, by user and client, that have other roles now."""


class Rules:
    """The authorizer of one gateway, kept at the newest epoch that is known."""

    def __init__(
        self,
        settings: PurposeSettings,
        *,
        open_mode: bool = False,
        defined_users: bool = False,
        clear_excepts: Iterable[str] = (),
        answers: AnswerTopics | None = None,
        trusts: Trust = trust_nothing,
        place: str | None = None,
        read_key: Callable[[], bytes] | None = None,
        trust: TrustSource | None = None,
    ) -> None:
        self._defined_users = defined_users
        self.engine = PurposeEngine(settings)
        self.declared = DeclaredPurposes()
        self.initial = settings
        """The settings that hold where no definition says otherwise."""
        self.snapshot: Snapshot | None = None
        self.state = StateLog()
        """What commands did to the purpose state last."""
        self._clear_excepts = frozenset(clear_excepts)
        self.answers = answers or AnswerTopics(Notation())
        """Where answers to questions are published."""
        self.generation = 0
        self.fresh_until = 0.0
        self.remembers = True
        """Whether decisions may be cached, as far as the settings say."""
        self.enforceable = True
        """Whether the definitions can be carried out; else everything is denied."""
        self.decides_writes = True
        """Whether any rule could be about what is published, whatever its topic."""
        self.decides_reads = True
        """Whether anything but purposes could decide on deliveries, whatever their topic."""
        self.vouches = True
        """Whether anything is sealed, signed or marked."""
        self.consent = Prohibitions()
        """What people opted out of."""
        self.clock: Callable[[], int] = lambda: int(time.time() * 1000)
        """Tells the time by which roles are activated, in milliseconds since 1970."""
        self.advertisements = Advertisements()
        """What clients said that they publish, where that is asked for."""
        self.contents = ContentFilters()
        """What events subscriptions are for."""
        self.sealing = Sealing(self._now)
        """What is sealed on its way through the broker."""
        self._compiled = CompiledDefinitions(
            open_mode=open_mode,
            trusts=trusts,
            read_key=read_key,
            home=(lambda: trust.open_key().key) if trust is not None else None,
        )
        self.credentials = MessageCredentials(
            trust,
            self.sealing,
            self._now,
            lambda: self._compiled.capabilities,
            self.answers.is_among,
        )
        """What messages carry through the broker, between domains."""
        self._compiled.access.roles.place = place
        self.authorizer = self._make_authorizer()
        self._rights = GrantedRights(open_mode=open_mode, roles_of=self._roles_of)
        self._parts = (
            (self.declared.kinds, self.declared.take),
            (self._rights.kinds, self._rights.take),
            (self.consent.kinds, self.consent.take_definitions),
            (self.contents.types.kinds, self.contents.types.take),
            (self.advertisements.kinds, self.advertisements.take),
            (self.sealing.kinds, self.sealing.take),
            (self.credentials.kinds, self.credentials.take),
        )
        """Each is told of changes of the kinds that it follows, and of no others."""
        self._overlay: dict[Key, Document | None] = {}
        self._presubscribed: dict[str, tuple[str, str, str]] = {}
        self._presubscribing: dict[tuple[str, str], set[str]] = {}
        """The names of the definitions that speak of a client and a filter."""
        self._stamps: dict[tuple[str, str], bytes] = {}
        self._named: tuple[Snapshot | None, frozenset[str]] = (None, frozenset())

    def _now(self) -> int:
        return self.clock()

    @property
    def epoch(self) -> int:
        """The epoch of what is known."""
        return self.snapshot.epoch if self.snapshot else 0

    # --- changes ---

    def take(
        self, snapshot: Snapshot, changed: Iterable[Key], *, is_other_history: bool = False
    ) -> RuleChanges:
        """Take over a set of definitions of which these may differ from what was known.

        Commands that another history tells of were not given here: they are not carried out.
        """
        held = self.snapshot
        if held is not None and snapshot.mark == held.mark:
            return RuleChanges()
        self.enforceable = False  # until all is taken over
        self.decides_writes = self.decides_reads = self.vouches = True
        keys = list(changed)
        documents = snapshot.documents
        changed_kinds = set(map(KIND, keys))
        changes = self._take_purposes(snapshot, keys)
        for kinds_followed, take in self._parts:
            if not kinds_followed.isdisjoint(changed_kinds):
                take(documents, keys)
        compiled = not changed_kinds <= APART or self._compiled.trouble is not None
        program = self._compile(documents, keys) if compiled else None
        self.snapshot = snapshot
        roles = self.authorizer.access.refresh_roles() if compiled else ()
        commands: tuple[StateCommand, ...] = ()
        if STATE in keys:
            document = documents.get(STATE)
            self.state = StateLog.read(document.body if document is not None else None)
            if held is not None and not is_other_history:
                commands = self.state.since(held.epoch)
        if commands:
            changes = changes.join(self._take_back(self._overruled(commands)))
        self._invalidate()
        self.enforceable = self._compiled.trouble is None
        return RuleChanges(changes, program, compiled, commands, frozenset(roles))

    def _take_purposes(self, snapshot: Snapshot, keys: list[Key]) -> SubscriptionChanges:
        changes = SubscriptionChanges()
        purposes = [key for key in keys if key.kind in _PURPOSE_KINDS]
        if len(purposes) > _AT_ONCE:
            reserved = sum(key.kind == RESERVATION for key in purposes)
            if reserved > max(_AT_ONCE, len(self.engine.reservations) // 2):
                changes = self._replace_reservations(snapshot)
                purposes = [key for key in purposes if key.kind != RESERVATION]
        for key in purposes:
            if key not in self._overlay:
                changes = changes.join(self._apply(key, snapshot.documents.get(key)))
        return changes

    def _compile(self, documents: Mapping[Key, Document], keys: list[Key]) -> Program | None:
        """Compile policies and events; return the program where it is another one."""
        # Who is meant by a right may follow from these definitions, whatever their kind.
        self._rights.forget()
        # What is over by now must not begin with what comes.
        if self.authorizer.access.roles.advance(self.clock()):
            self.authorizer.access.forget_principals()
        recompiled = self._compiled.take(documents, keys)
        if recompiled.access:
            # It may be another engine than before: one that was incomplete is made anew.
            self.authorizer = self._make_authorizer()
        return self._compiled.program if recompiled.program else None

    # --- roles ---

    def open_roles(self, session: Session) -> None:
        """Begin to activate roles for a session, those that it chose; take what it showed."""
        self.advertisements.end(session.client_id)
        self.credentials.present(session.user, session.client_id, session.presented)
        if session.user is not None:
            access = self.authorizer.access
            access.open_session(session.user, session.client_id, session.chosen_roles)
            self._rights.forget(session)

    def close_roles(self, session: Session) -> None:
        """Forget what was active in a session, what it advertised, and what it has shown."""
        self.advertisements.end(session.client_id)
        self.credentials.present(None, session.client_id, "")
        if session.user is not None:
            self.authorizer.access.close_session(session.user, session.client_id)
            self._rights.forget(session)

    def has_chosen(self, session: Session) -> bool:
        """Say whether all roles are active that a session chose."""
        if session.chosen_roles is None:
            return True
        if len(session.chosen_roles) > CHOICE_LIMIT:
            return False
        access = self.authorizer.access
        active = access.principal(session.user, session.client_id).roles
        return set(session.chosen_roles) <= set(active.names())

    def advance_roles(self) -> frozenset[tuple[str, str]]:
        """Let time pass for roles; return the sessions, by user and client, that have others."""
        access = self.authorizer.access
        if not access.roles.in_use:
            return frozenset()
        passed = access.roles.advance(self.clock())
        changed = frozenset(access.refresh_roles())
        if not passed and not changed:
            return frozenset()
        access.forget_principals()
        self._rights.forget()
        self._invalidate()
        return changed

    @property
    def roles_due(self) -> int | None:
        """When `advance_roles` is to be called next, in milliseconds since 1970."""
        return self.authorizer.access.roles.due

    def _roles_of(self, session: Session) -> Iterable[str]:
        access = self.authorizer.access
        if not access.roles.in_use:
            return ()
        return access.principal(session.user, session.client_id).subjects

    def take_opt_outs(self, opt_outs: OptOutIndex, changed: Collection[int] | None) -> None:
        """Take over opt-outs; cached decisions are invalid only where they may be wrong now."""
        if self.consent.take(opt_outs, changed):
            self._invalidate()

    def try_out(self, documents: dict[Key, Document | None]) -> SubscriptionChanges:
        """Let changes hold at this gateway alone, until they are stored or taken back."""
        changes = SubscriptionChanges()
        for key, document in documents.items():
            self._overlay[key] = document
            changes = changes.join(self._apply(key, document))
        self._invalidate()
        return changes

    def unsaved(self) -> dict[Key, Document | None]:
        """Return the changes that hold at this gateway alone."""
        return dict(self._overlay)

    def settle(
        self, saved: Iterable[Key], tried: Mapping[Key, Document | None] | None = None
    ) -> SubscriptionChanges:
        """Take note that changes were stored: what the store holds goes before them again.

        `tried` is what was `unsaved` when storing began; what was tried out since stays.
        """
        overlay = self._overlay
        return self._take_back(
            [
                key
                for key in saved
                if key in overlay
                and (tried is None or (key in tried and tried[key] == overlay[key]))
            ]
        )

    def reload(self) -> SubscriptionChanges:
        """Go back to what the store holds."""
        return self._take_back(list(self._overlay))

    def _overruled(self, commands: Iterable[StateCommand]) -> list[Key]:
        """Return what was tried out here and does not outlive these commands."""
        did = {it.did for it in commands}
        if "reload" in did:
            return list(self._overlay)
        return [key for key in self._overlay if "clear" in did and key.kind in STATE_KINDS]

    def _take_back(self, keys: list[Key]) -> SubscriptionChanges:
        changes = SubscriptionChanges()
        for key in keys:
            del self._overlay[key]
            document = self.snapshot.documents.get(key) if self.snapshot else None
            changes = changes.join(self._apply(key, document))
        if keys:
            self._invalidate()
        return changes

    def _make_authorizer(self) -> Authorizer:
        compiled = self._compiled
        compiled.capabilities.presented = self.credentials.presented
        return Authorizer(
            self.engine,
            self.declared,
            compiled.access,
            compiled.claims,
            compiled.broker_topics,
            self.keeps_out,
            self.consent,
            compiled.interaction,
            contents=self.contents,
            capabilities=compiled.capabilities,
        )

    def _invalidate(self) -> None:
        self.generation += 1
        self.consent.forget()
        self._stamps.clear()
        authorizer, settings = self.authorizer, self.engine.settings
        self.vouches = self.credentials.in_use
        self.decides_writes = (
            authorizer.access.decides["write"]
            or authorizer.interaction.in_use
            or authorizer.capabilities.in_use
            or self.advertisements.in_use
            or self.contents.types.in_use
            or self.vouches
        )
        self.decides_reads = (
            authorizer.access.decides["read"]
            or authorizer.interaction.in_use
            or authorizer.capabilities.in_use
            or bool(self.consent.opt_outs.by_purpose)
        )
        self.remembers = settings.cache_reservations and settings.cache_subscriptions

    def _replace_reservations(self, snapshot: Snapshot) -> SubscriptionChanges:
        """Take over all reservations: many changes cost more than all anew."""
        held = {key: it for key, it in snapshot.documents.items() if key.kind == RESERVATION}
        for key, document in self._overlay.items():
            if key.kind == RESERVATION:
                held.pop(key, None)
                if document is not None:
                    held[key] = document
        return self.engine.replace_reservations(read_reservations(held))

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
        return max(self._presubscribing.get((client, text), ()), default=None)

    def _presubscribe(self, name: str, body: Any) -> None:
        # The name says nothing: what it stood for must be remembered to be taken back.
        before = self._presubscribed.pop(name, None)
        if before is not None:
            names = self._presubscribing[before[:2]]
            names.discard(name)
            if not names:
                del self._presubscribing[before[:2]]
        if body is not None:
            now = self._presubscribed[name] = (body["client"], body["filter"], body["purpose"])
            self._presubscribing.setdefault(now[:2], set()).add(name)
            self._settle_presubscription(*now[:2])
        if before is not None:
            self._settle_presubscription(*before[:2])

    def _settle_presubscription(self, client: str, text: str) -> None:
        # Where several definitions speak of the same, the last by name does.
        name = self.presubscription(client, text)
        purpose = self._presubscribed[name][2] if name is not None else None
        self.engine.presubscribe(client, text, purpose)

    # --- questions ---

    def concerns_claims(self, kinds_changed: AbstractSet[str]) -> bool:
        """Say whether changes may take from somebody what they have subscribed for."""
        if PURPOSE in kinds_changed:
            return True
        if kinds_changed & _MONITOR_KINDS or (_TYPE in kinds_changed and len(self.contents)):
            return True
        asked = self.engine.settings.claims_need_right
        return asked and bool(kinds_changed & (_CLAIM_KINDS | {SETTINGS}))

    def is_excepted(self, session: Session) -> bool:
        """Say whether CLEAR leaves a session its subscriptions for purposes."""
        return self._rights.is_among(session, self._clear_excepts)

    def excepted(self) -> Excepted:
        """Return all whose sessions CLEAR leaves their subscriptions for purposes."""
        return self._rights.list_members(self._clear_excepts)

    def keeps_out(self, user: str | None) -> bool:
        """Say whether definitions keep a user out: blocked, or not defined where that is asked."""
        if user is None:
            return False
        defined = self._find_user(user)
        return self._defined_users if defined is None else bool(defined.body.get("blocked", False))

    def defines(self, user: str) -> bool:
        """Say whether there is a definition of a user."""
        return self._find_user(user) is not None

    def _find_user(self, user: str) -> Document | None:
        known = self.snapshot
        return known.documents.get(Key(kinds.User.kind, user)) if known is not None else None

    def named_clients(self) -> frozenset[str]:
        """Return the client identifiers that definitions give something to."""
        known = self.snapshot
        if known is not None and self._named[0] is not known:
            found = (it for document in known.documents.values() for it in named_clients(document))
            self._named = (known, frozenset(found))
        return self._named[1]

    def rights(self, session: Session) -> CommandRights:
        """Return what a session may command."""
        return self._rights.of(session)

    def stamp(self, session: Session) -> bytes:
        """Return the encoded properties that mark a publisher's messages in this epoch."""
        named = self.authorizer.access.decides["read"]
        who = (session.principal, session.client_id if named else "")
        known = self._stamps.get(who)
        if known is None:
            if len(self._stamps) >= _CACHE_LIMIT:
                self._stamps.clear()
            further = self.publisher_properties(session)
            known = self._stamps[who] = stamp(session.principal, self.epoch, further)
        return known

    def origin(self, session: Session) -> bytes:
        """Return the encoded properties that name client and wearer, unless the stamp does.

        A message that the broker keeps may be delivered when there are preferences.
        """
        if self.authorizer.access.decides["read"]:
            return b""
        return encode_user_properties(self.origin_properties(session))

    def publisher_properties(self, session: Session) -> tuple[tuple[str, str], ...]:
        """Return what a stamp says of a publisher where policies or preferences ask for it."""
        return self.origin_properties(session) if self.authorizer.access.decides["read"] else ()

    def origin_properties(self, session: Session) -> tuple[tuple[str, str], ...]:
        """Return what names the client, and for whom it publishes."""
        access = self.authorizer.access
        added: list[tuple[str, str]] = [(CLIENT, session.client_id)]
        behalf = access.publishes_for(session.user, session.client_id)
        if behalf is not None:
            added.append((FOR, behalf))
        return tuple(added)

    def restore(
        self, session: Session, held: StoredSubscription, options: int
    ) -> Subscription | None:
        """Take a subscription up again as it was made; None where it is refused now.

        One that was plain stays plain, although a presubscription may have come since.
        """
        if self.answers.is_filter(held.filter):
            allowed = self.rights(session).may_ask
            return self.answers.subscribe(session, held, options) if allowed else None
        filter_ = parse_subscribed(held.filter).filter
        if not self.authorizer.may_subscribe(
            session.user, session.client_id, held.purpose, filter_
        ):
            return None
        content = None
        if held.content is not None:
            try:
                content = self.hold_content(session, held.content, filter_)
            except ContentError:
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
            content=content,
        ).subscription

    def is_advertised(self, session: Session, topic: str) -> bool:
        """Say whether a session has advertised what it publishes, where that is asked for."""
        held = self.advertisements
        if not held.are_needed(topic):
            return True
        rights = self.rights(session)

        def entitled(filter_: str) -> bool:
            return rights.may(Advertise(filter_)).allowed

        return held.cover(session.client_id, topic, self.clock(), entitled)

    # --- content filters ---

    def hold_content(
        self, session: Session, text: str, filter_: str, *, asked: bool = False
    ) -> ContentFilter:
        """Return a content filter of a session; raise what is wrong with it."""
        visible = None
        if asked:
            access = self.authorizer.access
            principal = access.principal(session.user, session.client_id)
            visible = partial(access.may_read_some, principal)
        owner = f"user {session.user}" if session.user is not None else session.address
        return self.contents.hold(owner, text, filter_, visible)

    def renew_content(self, session: Session, subscription: Subscription) -> bool:
        """Compile the content filter of a subscription by the types of now; False: it is wrong."""
        content = subscription.content
        if content is not None:
            try:
                subscription.content = self.hold_content(session, content.text, subscription.filter)
            except ContentError:
                return False
        return True
