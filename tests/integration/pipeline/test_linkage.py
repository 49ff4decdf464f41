"""k-anonymity that a definition undoes: refused, acknowledged by name, and measured."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.config import defaults
from penstock.definitions import DefinitionSet
from penstock.model.document import Document
from tests.support.commands import run_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs("java")

PERSONS, VISITS = 200, 6
STREAM = {
    "kind": "stream",
    "name": "visits",
    "subject": "pid",
    "fields": [
        {"name": "pid", "type": "int", "category": "identifier"},
        {"name": "age", "type": "int", "category": "quasi-identifier"},
        {"name": "zip", "type": "int", "category": "quasi-identifier"},
        {"name": "glucose", "type": "double", "category": "sensitive"},
        {"name": "ward", "type": "string"},
    ],
}
QUASI = [{"key": "age", "min": 0, "max": 120}, {"key": "zip", "min": 0, "max": 99}]
GROUPS = {"anonymizer": "k_anonymization", "quasi_identifiers": QUASI, "k": 5, "delta": 150}
TOKENS = {"anonymizer": "tokenization", "keys": ["pid"]}


def _view(name: str, *anonymizers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "kind": "view", "name": name, "stream": "visits", "anonymizers": list(anonymizers), **more
    }  # fmt: skip


LINKED = _view("linked", TOKENS, GROUPS)
SAFE = _view("safe", {**GROUPS, "keys": ["pid"]})
HIDES_WARD = {"anonymizer": "suppression", "keys": ["pid", "ward"]}
EXACT = _view("exact", HIDES_WARD)


def _apply(folder: Path, *documents: dict[str, Any]) -> tuple[int, str]:
    (folder / "all.yaml").write_text("\n---\n".join(map(json.dumps, documents)))
    made = run_command(folder, "apply", "-f", "all.yaml")
    return made.returncode, " ".join(made.stderr.split())


def test_a_pseudonym_beside_the_groups_is_refused_by_name_and_measured(
    spark: SparkSession, tmp_path: Path
) -> None:
    code, said = _apply(tmp_path, STREAM, LINKED)
    assert code != 0
    assert "pseudonym:pid: 'pid' is a token beside the groups" in said
    assert "accept_risk: [pseudonym:pid]" in said
    risky = {**LINKED, "accept_risk": ["pseudonym:pid"]}
    assert _apply(tmp_path, STREAM, risky, SAFE, EXACT)[0] == 0
    chance = random.Random(7)
    people = [(chance.randrange(18, 95), chance.randrange(100)) for _ in range(PERSONS)]
    rows = [
        {
            "pid": pid,
            "age": people[pid][0],
            "zip": people[pid][1],
            "glucose": round(chance.uniform(60, 300), 9),
            "ward": chance.choice(["east", "west"]),
        }
        for pid in chance.sample(range(PERSONS), counts=[VISITS] * PERSONS, k=PERSONS * VISITS)
    ]
    (tmp_path / "visits.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert run_command(tmp_path, "views", "feed", "visits", "visits.json").returncode == 0
    _run(spark, tmp_path, [STREAM, risky, SAFE, EXACT])

    linked = _risk(tmp_path, "linked")
    assert linked["k"] >= 5, "each record by itself is hidden"
    (found,) = linked["linkage"]["pseudonyms"]
    assert (found["field"], found["pseudonyms"]) == ("pid", PERSONS)
    assert found["k"] == 1
    assert found["alone"] > PERSONS / 2, "six groups together tell most persons apart"

    safe = _risk(tmp_path, "safe")
    assert safe["linkage"]["pseudonyms"] == []
    joined = {it["view"]: it for it in safe["linkage"]["views"]}
    # An exact reading pairs the records; the other view tells the exact age and zip of each.
    assert joined["exact"]["fields"] == ["glucose"]
    assert joined["exact"]["paired"] == joined["exact"]["records"] == len(rows)
    assert joined["exact"]["k"] < 5 <= safe["k"]
    shown = run_command(tmp_path, "views", "risk", "linked").stdout
    assert "linked by" in shown
    assert "joined with" in shown


def _run(spark: SparkSession, folder: Path, documents: list[dict[str, Any]]) -> None:
    """Publish everything, as `views run --once` and `views stop` do."""
    from penstock.pipeline.manager import Manager  # noqa: PLC0415 - loads Spark

    known = DefinitionSet.build(
        Document(it["kind"], it["name"], {k: v for k, v in it.items() if k not in {"kind", "name"}})
        for it in documents
    )
    manager = Manager(spark, defaults(folder, {}).pipeline, lambda: known)
    for action in ("start", "stop"):
        assert run_command(folder, "views", action, "--all").returncode == 0
        manager.run_once()


def _risk(folder: Path, view: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run_command(folder, "views", "risk", view, "--json").stdout)
    return told
