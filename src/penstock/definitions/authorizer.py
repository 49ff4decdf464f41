"""Makes the authorizer of a set of definitions, and says which settings of purposes hold.

Rules that hold here:
- The settings in force are those of the definition `purpose-settings`, all of them; where
  there is none, the configured ones. A gateway and who asks beside it find them alike.
- A gateway follows changes one by one (`gateway.authorization.rules`); the outcome is the one
  that making the authorizer of the whole set afresh would have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from penstock.config.sections.gateway import FilteringSettings, GatewaySettings
from penstock.definitions.access import AccessDefinitions, list_claims, make_broker_topics
from penstock.definitions.set import DefinitionSet
from penstock.errors import UsageError, quote
from penstock.model import kinds
from penstock.policy.authorizer import Authorizer
from penstock.policy.consent.data_subjects import DataSubjects
from penstock.policy.consent.opt_outs import NOBODY, OptOutIndex
from penstock.policy.consent.prohibitions import Prohibitions
from penstock.policy.purposes.claims import PurposeClaims
from penstock.policy.purposes.declared_purposes import DeclaredPurposes
from penstock.policy.purposes.engine import PurposeEngine
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
    """Return the settings of purposes that hold: the definition's, or else those configured."""
    if body is None:
        return configured
    declared = kinds.PurposeSettings.model_validate({"name": "default", **body})
    return PurposeSettings(
        **{field.name: getattr(declared, field.name) for field in fields(PurposeSettings)}
    )


def authorizer_of(
    gateway: GatewaySettings, definitions: DefinitionSet, opt_outs: OptOutIndex = NOBODY
) -> Authorizer:
    """Make what decides as a gateway with these settings and these opt-outs does."""
    return make_authorizer(
        definitions,
        configured_settings(gateway.filtering),
        open_mode=gateway.open_mode,
        defined_users=gateway.authentication.defined_users,
        opt_outs=opt_outs,
    )


def make_authorizer(
    definitions: DefinitionSet,
    configured: PurposeSettings | None = None,
    *,
    open_mode: bool = False,
    defined_users: bool = False,
    opt_outs: OptOutIndex = NOBODY,
) -> Authorizer:
    """Make what decides under a set of definitions."""
    declared_settings = definitions.get(kinds.PurposeSettings, "default")
    body = declared_settings.model_dump() if declared_settings is not None else None
    purposes = PurposeEngine(settings_in_force(configured or PurposeSettings(), body))
    purposes.replace_reservations(
        (it.name, it.purposes) for it in definitions.of(kinds.Reservation).values()
    )
    declared = DeclaredPurposes()
    declared.take(definitions.definitions, definitions.definitions)
    access = AccessDefinitions(definitions).access
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
    )


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
