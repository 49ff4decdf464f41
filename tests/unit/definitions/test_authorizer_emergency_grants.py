from __future__ import annotations

import pytest

from penstock.definitions import DefinitionSet, read_text
from penstock.definitions.authorizer import list_grants
from penstock_lab.demo.nursing_home.definitions import read_people, read_rules

MORE = """
kind: emergency-policy
name: nurse/at-night
subject: group:medical_personnel
filter: location
allow: read
when: t.topic.contains("location") && e.time < timestamp("2030-01-01T00:00:00Z")
plan: covid-19
about: o.patientId
---
kind: emergency-policy
name: everybody/anything
subject: anyone
filter: notice
allow: read
plan: pulmonary-issues
any_object: true
---
kind: emergency-policy
name: pager/notices
subject: client:pager-7
filter: notice
allow: read
plan: pulmonary-issues
situations: [DyspneaOxygen]
about: o.patientId
---
kind: emergency-policy
name: doctor-on-call/notices
subject: user:doctor-on-call
filter: notice
allow: read
plan: pulmonary-issues
situations: [DyspneaOxygen]
about: o.patientId
"""


@pytest.fixture(scope="module")
def definitions() -> DefinitionSet:
    return DefinitionSet.build([*read_rules(), *read_people(), *read_text(MORE).documents])


def test_a_severe_case_opens_what_table_7_says(definitions: DefinitionSet) -> None:
    grants = {it.policy: it for it in list_grants(definitions, "covid", "patient-1", "Severe")}
    assert set(grants) == {
        "medical_personnel/read-location",
        "external_specialist/read-physiological",
        "relative/read-bulletin",
        "guardian/read-treatment",
        "guardian/write-consent",
        "guardian/read-result",
        "nurse/at-night",
    }
    assert grants["medical_personnel/read-location"].people == ["nurse-1", "physician-1"]
    assert grants["external_specialist/read-physiological"].people == ["specialist-1"]
    assert grants["guardian/write-consent"].people == ["relative-1"]
    assert grants["guardian/write-consent"].action == "write"


def test_a_possible_case_opens_less_and_another_patient_concerns_others(
    definitions: DefinitionSet,
) -> None:
    grants = {it.policy: it for it in list_grants(definitions, "covid", "patient-3", "Possible")}
    assert set(grants) == {
        "medical_personnel/read-location",
        "relative/read-bulletin",
        "nurse/at-night",
    }
    assert grants["medical_personnel/read-location"].people == ["nurse-1", "physician-2"]
    assert grants["relative/read-bulletin"].people == []


def test_what_depends_on_the_message_is_told_apart(definitions: DefinitionSet) -> None:
    grants = {it.policy: it for it in list_grants(definitions, "covid", "patient-1", "Severe")}
    night = grants["nurse/at-night"]
    assert night.people == []
    # The case of patient 1 does not involve physician 2, who treats others.
    assert night.undecided == ["nurse-1", "physician-1"]


def test_a_policy_about_anybody_grants_to_all_who_are_known(definitions: DefinitionSet) -> None:
    (grant,) = list_grants(definitions, "pulmonary", "patient-1", "Dyspnea")
    assert grant.policy == "everybody/anything"
    assert {"specialist-1", "sensor-3", "relative-2"} <= set(grant.people)


def test_users_and_clients_whom_only_a_policy_names_are_told(definitions: DefinitionSet) -> None:
    found = list_grants(definitions, "pulmonary", "patient-1", "DyspneaOxygen")
    grants = {it.policy: it.people for it in found}
    assert grants["pager/notices"] == ["client:pager-7"]
    assert grants["doctor-on-call/notices"] == ["doctor-on-call"]


ROLES = """
kind: role
name: treating
parameters: [patient]
---
kind: activation-rule
name: treating
role: treating(patient)
requires: [{appointment: treats(patient), membership: true}]
---
kind: appointment
name: one
credential: treats("patient-1")
holder: user:locum
---
kind: emergency-policy
name: treating/notices
subject: role:treating(o.patientId)
filter: notice
allow: read
plan: pulmonary-issues
situations: [DyspneaOxygen]
about: o.patientId
---
kind: emergency-policy
name: treating/rooms
subject: role:treating(t.user)
filter: notice
allow: read
plan: pulmonary-issues
situations: [DyspneaOxygen]
about: o.patientId
"""


@pytest.mark.parametrize(("patient", "people"), [("patient-1", ["locum"]), ("patient-2", [])])
def test_roles_grant_where_their_arguments_are_those_of_the_case(
    patient: str, people: list[str]
) -> None:
    documents = [*read_rules(), *read_people(), *read_text(ROLES).documents]
    definitions = DefinitionSet.build(documents, trusts=lambda _: True)
    grants = {
        it.policy: it for it in list_grants(definitions, "pulmonary", patient, "DyspneaOxygen")
    }
    assert grants["treating/notices"].people == people
    assert grants["treating/notices"].undecided == []
    assert grants["treating/rooms"].undecided == ["locum"]
