"""Makes the authorizer of a set of definitions, and asks it what a situation opens, and to whom.

Rules that hold here:
- The settings in force are those of the definition `purpose-settings`, all of them; where
  there is none, the configured ones. A gateway and who asks beside it find them alike.
- A gateway follows changes one by one (`gateway.authorization.rules`); the outcome is the one
  that making the authorizer of the whole set afresh would have.
- The authorizer is asked which policies there are, compiled, and who everybody is.
- People are the users and clients whom definitions name. A condition that looks at more than
  the person and the subject cannot be answered without a message: such people are told apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from penstock.config.gateway import FilteringSettings, GatewaySettings
from penstock.definitions.access import (
    AccessDefinitions,
    list_claims,
    make_broker_topics,
    name_rule,
    scenarios_by_plan,
)
from penstock.definitions.set import DefinitionSet, load_check
from penstock.errors import UsageError, quote
from penstock.model import kinds
from penstock.policy.access.emergencies import SituationBoard
from penstock.policy.access.principals import Principal
from penstock.policy.access.rules import Policy
from penstock.policy.authorizer import Authorizer
from penstock.policy.capabilities import CapabilityBook
from penstock.policy.consent import NOBODY, DataSubjects, OptOutIndex, Prohibitions
from penstock.policy.interaction import InteractionEngine
from penstock.policy.purposes.engine import PurposeEngine
from penstock.policy.purposes.rights import DeclaredPurposes, PurposeClaims
from penstock.policy.purposes.settings import PurposeSettings


def configured_settings(filtering: FilteringSettings) -> PurposeSettings:
    """Return the settings of purposes that hold where no definition says otherwise."""
    return PurposeSettings(
        allow_without_reservation=not filtering.strict,
        claims_need_right=filtering.claims_need_right,
        filter_on_subscribe=filtering.mode == "subscribe",
        filter_on_publish=filtering.mode == "publish",
        filter_hybrid=filtering.mode == "hybrid",
        hybrid_partial=filtering.hybrid_partial,
        auto_persist=True,
    )


def settings_in_force(
    configured: PurposeSettings, body: Mapping[str, Any] | None
) -> PurposeSettings:
    """Return the settings of purposes that hold: what the definition names, else as configured.

    What it does not name stays: a definition about a cache must not open what is closed.
    """
    if body is None:
        return configured
    declared = kinds.PurposeSettings.model_validate({"name": "default", **body})
    named = declared.model_fields_set & {field.name for field in fields(PurposeSettings)}
    return replace(configured, **{name: getattr(declared, name) for name in named})


@dataclass(frozen=True, slots=True)
class RoleContext:
    """Under which circumstances roles are activated where nobody is connected."""

    now: int | None = None
    """Milliseconds since 1970; None: the present."""
    place: str | None = None
    chosen: frozenset[str] | None = None
    """The roles that a session would name; None: all that activate."""


def authorizer_of(
    gateway: GatewaySettings,
    definitions: DefinitionSet,
    opt_outs: OptOutIndex = NOBODY,
    roles: RoleContext | None = None,
    read_key: Callable[[], bytes] | None = None,
    home: Callable[[], str] | None = None,
) -> Authorizer:
    """Make what decides as a gateway with these settings and these opt-outs does."""
    return make_authorizer(
        definitions,
        configured_settings(gateway.filtering),
        open_mode=gateway.open_mode,
        defined_users=gateway.authentication.defined_users,
        opt_outs=opt_outs,
        roles=roles or RoleContext(place=gateway.place),
        read_key=read_key,
        home=home,
    )


def make_authorizer(
    definitions: DefinitionSet,
    configured: PurposeSettings | None = None,
    *,
    open_mode: bool = False,
    defined_users: bool = False,
    opt_outs: OptOutIndex = NOBODY,
    roles: RoleContext | None = None,
    read_key: Callable[[], bytes] | None = None,
    home: Callable[[], str] | None = None,
) -> Authorizer:
    """Make what decides under a set of definitions; roles are those of now, or as given."""
    declared_settings = definitions.get(kinds.PurposeSettings, "default")
    body = (
        declared_settings.model_dump(exclude_unset=True) if declared_settings is not None else None
    )
    purposes = PurposeEngine(settings_in_force(configured or PurposeSettings(), body))
    purposes.replace_reservations(
        (it.name, it.purposes) for it in definitions.of(kinds.Reservation).values()
    )
    declared = DeclaredPurposes()
    declared.take(definitions.definitions, definitions.definitions)
    access = AccessDefinitions(definitions).access
    context = roles or RoleContext()
    now = int(time.time() * 1000) if context.now is None else context.now
    access.roles.place, access.roles.supposed = context.place, context.chosen
    access.roles.advance(now)
    claims = PurposeClaims(list_claims(definitions), open_mode=open_mode)
    broker_topics = make_broker_topics(definitions, open_mode=open_mode)
    users = definitions.of(kinds.User)

    def keeps_out(user: str | None) -> bool:
        held = users.get(user) if user is not None else None
        return held.blocked if held is not None else defined_users and user is not None

    subjects = DataSubjects()
    subjects.put(definitions.of(kinds.Stream).values())
    return Authorizer(
        purposes,
        declared,
        access,
        claims,
        broker_topics,
        keeps_out,
        Prohibitions(subjects, opt_outs),
        make_interaction(definitions, read_key),
        capabilities=make_capabilities(definitions, home),
    )


def make_capabilities(
    definitions: DefinitionSet, home: Callable[[], str] | None = None
) -> CapabilityBook:
    """Make what asks for the say of other domains; who knows none of their types loads no keys.

    `home` returns the key of this domain. Where nobody knows it, all types are of others.
    """
    if not any(key.kind == kinds.EventType.kind for key in definitions.definitions):
        return CapabilityBook()
    compile_book = load_check("trust_checks:compile_capabilities")
    made: CapabilityBook = compile_book(definitions.definitions, home() if home else "")
    return made


def make_interaction(
    definitions: DefinitionSet, read_key: Callable[[], bytes] | None = None
) -> InteractionEngine:
    """Make what restricts and transforms; who has no such rules loads no masks."""
    if not any(key.kind in {"restriction", "transformation"} for key in definitions.definitions):
        return InteractionEngine()
    made: InteractionEngine = load_check("interaction:compile_interaction")(definitions, read_key)
    return made


def suppose_situations(
    definitions: DefinitionSet, situations: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Return supposed situations as scenario, subject, situation; all must exist.

    They are given by scenario and subject, `covid/patient-17`.
    """
    plans = definitions.of(kinds.Plan)
    known = {
        name: [situation.id for situation in plans[scenario.plan].situations]
        for name, scenario in definitions.of(kinds.Scenario).items()
    }
    found = []
    for instance, situation in situations.items():
        # Names and subjects may have slashes: the longest name that is known counts.
        fitting = [it for it in known if instance.startswith(f"{it}/")]
        scenario = max(fitting, key=len, default=None)
        if scenario is None or instance == f"{scenario}/":
            raise UsageError(
                f"{quote(instance)} names no scenario and subject",
                fix=f"write SCENARIO/SUBJECT; scenarios are {_list(known)}",
            )
        if situation not in known[scenario]:
            raise UsageError(
                f"the scenario {scenario!r} has no situation {quote(situation)}",
                fix=f"name one of {_list(known[scenario])}",
            )
        found.append((scenario, instance.removeprefix(f"{scenario}/"), situation))
    return found


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "not defined"


