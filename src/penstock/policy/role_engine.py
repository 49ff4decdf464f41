"""The roles of everybody: appointments, sessions with what is active in them, and the time.

    put, remove, program ─┐
    advance(now) ─────────┼──▶ sessions concerned are stale ──▶ activate ──▶ ActiveRoles
    open(session, chosen) ┘

Rules that hold here:
- Who has not authenticated has no roles.
- A session remembers what was activated in it (`derivation`). Whoever holds this engine lets
  every stale session be activated again in the step that made it stale: a condition that
  failed for one step has failed. Without a session all conditions count each time.
- The dependency index leads from a holder to the sessions that an appointment concerns, so that
  a change costs what it concerns.
- No clock: `now` is told. Constraints on the time are looked at once a second: those that say the
  same of everybody once for all sessions, which are stale where one of them says otherwise.
- A choice of roles leaves out what they grant, never what limits them: without the choice they
  would be active, and so restrictions on them hold.
- An appointment that is not trusted, not yet valid or over is none.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from penstock.model.role_terms import ROLE_PREFIX, Constant, RoleTerm
from penstock.policy.decision import Considered
from penstock.policy.role_derivation import (
    Activation,
    ActiveRoles,
    Circumstances,
    Relation,
    RoleLimitError,
    derive,
)
from penstock.policy.role_program import APPOINTMENT, Fact, Program

SECOND: Final = 1000
MINUTE: Final = 60 * SECOND
_SPARE: Final = 1000
Who = tuple[str, str]
"""A user and a client identifier."""
NO_ROLES: Final = ActiveRoles()


class Appointment(NamedTuple):
    """A credential, who holds it, and when it counts, in milliseconds since 1970."""

    name: str
    credential: Fact
    holder: str
    valid_from: int | None = None
    valid_until: int | None = None

    def counts(self, now: int) -> bool:
        """Tell whether it is valid at a time."""
        return (self.valid_from is None or self.valid_from <= now) and (
            self.valid_until is None or now < self.valid_until
        )


@dataclass(slots=True)
class _Session:
    """One session: what was chosen, and what is active in it."""

    chosen: frozenset[str] | None
    active: ActiveRoles | None = None
    """None: nobody has looked yet."""
    groups: frozenset[str] = frozenset()


class RoleEngine:
    """Activates roles, and tells whom a change concerns."""

    def __init__(self) -> None:
        self.program = Program()
        self.now = 0
        self.place: str | None = None
        self.supposed: frozenset[str] | None = None
        """The roles that somebody without a session chooses; None: all."""
        self._assigned: dict[str, tuple[str, ...]] = {}
        self._appointments: dict[str, Appointment] = {}
        self._by_holder: dict[str, dict[str, Appointment]] = {}
        self._moments: list[tuple[int, str]] = []
        self._sessions: dict[Who, _Session] = {}
        self._by_holder_session: dict[str, set[Who]] = {}
        self._timed: set[Who] = set()
        self._own_timed: set[Who] = set()
        self._signs: tuple[bool, ...] | None = None
        """What constraints that say the same of everybody said when this second began."""
        self._looked: tuple[int, tuple[bool, ...]] | None = None
        self._stale: set[Who] = set()
        self._patterns: dict[str, dict[str, RoleTerm]] = {}
        self._timed_apart = False

    @property
    def in_use(self) -> bool:
        """Whether anybody can have a role here."""
        return bool(self.program.roles)

    # --- changes ---

    def replace(self, program: Program) -> None:
        """Take over roles, rules and domains."""
        self.program = program
        self._signs = self._looked = None
        self.invalidate()

    def watch(self, terms: Iterable[tuple[str, RoleTerm]]) -> None:
        """Say by which subjects with arguments definitions mean people: text and term."""
        self._patterns = {}
        for text, term in terms:
            self._patterns.setdefault(term.name, {})[text] = term

    def assign(self, user: str, roles: tuple[str, ...]) -> None:
        """Say which roles a user has without conditions."""
        if self._assigned.get(user, ()) != roles:
            self._assigned.pop(user, None)
            if roles:
                self._assigned[user] = roles
            self.touch(f"user:{user}")

    def put(self, appointment: Appointment) -> None:
        """Add an appointment, in the place of one with its name."""
        self.remove(appointment.name)
        self._appointments[appointment.name] = appointment
        self._by_holder.setdefault(appointment.holder, {})[appointment.name] = appointment
        for moment in (appointment.valid_from, appointment.valid_until):
            if moment is not None and moment > self.now:
                heapq.heappush(self._moments, (moment, appointment.name))
        if len(self._moments) > _SPARE + 4 * len(self._appointments):
            # Moments of appointments that were changed meanwhile are dropped.
            self._moments = [
                (moment, it.name)
                for it in self._appointments.values()
                for moment in (it.valid_from, it.valid_until)
                if moment is not None
            ]
            heapq.heapify(self._moments)
        self.touch(appointment.holder)

    def remove(self, name: str) -> None:
        """Remove an appointment, if there is such a one."""
        held = self._appointments.pop(name, None)
        if held is not None:
            theirs = self._by_holder[held.holder]
            del theirs[name]
            if not theirs:
                del self._by_holder[held.holder]
            self.touch(held.holder)

    def touch(self, holder: str) -> None:
        """Let the sessions of a user, or of a group's members, be activated again."""
        self._stale |= self._by_holder_session.get(holder, set())

    def invalidate(self) -> None:
        """Let all sessions be activated again: who everybody is may have changed."""
        self._stale = set(self._sessions)

    def advance(self, now: int) -> bool:
        """Tell the time; say whether somebody without a session may have other roles now.

        Sessions that it may concern are stale.
        """
        if now <= self.now:
            return False
        another = now // SECOND != self.now // SECOND
        self.now = now
        if self._timed and another:
            signs = self._look_at_time()
            self._stale |= self._timed if signs != self._signs else self._own_timed
            self._signs = signs
        passed = self._timed_apart
        self._timed_apart = False
        while self._moments and self._moments[0][0] <= now:
            _, name = heapq.heappop(self._moments)
            held = self._appointments.get(name)
            if held is not None:
                self.touch(held.holder)
                passed = True
        return passed

    def _look_at_time(self) -> tuple[bool, ...]:
        """Return what constraints that say the same of everybody say now."""
        looked = self._looked
        if looked is None or looked[0] != self.now:
            e = self._environment()
            said = tuple([it.holds({}, e, {}) is True for it in self.program.common_times])
            looked = self._looked = (self.now, said)
        return looked[1]

    def _environment(self) -> dict[str, Any]:
        e: dict[str, Any] = {"time": datetime.fromtimestamp(self.now / 1000, UTC)}
        if self.place is not None:
            e["place"] = self.place
        return e

    @property
    def due(self) -> int | None:
        """When `advance` is to be called next; None: when something changes."""
        moments = [self._moments[0][0]] if self._moments else []
        if self._timed:
            moments.append((self.now // SECOND + 1) * SECOND)
        return min(moments, default=None)

    @property
    def due_for_all(self) -> int | None:
        """When roles of anybody may change, with a session or without: a minute for constraints."""
        moments = [self._moments[0][0]] if self._moments else []
        if any(rule.timed for rule in self.program.rules):
            moments.append(self.now + MINUTE)
        return min(moments, default=None)

    def adopt(self, other: RoleEngine) -> None:
        """Take over the time, the place and the sessions of another; what was active is not."""
        self.now, self.place = other.now, other.place
        for (user, client), session in other._sessions.items():
            self.open(user, client, session.chosen)

    # --- sessions ---

    def open(self, user: str, client: str, chosen: Iterable[str] | None) -> None:
        """Begin a session; `chosen` are the roles to use, None: all that activate."""
        self.close(user, client)
        wanted = None if chosen is None else frozenset(chosen)
        self._sessions[user, client] = _Session(wanted)
        self._stale.add((user, client))
        self._by_holder_session.setdefault(f"user:{user}", set()).add((user, client))

    def close(self, user: str, client: str) -> None:
        """End a session: what was active in it is forgotten."""
        who = (user, client)
        session = self._sessions.pop(who, None)
        if session is None:
            return
        self._timed.discard(who)
        self._own_timed.discard(who)
        self._stale.discard(who)
        for holder in (f"user:{user}", *(f"group:{it}" for it in session.groups)):
            held = self._by_holder_session.get(holder)
            if held is not None:
                held.discard(who)
                if not held:
                    del self._by_holder_session[holder]

    def stale(self) -> list[Who]:
        """Return the sessions that have to be activated again."""
        return list(self._stale)

    def held(self, user: str, client: str) -> ActiveRoles | None:
        """Return what was active in a session when it was looked at last; None: it never was."""
        return self._sessions[user, client].active

    def activate(
        self,
        user: str | None,
        client: str | None,
        groups: frozenset[str],
        attributes: Mapping[str, Any],
        *,
        apart: bool = False,
    ) -> ActiveRoles:
        """Return the roles of somebody now, in their session if they have one.

        `apart`: whoever asks supposes other attributes; no session knows of it.
        """
        if user is None or not self.in_use:
            return NO_ROLES
        who = (user, client or "")
        session = self._sessions.get(who) if not apart else None
        if session is not None and session.active is not None and who not in self._stale:
            return session.active
        known = self._circumstances(user, groups, attributes)
        if session is None:
            found = self._derive_both(known, (), self.supposed)
            self._timed_apart = self._timed_apart or found.timed
            return found
        before = session.active.activations if session.active is not None else ()
        found = self._derive_both(known, before, session.chosen)
        session.active = found
        self._stale.discard(who)
        (self._timed.add if found.timed else self._timed.discard)(who)
        # Who was looked at in the midst of a second may have seen what no second begins with.
        apart = found.timed and (found.timed_apart or self._look_at_time() != self._signs)
        (self._own_timed.add if apart else self._own_timed.discard)(who)
        for group in groups - session.groups:
            self._by_holder_session.setdefault(f"group:{group}", set()).add(who)
        session.groups = groups | session.groups
        return found

    def subjects(self, active: ActiveRoles) -> Iterator[str]:
        """Yield every text by which definitions can mean who has these roles."""
        for name in active.names():
            yield f"{ROLE_PREFIX}{name}"
            for text, term in self._patterns.get(name, {}).items():
                if matches(active.relations[name], term):
                    yield text

    def explain(self, active: ActiveRoles, roles: Collection[str]) -> Iterator[Considered]:
        """Tell of roles by which rules they are active, or why they are not."""
        for name in sorted(roles):
            relation = active.relations.get(name)
            if relation is not None:
                used = active.carried is None or name in active.carried
                ways = ", ".join(sorted(active.by.get(name, ())))
                says = f"active by {ways}, {len(relation.facts)} instance(s)"
                yield Considered(
                    f"role {name}", says if used else "active, but not chosen for the session"
                )
            elif name in active.barred:
                says = "not active: it and another active role exclude each other"
                yield Considered(f"role {name}", says)
            elif active.trouble:
                yield Considered(f"role {name}", f"not active: {active.trouble}")
            else:
                yield Considered(f"role {name}", f"not active: {self._missing(active, name)}")

    def _missing(self, active: ActiveRoles, role: str) -> str:
        rules = self.program.by_role.get(role, ())
        if not rules:
            return "no activation rule leads to it, and it is not assigned"
        told = []
        for rule in rules:
            absent = [
                f"{kind} {name}"
                for kind, name in sorted(rule.needs)
                if kind != APPOINTMENT and name not in active.relations
            ]
            why = f"needs {', '.join(absent)}" if absent else "some condition does not hold"
            told.append(f"activation-rule {rule.name} {why}")
        return "; ".join(told)

    def _circumstances(
        self, user: str, groups: frozenset[str], attributes: Mapping[str, Any]
    ) -> Circumstances:
        holders = [f"user:{user}", *(f"group:{name}" for name in sorted(groups))]
        held: dict[str, Relation] = {}
        now = self.now
        for holder in holders:
            for appointment in self._by_holder.get(holder, {}).values():
                if appointment.counts(now):
                    name, values = appointment.credential
                    relation = held.get(name)
                    if relation is None:
                        relation = held[name] = Relation()
                    relation.add(values)
        return Circumstances(
            held,
            self._assigned.get(user, ()),
            self.program.domains_of(["anyone", *holders]),
            attributes,
            self._environment(),
        )

    def _derive_both(
        self,
        known: Circumstances,
        before: Iterable[Activation],
        chosen: Iterable[str] | None,
    ) -> ActiveRoles:
        """Find what counts, and where something was chosen what there would be without."""
        found = self._derive(known, before, chosen)
        if chosen is not None:
            everything = found.unchosen = self._derive(known, (), None)
            found.timed = found.timed or everything.timed
            found.timed_apart = found.timed_apart or everything.timed_apart
        return found

    def _derive(
        self,
        known: Circumstances,
        before: Iterable[Activation],
        chosen: Iterable[str] | None,
    ) -> ActiveRoles:
        try:
            return derive(self.program, known, before, chosen)
        except RoleLimitError as error:
            return ActiveRoles(trouble=str(error))


def matches(relation: Relation, term: RoleTerm) -> bool:
    """Tell whether some instance has the constants of a term at their places."""
    if term.arguments is None:
        return bool(relation.facts)
    places = tuple(at for at, it in enumerate(term.arguments) if isinstance(it, Constant))
    wanted = tuple(it.value for it in term.arguments if isinstance(it, Constant))
    return any(True for _ in relation.find(places, wanted))
