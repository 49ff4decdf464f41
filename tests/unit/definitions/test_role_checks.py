"""Roles, rules, appointments and domains that are refused, with the place and the fix."""

from __future__ import annotations

import pytest

from penstock.definitions import DefinitionSet, read_text
from penstock.errors import InvalidError

GROUND = """
{kind: vocabulary, name: v, subject: {uid: string, activeRoles: list(string), level: int},
 object: {patientId: string, room: int}}
---
{kind: enforcement, name: default, policies: required}
---
{kind: role, name: staff}
---
{kind: role, name: doctor, parameters: [doctor]}
---
{kind: role, name: treating, parameters: [doctor, patient]}
---
{kind: domain, name: hospital, manager: "user:dora", members: [anyone]}
---
{kind: domain, name: hospital/ward, parent: hospital, manager: "user:wim"}
---
{kind: domain, name: bank, manager: "user:ben"}
---
{kind: role, name: nurse, domain: hospital}
---
{kind: activation-rule, name: known, role: doctor(d), requires: [{appointment: qualified(d)}]}
---
"""


APPOINTED = "kind: appointment, name: a, credential: q, holder: 'user:a'"


def refuse(text: str) -> str:
    with pytest.raises(InvalidError) as caught:
        DefinitionSet.build(read_text(GROUND + text, "x").documents)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("role: doctor(d), requires: [{role: staff}]", "nothing gives 'd' a value"),
        ("role: doctor(_), requires: [{role: staff}]", "is _, and a role has values"),
        ("role: doctor(s.uid), requires: [{role: staff}]", "activated without a message"),
        ("role: doctor, requires: [{role: staff}]", "has 1 parameters, not 0"),
        ("role: 'doctor(_, _)', requires: [{role: staff}]", "has 1 parameters, not 2"),
        ("role: staff, requires: [{role: doctor}]", "has 1 parameters, not 0"),
        ("role: staff, requires: [{role: nobody}]", "there is no role 'nobody'"),
        ("role: staff, requires: [{role: staf}]", "did you mean 'staff'?"),
        ("role: staff", "everybody who logs in would have the role"),
        ("role: staff, domain: hospital", "everybody who logs in would have the role"),
        ("role: doctor(d), bind: {d: s.uid}", "everybody who logs in would have the role"),
        (
            "role: doctor(d), domain: hospital, bind: {d: s.uid}",
            "everybody who logs in would have the role",
        ),
        ('role: staff, requires: [{when: "r.x == s.uid"}]', "has no field 'x'"),
        ('role: staff, requires: [{when: "s.level"}]', "bool is asked for"),
        ('role: staff, requires: [{when: "o.room > 1"}]', "unknown name 'o'"),
        ("role: staff, bind: {x: s.level}, requires: [{role: staff}]", "string is asked for"),
        (
            """role: staff, requires: [{when: '"a" in s.activeRoles'}]""",
            "cannot depend on s.activeRoles",
        ),
        ("role: staff, requires: [{role: staff}]", "needs itself: staff → staff"),
        ("role: staff, requires: [{role: staff, when: 'true'}]", "one thing"),
        ("role: nurse, requires: [{role: staff}]", "of the domain 'hospital'"),
        ("role: nurse, domain: bank, requires: [{role: staff}]", "of the domain 'hospital'"),
        ("role: staff, domain: park, requires: [{role: doctor(_)}]", "no domain 'park'"),
    ],
)
def test_activation_rules(text: str, says: str) -> None:
    assert says in refuse(f"{{kind: activation-rule, name: r, {text}}}")


@pytest.mark.parametrize(
    "text",
    [
        'role: doctor(d), bind: {d: s.uid}, requires: [{when: "true"}]',
        "role: doctor(d), bind: {d: s.ward}",
        "role: staff, domain: hospital/ward",
    ],
)
def test_rules_for_some_or_with_a_word_that_all_are_meant(text: str) -> None:
    rule = f"{{kind: activation-rule, name: r, {text}}}"
    more = "{kind: vocabulary, name: w, subject: {ward: string}}"
    DefinitionSet.build(read_text(f"{GROUND}{rule}\n---\n{more}", "x").documents)