_USER = "user:"
_CLIENT = "client:"


@dataclass(frozen=True, slots=True)
class Grant:
    """An emergency policy that applies in a situation."""

    policy: str
    subject: str
    action: str
    filter: str
    when: str
    description: str
    exclusive: bool
    people: list[str] = field(default_factory=list)
    """Those to whom it grants now; clients with `client:` before their identifier."""
    undecided: list[str] = field(default_factory=list)
    """Those for whom it depends on the message."""


def list_grants(
    definitions: DefinitionSet, scenario: str, subject: str, situation: str
) -> list[Grant]:
    """Return the emergency policies that apply while a subject is in a situation."""
    board = SituationBoard([(scenario, subject, situation)])
    access = make_authorizer(definitions).access
    policies = {name_rule(it.key): it for it in definitions.of(kinds.EmergencyPolicy).values()}
    principals = {
        name: access.principal(*who) for name, who in sorted(_list_principals(definitions).items())
    }
    found = []
    for rule in access.emergency_policies():
        emergency = rule.emergency
        if emergency is None:
            continue
        involved = {
            name: principal
            for name, principal in principals.items()
            if emergency.find(board, subject, principal.attributes) is not None
        }
        if not involved and emergency.find(board, subject, {}) is None:
            continue
        policy = policies[rule.name]
        grant = Grant(
            policy.name,
            policy.subject,
            policy.allow,
            policy.filter,
            policy.when,
            policy.description,
            policy.exclusive,
        )
        about = _suppose(policy, subject)
        for name, principal in involved.items():
            if rule.subject not in principal.subjects:
                continue
            outcome = _suppose_grant(rule, principal, about)
            if outcome is True:
                grant.people.append(name)
            elif outcome is None:
                grant.undecided.append(name)
        found.append(grant)
    return found


