"""When a change of definitions is one for detection: attributes count where a filter reads them."""

from __future__ import annotations

import pytest

from penstock.definitions import read_text
from penstock.gateway.authorization.compiled_definitions import CompiledDefinitions
from penstock.model.document import Document, Key

SOURCE = """
{kind: vocabulary, name: v, subject: {uid: string, floor: int}, object: {k: string}}
---
{kind: event, name: Up, attributes: {k: string}, packet: {filters: [up], set: {k: o.k}}}
---
{kind: plan, name: p, situations: [{id: On, level: 1}], evolutions: [{event: Up, to: On}]}
---
{kind: attributes, name: "user:ann", values: {floor: 1}}
"""
FILTERED = "{kind: scenario, name: s, plan: p, attribute: k, subject_filter: s.floor == 1}"
PLAIN = "{kind: scenario, name: s, plan: p, attribute: k}"


def keep(text: str) -> dict[Key, Document]:
    return {it.key: it for it in read_text(text).documents}


@pytest.mark.parametrize(
    ("scenario", "floor", "reloads"),
    [(FILTERED, 2, True), (FILTERED, 1, False), (PLAIN, 2, False)],
)
def test_attributes_are_another_program_where_they_change_who_is_involved(
    scenario: str,
    floor: int,
    reloads: bool,  # noqa: FBT001
) -> None:
    documents = keep(f"{SOURCE}\n---\n{scenario}")
    compiled = CompiledDefinitions()
    assert compiled.take(documents, documents).program
    before = compiled.program
    changed = keep(f'{{kind: attributes, name: "user:ann", values: {{floor: {floor}}}}}')
    assert compiled.take(documents | changed, changed).program is reloads
    assert (compiled.program is not before) is reloads
    assert compiled.program.has_situation("s", "ann", "On") is not (
        scenario == FILTERED and reloads
    )