def test_mutual_prerequisites_are_named_in_order() -> None:
    told = refuse(
        "{kind: activation-rule, name: r1, role: staff, requires: [{role: doctor(_)}]}\n---\n"
        "{kind: activation-rule, name: r2, role: doctor(x), requires: [{role: staff},"
        " {appointment: a(x)}]}"
    )
    assert "doctor → staff → doctor" in told
    assert "remove one of these steps" in told


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('kind: appointment, name: a, credential: qualified(x), holder: "user:a"', "in quotes"),
        ("kind: appointment, name: a, credential: 'q(\"x\")', holder: anyone", "user:NAME or"),
        ("kind: appointment, name: a, credential: 'q(\"x\")', holder: 'client:c'", "user:NAME or"),
        ("kind: appointment, name: a, credential: 'q(\"x\")', holder: 'group:g'", "no group 'g'"),
        (
            "kind: appointment, name: a, credential: 'qualified(\"x\", \"y\")', holder: 'user:a'",
            "the activation-rule 'known' asks for 1",
        ),
        (
            "kind: appointment, name: a, credential: q, holder: 'user:a', valid_until: soon",
            "is not a timestamp",
        ),
        (f"{APPOINTED}, valid_until: '2026-01-01'", "with its offset"),
        (
            f"{APPOINTED}, valid_from: '2026-01-02T00:00:00Z', valid_until: '2026-01-01T00:00:00Z'",
            "ends before it begins",
        ),
        ("kind: domain, name: park, parent: park, manager: 'user:b'", "refers to itself"),
        ("kind: domain, name: d, manager: 'user:b', members: ['client:c']", "has no roles"),
        ("kind: role, name: r, parameters: [a, a]", "two parameters are called"),
        ("kind: role, name: r, parameters: ['a/b']", "use letters"),
        ("kind: role, name: r, includes: [treating], parameters: [doctor]", "'patient'"),
        ("kind: user, name: u, roles: [doctor]", "has parameters"),
        ("kind: attributes, name: 'role:staff'", "user:NAME"),
        ("kind: group, name: g, members: ['role:staff']", "user:NAME or client:ID"),
    ],
)
def test_appointments_domains_roles_and_users(text: str, says: str) -> None:
    assert says in refuse(f"{{{text}}}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("subject: 'role:nobody', filter: a, allow: read", "no role 'nobody'"),
        ("subject: 'role:doctor(_, _)', filter: a, allow: read", "has 1 parameters, not 2"),
        ("subject: 'role:doctor(x)', filter: a, allow: read", "'x' is a variable"),
        ("subject: 'role:doctor(o.room)', filter: a, allow: read", "string is asked for"),
        ("subject: 'role:doctor(o.nothing)', filter: a, allow: read", "no field 'nothing'"),
    ],
)
def test_subjects_of_policies(text: str, says: str) -> None:
    assert says in refuse(f"{{kind: policy, name: p, {text}}}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind: right, name: r, subjects: ['role:doctor(o.patientId)'], administer: true", "none"),
        ("kind: right, name: r, subjects: ['role:doctor(_, _)'], administer: true", "not 2"),
        ("kind: preference, name: p, user: ann, filter: a", "limits nobody"),
        ("kind: preference, name: p, user: ann, filter: a, readers: ['role:x']", "no role 'x'"),
        ("kind: authorisation-rule, name: a, role: staff", "gives nothing"),
        ("kind: authorisation-rule, name: a, role: doctor(d), subscribe: [x]", "nothing binds it"),
        ("kind: authorisation-rule, name: a, role: nurse, subscribe: [x]", "of the domain"),
        (
            "kind: authorisation-rule, name: a, role: doctor(o.patientId), administer: true",
            "is given without a message",
        ),
        (
            "kind: authorisation-rule, name: a, role: staff, administer: true, when: 's.level > 1'",
            "has no condition",
        ),
    ],
)
def test_other_subjects_and_authorisation_rules(text: str, says: str) -> None:
    assert says in refuse(f"{{{text}}}")


def test_rules_of_domains_below_use_roles_of_those_above() -> None:
    DefinitionSet.build(
        read_text(
            GROUND + "{kind: activation-rule, name: r, role: nurse, domain: hospital/ward,"
            " requires: [{role: staff}]}\n---\n"
            "{kind: authorisation-rule, name: a, role: nurse, domain: hospital/ward,"
            " subscribe: [x]}\n---\n{kind: right, name: r, subjects: ['role:doctor(\"a\")'],"
            " administer: true, break_glass: []}",
            "x",
        ).documents
    )