def list_involved(definitions: DefinitionSet, scenario: str, subject: str) -> list[str] | None:
    """Return the people whom a scenario involves in a case; None where it is everybody."""
    chosen = definitions.of(kinds.Scenario)[scenario]
    filters = scenarios_by_plan(definitions)[chosen.plan]
    found = next(it for it in filters if it.name == scenario)
    if found.involves is None:
        return None
    access = make_authorizer(definitions).access
    case = found.case(subject)
    return [
        name
        for name, who in sorted(_list_principals(definitions).items())
        if found.involves.function(access.principal(*who).attributes, case) is True
    ]


def _suppose_grant(rule: Policy, principal: Principal, about: Mapping[str, Any]) -> bool | None:
    """Tell whether a policy would grant to somebody; None where it depends on the message."""
    roots = {"s": principal.attributes, "o": about, "e": {}, "t": {}}
    outcome: bool | None = rule.condition.function(*roots.values())
    wanted = rule.arguments
    if wanted is None or outcome is False:
        return outcome
    if any(it.function(*roots.values()) is None for it in wanted.expressions):
        return None
    return outcome if wanted.admits(principal.roles.relations[wanted.role], roots) else False


def _suppose(policy: kinds.EmergencyPolicy, subject: str) -> dict[str, Any]:
    """Return the object of a message about the subject, where the policy says how to find it."""
    root, _, name = (policy.about or "").strip().partition(".")
    return {name: subject} if root == "o" and name.isidentifier() else {}


def _list_principals(definitions: DefinitionSet) -> dict[str, tuple[str | None, str | None]]:
    """Return users and clients by the names they are told by."""
    found: dict[str, tuple[str | None, str | None]] = {}
    for name in _list_names(definitions):
        if name.startswith(_USER):
            user = name.removeprefix(_USER)
            found[user] = (user, None)
        elif name.startswith(_CLIENT):
            # A client counts beside its user, which its identifier begins with.
            client = name.removeprefix(_CLIENT)
            found[name] = (client.partition(":")[0], client)
    return found


def _list_names(definitions: DefinitionSet) -> Iterator[str]:
    for group in definitions.of(kinds.Group).values():
        yield from group.members
    yield from definitions.of(kinds.Attributes)
    for appointment in definitions.of(kinds.Appointment).values():
        yield appointment.holder
    for name, user in definitions.of(kinds.User).items():
        if user.roles:
            yield f"{_USER}{name}"
    for policy in definitions.of(kinds.EmergencyPolicy).values():
        yield policy.subject
