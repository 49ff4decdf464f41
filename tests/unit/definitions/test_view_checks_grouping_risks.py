"""What undoes the promise of groups is refused, unless the definition acknowledges it by name."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.definitions import DefinitionSet
from penstock.definitions.view_checks import FIXES, MEANINGS
from penstock.errors import InvalidError
from penstock.model.document import Document
from penstock.pipeline.anonymizers.blueprint import Blueprint

FIELDS = {
    "pid": {"type": "int", "category": "identifier"},
    "zip": {"type": "int", "category": "quasi-identifier"},
    "age": {"type": "int", "category": "quasi-identifier"},
    "illness": {"type": "string", "category": "sensitive"},
    "note": {"type": "string"},
}
QUASI = [{"key": "age", "min": 0, "max": 120}, {"key": "zip", "min": 0, "max": 99999}]
K = {"anonymizer": "k_anonymization", "keys": ["pid"], "quasi_identifiers": QUASI, "k": 5}
L = {
    **K,
    "anonymizer": "l_diversity",
    "l": 2,
    "sensitive": [{"key": "illness", "values": ["flu", "cold"]}],
}
TOKENS = {"anonymizer": "tokenization", "keys": ["pid"]}
SUPPRESS = {"anonymizer": "suppression", "keys": ["pid"]}
OLD = {
    "anonymizer": "conditional_substitution",
    "keys": ["note"],
    "condition_map": {"age": {"match_range": [90, 120]}},
    "substitution_list": ["very old"],
}
# What a definition is, and the risks that it bears.
CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], set[str]]] = {
    "safe": ([K], {}, set()),
    "raw identifier": ([{**K, "keys": []}], {}, {"identifier:pid"}),
    "identifier that is blurred in part": (
        [{"anonymizer": "blurring", "keys": ["pid"], "n_fields": 1}, {**K, "keys": []}],
        {},
        {"identifier:pid"},
    ),
    "suppressed before": ([SUPPRESS, {**K, "keys": []}], {}, set()),
    "suppressed after": ([{**K, "keys": []}, SUPPRESS], {}, set()),
    "token": ([TOKENS, {**K, "keys": []}], {}, {"pseudonym:pid"}),
    "token after the groups": ([{**K, "keys": []}, TOKENS], {}, {"pseudonym:pid"}),
    "consistent substitute": (
        [
            {"anonymizer": "substitution", "keys": ["pid"], "substitution_list": [1, 2, 3]},
            {**K, "keys": []},
        ],
        {},
        {"pseudonym:pid"},
    ),
    "token of another field": ([{**TOKENS, "keys": ["note"]}, K], {}, {"pseudonym:note"}),
    "quasi-identifier left out": (
        [{**K, "quasi_identifiers": QUASI[:1]}],
        {},
        {"quasi-identifier:zip"},
    ),
    "quasi-identifier in buckets beside the groups": (
        [
            {"anonymizer": "bucketizing", "keys": ["zip"], "bucket_size": 100},
            {**K, "quasi_identifiers": QUASI[:1]},
        ],
        {},
        {"quasi-identifier:zip"},
    ),
    "no subject": ([K], {"subject": None}, {"no-subject"}),
    "subject that is declared plain": (
        [{**K, "keys": []}],
        {"fields": {**FIELDS, "pid": {"type": "int"}}},
        {"identifier:pid"},
    ),
    "exact time": ([K], {"fields": {**FIELDS, "at": {"type": "timestamp"}}}, {"time:at"}),
    "time of the stream as a number": (
        [K],
        {"fields": {**FIELDS, "at": {"type": "long"}}, "time": "at"},
        {"time:at"},
    ),
    "time in buckets": (
        [{"anonymizer": "bucketizing", "keys": ["at"], "bucket_size": 30}, K],
        {"fields": {**FIELDS, "at": {"type": "timestamp"}}},
        set(),
    ),
    "topic of the message": (
        [K],
        {
            "fields": {**FIELDS, "where": {"type": "string"}},
            "from": ["home/+ward/pulse"],
            "adds": {"topic": "where"},
        },
        {"identifier:where"},
    ),
    "made of the raw age": ([OLD, K], {}, {"derived:note"}),
    "made of the generalized age": (
        [K, {**OLD, "condition_map": {"age": {"match_value": "[20 - 30]"}}}],
        {},
        set(),
    ),
    "made of the raw age, and suppressed": (
        [OLD, K, {"anonymizer": "suppression", "keys": ["note"]}],
        {},
        set(),
    ),
    "groups are split by illness": (
        [
            L,
            {
                **OLD,
                "keys": ["age"],
                "condition_map": {"illness": {"match_value": "flu"}},
                "substitution_list": ["any"],
            },
        ],
        {},
        {"split-groups:age"},
    ),
    "sensitive field that is not mixed": (
        [L],
        {"fields": {**FIELDS, "medication": {"type": "string", "category": "sensitive"}}},
        {"sensitive:medication"},
    ),
    "sensitive field that is generalized": (
        [{**K, "quasi_identifiers": [*QUASI, {"key": "sugar", "min": 0, "max": 500}]}],
        {"fields": {**FIELDS, "sugar": {"type": "int", "category": "sensitive"}}},
        {"generalized-sensitive:sugar"},
    ),
    "no groups": ([TOKENS], {"subject": None}, set()),
}


def _stream(**body: Any) -> Document:
    fields = {**FIELDS, **body.pop("fields", {})}
    if any("+ward" in it for it in body.get("from", ())):
        fields["ward"] = {"type": "string"}
    listed = [{"name": name, **it} for name, it in fields.items()]
    made = {"subject": "pid", **body, "fields": listed}
    return Document("stream", "visits", {key: it for key, it in made.items() if it is not None})


def _view(name: str, *anonymizers: dict[str, Any], **body: Any) -> Document:
    return Document("view", name, {"stream": "visits", "anonymizers": list(anonymizers), **body})


def _refused(*documents: Document) -> dict[str, tuple[str, str | None]]:
    """Return what is said of each risk, by its name."""
    try:
        DefinitionSet.build(documents)
    except InvalidError as error:
        problems = error.problems
    else:
        return {}
    assert all(it.place.split(".")[1] == "accept_risk" for it in problems)
    told = [(it.message.partition(": "), it.fix) for it in problems]
    return {name: (meaning, fix) for (name, _, meaning), fix in told}


@pytest.mark.parametrize(("anonymizers", "stream", "risks"), CASES.values(), ids=CASES)
def test_a_view_is_refused_until_it_acknowledges_its_risks(
    anonymizers: list[dict[str, Any]], stream: dict[str, Any], risks: set[str]
) -> None:
    told = _refused(_stream(**stream), _view("v", *anonymizers))
    assert told.keys() == risks
    for name, (meaning, fix) in told.items():
        assert len(meaning) > 40
        assert fix is not None
        assert fix.endswith(f"or acknowledge it: accept_risk: [{name}]")
    assert not _refused(_stream(**stream), _view("v", *anonymizers, accept_risk=sorted(risks)))


def test_each_risk_has_a_meaning_and_a_fix_and_is_tried_here() -> None:
    assert MEANINGS.keys() == FIXES.keys()
    tried = {name.partition(":")[0] for *_, risks in CASES.values() for name in risks}
    assert tried | {"joined-view"} == MEANINGS.keys()


def test_what_is_acknowledged_for_one_field_covers_no_other() -> None:
    fields = {**FIELDS, "phone": {"type": "string", "category": "identifier"}}
    view = _view("v", {**K, "keys": []}, accept_risk=["identifier:pid"])
    assert _refused(_stream(fields=fields), view).keys() == {"identifier:phone"}


@pytest.mark.parametrize("text", ["identifier:zip", "no-subject", "identifier", "everything"])
def test_what_is_acknowledged_in_vain_is_refused(text: str) -> None:
    told = _refused(_stream(), _view("v", K, accept_risk=[text]))
    ((said, fix),) = told.values()
    assert (said, fix) == ("the view does not bear this risk", "leave it out") or (
        text == "everything" and fix is not None and "pseudonym" in fix
    )


def test_views_that_one_role_reads_are_not_joined_unnoticed() -> None:
    group = _view("group", K, roles=["science"])
    exact = _view("exact", SUPPRESS, roles=["science"])
    # Whoever has all of it in one view needs no other.
    assert not _refused(_stream(), group, _view("all", roles=["science"]))
    hides = {"anonymizer": "suppression", "keys": ["pid", "illness"]}
    told = _view("ages", hides, roles=["science"])
    assert _refused(_stream(), group, told).keys() == {"joined-view:ages"}
    assert not _refused(_stream(), group, _view("ages", hides, roles=["ward"]))
    assert not _refused(_stream(), group, exact)
    again = _view("again", {**K, "k": 6}, roles=["science"])
    assert _refused(_stream(), group, again).keys() == {"joined-view:again", "joined-view:group"}
    accepted = _view("group", K, roles=["science"], accept_risk=["joined-view:ages"])
    assert not _refused(_stream(), accepted, told)


def test_a_role_that_gets_a_second_view_is_noticed() -> None:
    hides = {"anonymizer": "suppression", "keys": ["pid", "illness"]}
    documents = [_stream(), _view("group", K, roles=["science"]), _view("ages", hides)]
    known = DefinitionSet.build(documents)
    allowed = Document("role", "science", {"permissions": [{"view": "ages"}]})
    with pytest.raises(InvalidError, match="joined-view:ages"):
        known.change([allowed])
    over = [
        Document("role", "chief", {"includes": ["science", "ward"]}),
        Document("role", "science", {}),
        Document("role", "ward", {"permissions": [{"prefix": "visits-ag"}]}),
    ]
    with pytest.raises(InvalidError, match="joined-view:ages"):
        known.change(over)


def test_what_was_acknowledged_does_not_make_it_another_view_to_the_pipeline() -> None:
    safe = DefinitionSet.build([_stream(), _view("v", K)])
    risky = _view("v", {**K, "keys": []}, accept_risk=["identifier:pid"])
    made = Blueprint.find(DefinitionSet.build([_stream(), risky]), "v")
    assert Blueprint.from_json(made.to_json()).signature == made.signature
    assert made.signature != Blueprint.find(safe, "v").signature
