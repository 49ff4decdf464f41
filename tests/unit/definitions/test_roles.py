"""Roles in the authorizer: who is meant, why, and what a change of the definitions changes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest

from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.access import (
    AccessDefinitions,
    find_right,
    find_subjects,
    refuse_overload,
)
from penstock.definitions.authorizer import RoleContext, make_authorizer
from penstock.definitions.roles import SUBJECT_KINDS
from penstock.errors import InvalidError
from penstock.model.definition import KINDS, Reference
from penstock.model.document import Document, Key
from penstock.model.role_terms import ROLE_PREFIX
from penstock.policy import role_derivation
from penstock.policy.access.requests import Message, make_request
from tests.support.scale import scaled

HOUSE = """
kind: vocabulary
name: v
subject: {uid: string, activeRoles: list(string), ward: string}
object: {patientId: string}
---
{kind: object, name: o, topics: home/+patientId/+}
---
{kind: enforcement, name: default, policies: required}
---
{kind: role, name: staff}
---
{kind: role, name: doctor, parameters: [doctor], includes: [staff]}
---
{kind: role, name: treating, parameters: [doctor, patient]}
---
{kind: role, name: nurse, parameters: [ward], claim: [care]}
---
{kind: domain, name: house, manager: "user:dora", members: ["group:wards"]}
---
{kind: group, name: wards, members: ["user:nell"]}
---
{kind: attributes, name: "user:nell", values: {ward: w1}}
---
kind: activation-rule
name: doctors
role: doctor(d)
bind: {d: s.uid}
requires: [{appointment: qualified(d), membership: true}]
---
kind: activation-rule
name: treating
role: treating(d, p)
requires:
- {role: doctor(d), membership: true}
- {appointment: "treats(d, p)", membership: true}
- {when: "e.time.hour() < 22", membership: true}
---
kind: activation-rule
name: nurses
domain: house
role: nurse(w)
bind: {w: s.ward}
---
{kind: authorisation-rule, name: read, role: "treating(_, o.patientId)", subscribe: [home/+/rx]}
---
{kind: policy, name: w1, subject: 'role:nurse("w1")', filter: home/+/bed, allow: read}
---
{kind: policy, name: all, subject: anyone, filter: home/+/pulse, allow: read}
---
kind: preference
name: mine
user: p1
filter: home/p1/pulse
readers: ['role:treating(_, "p1")', "role:staff"]
---
{kind: right, name: chief, subjects: ["role:staff"], administer: true}
---
{kind: authorisation-rule, name: glass, role: nurse(_), administer: true}
---
{kind: appointment, name: q, credential: 'qualified("ann")', holder: "user:ann"}
---
{kind: appointment, name: t, credential: 'treats("ann", "p1")', holder: "user:ann"}
"""
DOCUMENTS = {it.key: it for it in read_text(HOUSE, "house").documents}
DAY = 12 * 3_600_000


def build(documents: dict[Key, Document] = DOCUMENTS, *, trusted: bool = True) -> DefinitionSet:
    return DefinitionSet.build(documents.values(), trusts=lambda _: trusted)


def ask(definitions: DefinitionSet, user: str, topic: str, **more: Any) -> bool:
    roles = RoleContext(more.pop("now", DAY), chosen=more.pop("chosen", None))
    authorizer = make_authorizer(definitions, roles=roles)
    request = make_request(topic, user=user, **more)
    decision = authorizer.authorize(request)
    assert authorizer.explain(request).allowed == decision.allowed
    return decision.allowed


def test_parameters_unify_with_what_a_message_is_about() -> None:
    house = build()
    assert ask(house, "ann", "home/p1/rx")
    assert not ask(house, "ann", "home/p2/rx")
    assert not ask(house, "eve", "home/p1/rx")
    assert not ask(house, "ann", "home/p1/rx", now=22 * 3_600_000)
    assert not ask(house, "ann", "home/p1/rx", chosen=frozenset({"doctor"}))
    assert ask(house, "ann", "home/p1/rx", chosen=frozenset({"treating"}))
    assert not ask(build(trusted=False), "ann", "home/p1/rx")


def test_domains_bindings_and_values_as_subjects() -> None:
    house = build()
    assert ask(house, "nell", "home/p9/bed")
    assert not ask(house, "eve", "home/p9/bed")
    moved = Document("attributes", "user:nell", {"values": {"ward": "w2"}})
    assert not ask(house.change([moved]), "nell", "home/p9/bed")


@pytest.mark.parametrize("who", ['role:nurse("w1")', 'role:nurse( "w1" )', "role:nurse(_)"])
def test_restrictions_and_transformations_are_for_roles_with_values(who: str) -> None:
    """What limits somebody by a value of a role limits them, and nobody else."""
    house = build()
    masks = [{"anonymizer": "suppression", "keys": ["pulse"]}]
    changed = {"filter": "home/+/bed", "stream": "s", "anonymizers": masks}
    for kind, body in (
        ("restriction", {"filter": "home/+/bed", "deny": "true"}),
        ("transformation", changed),
    ):
        fields = [{"name": "pulse", "type": "string"}]
        more = [Document("stream", "s", {"fields": fields})]
        for others, meant in ((who, True), ('role:nurse("w2")', False)):
            rule = Document(kind, "rule", {**body, "subject": others})
            spared = Document(kind, "rule", {**body, "exempt": [others]})
            for document, applies in ((rule, meant), (spared, not meant)):
                authorizer = make_authorizer(house.change([*more, document]))
                decision = authorizer.authorize(make_request("home/p9/bed", user="nell"))
                left_alone = decision.allowed and decision.reshaping is None
                assert left_alone is not applies, (kind, document.body)


def test_every_kind_that_names_roles_as_subjects_is_known() -> None:
    """Who has a role with values is found by the texts that definitions mean them by."""

    def markers(annotation: Any) -> Iterator[Any]:
        yield from getattr(annotation, "__metadata__", ())
        for inner in get_args(annotation):
            yield from markers(inner)

    naming = set()
    for kind, model in KINDS.items():
        hints = get_type_hints(model, include_extras=True)
        named = (it for hint in hints.values() for it in markers(hint))
        if any(isinstance(it, Reference) and it.prefix == ROLE_PREFIX for it in named):
            naming.add(kind)
    assert naming | {"authorisation-rule"} == SUBJECT_KINDS


def appointments(of: str, holder: str, count: int) -> list[Document]:
    return [
        Document("appointment", f"{of}-{at}", {"credential": f'{of}("{at}")', "holder": holder})
        for at in range(count)
    ]


@pytest.mark.parametrize("holder", ["user:ann", "group:wards"])
def test_a_rule_by_which_somebody_has_too_many_roles_is_refused(holder: str) -> None:
    """Two conditions that share no variable: every bed with every ward."""
    rule = Document(
        "activation-rule",
        "all-of-all",
        {
            "role": "treating(w, b)",
            "requires": [{"appointment": "in(w)"}, {"appointment": "at(b)"}],
        },
    )
    few = [*appointments("in", holder, 100), *appointments("at", holder, 100)]
    many = appointments("in", holder, 400)
    house = build().change([rule, *few])
    refuse_overload(house, [rule.key])
    assert not ask(house, "ann", "home/p1/rx", now=23 * 3_600_000)
    more = appointments("at", holder, 400)
    for documents in ([*many, *more], [rule, *many, *more]):
        with pytest.raises(InvalidError) as caught:
            refuse_overload(house.change(documents), [it.key for it in documents])
        assert "role treating: more than 20000 role instances" in str(caught.value)
        assert "ann" not in str(caught.value)
        assert "share variables" in str(caught.value)
    # What is not about roles looks at nothing.
    refuse_overload(house.change([*many, *more]), [Key("policy", "all")])


def test_what_limits_a_role_limits_those_whose_roles_nobody_can_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where there are too many roles nothing is granted by one, and everything limited."""
    rule = Document("restriction", "rule", {"filter": "#", "subject": "role:staff", "deny": "true"})
    house = build().change([rule])

    def passes(user: str, chosen: frozenset[str] | None = None) -> bool:
        return ask(house, user, "home/p9/pulse", chosen=chosen)

    assert {user: passes(user) for user in ("ann", "eve", "nell")} == {
        "ann": False,
        "eve": True,
        "nell": True,
    }
    assert not passes("ann", frozenset({"doctor"}))
    assert not passes("ann", frozenset({"treating"}))
    monkeypatch.setattr(role_derivation, "INSTANCE_LIMIT", 0)
    assert not passes("nell")
    assert not passes("nell", frozenset({"nurse"}))
    assert passes("eve")  # nobody has anything for her to have too much of


