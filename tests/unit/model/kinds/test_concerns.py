"""What kinds of definitions are for: each says so, and nobody else keeps lists."""

from __future__ import annotations

import pytest

from penstock.model.kinds import KINDS, Concern, kinds_of


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_concerns_something(kind: str) -> None:
    assert KINDS[kind].concerns


def test_rules_and_settings_are_a_part_of_access() -> None:
    assert kinds_of(Concern.RULES) | kinds_of(Concern.SETTINGS) < kinds_of(Concern.ACCESS)


@pytest.mark.parametrize(
    ("concern", "kinds"),
    [
        (Concern.PURPOSES, {"purpose", "reservation", "presubscription", "purpose-settings"}),
        (Concern.COMMANDS, {"group", "right", "authorisation-rule"}),
        (
            Concern.CLAIMS,
            {
                *("group", "right", "role", "user"),
                *("activation-rule", "authorisation-rule", "appointment", "domain"),
            },
        ),
        (Concern.ROLES, {"role", "user", "activation-rule", "appointment", "domain"}),
        (Concern.RULES, {"policy", "emergency-policy", "preference", "authorisation-rule"}),
        (Concern.SETTINGS, {"enforcement", "plan", "scenario"}),
        (
            Concern.EVENTS,
            {"event", "action", "plan", "scenario", "vocabulary", "group", "attributes"},
        ),
        (Concern.VIEWS, {"stream", "view", "hierarchy", "transformation"}),
        (Concern.INTERACTION, {"restriction", "table", "transformation"}),
        (Concern.TRUST, {"event-type", "capability", "revocation-list"}),
        (Concern.KAFKA, {"user", "role", "view", "stream"}),
    ],
)
def test_kinds_take_part_in_what_they_are_for(concern: Concern, kinds: set[str]) -> None:
    assert kinds_of(concern) == kinds