def test_preferences_name_roles() -> None:
    house = build()
    told = {
        user: ask(house, user, "home/p1/pulse", publisher="p1") for user in ("ann", "eve", "nell")
    }
    assert told == {"ann": True, "eve": False, "nell": False}
    assert ask(house, "eve", "home/p2/pulse", publisher="p2")


def test_the_explanation_names_the_role_and_the_way_to_it() -> None:
    authorizer = make_authorizer(build(), roles=RoleContext(DAY))
    told = authorizer.explain(make_request("home/p1/rx", user="ann"))
    assert told.rule == "authorisation-rule read: subscribe home/+/rx"
    effects = {it.rule: it.effect for it in told.considered}
    assert effects["role treating"] == "active by activation-rule treating, 1 instance(s)"
    told = authorizer.explain(make_request("home/p1/rx", user="eve"))
    effects = {it.rule: it.effect for it in told.considered}
    assert effects["role treating"] == ("not active: activation-rule treating needs role doctor")
    assert "ann" not in str(told)


def test_rights_are_privileges_of_roles() -> None:
    # By the clock of the machine: at any hour.
    text = HOUSE.replace('"e.time.hour() < 22"', '"e.time.hour() < 24"')
    house = build({it.key: it for it in read_text(text, "house").documents})
    assert find_right(house, "ann", lambda it: it.administer) == "chief"
    assert find_right(house, "nell", lambda it: it.administer) == "glass"
    assert find_right(house, "eve", lambda it: it.administer) is None
    assert {"role:staff", 'role:treating(_, "p1")'} <= find_subjects(house, "ann")
    blocked = house.change([Document("user", "ann", {"blocked": True})])
    assert find_subjects(blocked, "ann") == frozenset()


@pytest.mark.parametrize("seed", range(scaled(8)))
def test_a_changed_set_gives_the_roles_that_compiling_it_afresh_would(seed: int) -> None:
    chance = random.Random(seed)
    held: dict[Key, Document] = {}
    definitions = DefinitionSet.empty(lambda _: True)
    compiled = AccessDefinitions()
    optional = [
        key
        for key in DOCUMENTS
        if key.kind in {"appointment", "policy", "preference", "activation-rule", "attributes"}
        or key.name in {"read", "glass", "chief"}
    ]
    for _ in range(12):
        wanted = dict(DOCUMENTS)
        for key in optional:
            if chance.random() < 0.4:
                del wanted[key]
        put = [it for key, it in wanted.items() if held.get(key) != it]
        gone = [key for key in held if key not in wanted]
        definitions = definitions.change(put, gone)
        compiled.take(definitions, [*(it.key for it in put), *gone])
        held = wanted
        fresh = AccessDefinitions(definitions)
        for access in (compiled.access, fresh.access):
            access.roles.advance(DAY)
        for user in ("ann", "nell", "eve"):
            one, other = (it.access.principal(user, None) for it in (compiled, fresh))
            assert one.roles.instances() == other.roles.instances()
            assert set(one.subjects) == set(other.subjects)
            for topic in ("home/p1/rx", "home/p1/bed", "home/p1/pulse"):
                message = Message(topic, {}, user="p1")
                said = [
                    it.access.decide("read", who, message, {}, make_request(topic).situations)
                    for it, who in ((compiled, one), (fresh, other))
                ]
                assert said[0] == said[1]
