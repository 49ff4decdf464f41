from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.definitions import DefinitionSet, differences, read_paths, read_text
from penstock.definitions.documents import Difference, write_json, write_yaml
from penstock.errors import InvalidError, UsageError
from penstock.model.document import Document


def _check(text: str) -> str:
    reading = read_text(text, "file.yaml")
    with pytest.raises(InvalidError) as caught:
        DefinitionSet.empty().change(
            reading.documents, locate=reading.locate, problems=reading.problems
        )
    return str(caught.value)


def test_several_documents_in_one_text() -> None:
    reading = read_text("kind: purpose\nname: a\n---\nkind: purpose\nname: b\ndescription: x\n")
    assert reading.documents == [
        Document("purpose", "a", {}),
        Document("purpose", "b", {"description": "x"}),
    ]


def test_json_lists_and_yaml_give_the_same_documents() -> None:
    documents = [
        Document("reservation", "a/#", {"allow": ["x"], "description": "größer 𝄞"}),
        Document("purpose", "x", {}),
    ]
    assert read_text(write_json(documents), "file.json").documents == documents
    assert read_text(write_yaml(documents), "file.yaml").documents == documents


def test_folders_are_read_with_subfolders_and_other_files_are_left(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "b.yaml").write_text("kind: purpose\nname: b\n")
    (tmp_path / "sub" / "a.json").write_text('{"kind": "purpose",\n\t"name": "a"}')
    (tmp_path / ".hidden" / "c.yaml").write_text("kind: purpose\nname: c\n")
    (tmp_path / "notes.txt").write_text("nothing to read")
    reading = read_paths([str(tmp_path)])
    assert not reading.problems
    assert [document.name for document in reading.documents] == ["b", "a"]


def test_a_missing_path_and_an_empty_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file or folder"):
        read_paths([str(tmp_path / "none")])
    with pytest.raises(UsageError, match="holds no definitions"):
        read_paths([str(tmp_path)])


def test_all_problems_are_reported_at_once_with_their_places() -> None:
    text = _check(
        """\
kind: purpose
name: marketing/individualized
---
kind: reservation
name: home/#/x
alow: [marketing]
prohibit: [7]
---
kind: polcy
name: x
---
name: z
---
kind: policy
name: y
filter: a
allow: read
subject: group:nobody
when: s.age > 3
"""
    )
    for part in (
        "file.yaml:2:7 (name) of purpose/marketing/individualized: there is no purpose 'marketing'",
        "file.yaml:5:7 (name) of reservation/home/#/x: filter 'home/#/x' continues after '#'",
        "file.yaml:6:7 (alow)",
        "did you mean 'allow'?",
        "file.yaml:7:12 (prohibit.0)",
        "there is no kind 'polcy' → did you mean 'policy'?",
        "file.yaml:12:1: the field 'kind' is missing",
        "there is no group 'nobody'",
        "there is no enforcement 'default'",
        "s has no field 'age'",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("kind: purpose\nname: a\n---\nkind: purpose\nname: a\n", "defined before at"),
        ("kind: purpose\nkind: policy\nname: a\n", "stands here a second time"),
        ("- 1\n", "this is not a document"),
        ("kind: purpose\nname: 7\n", "is not text"),
        ("kind: [purpose\n", "this is not YAML"),
        ("kind: purpose\nname: !!python/object:os.system a\n", "is not known here"),
        ("a: &x [1]\nb: " + "[" * 80 + "]" * 80, "levels"),
    ],
)
def test_bad_texts_are_refused_with_a_reason(text: str, complaint: str) -> None:
    assert complaint in _check(text)


def test_aliases_cannot_blow_up_memory() -> None:
    lines = ["kind: purpose", "name: a", "l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"l{level}: &l{level} [" + ", ".join([f"*l{level - 1}"] * 10) + "]" for level in range(1, 9)
    ]
    assert "aliases expanded" in _check("\n".join(lines))


STORED = {"allow": ["x"], "description": "old", "prohibit": []}


def _difference(after: dict[str, Any]) -> Difference:
    old, new = (Document("reservation", "a/#", body) for body in (STORED, after))
    (found,) = differences({old.key: old}, {new.key: new})
    return found


def test_the_order_of_fields_is_no_difference() -> None:
    found = _difference({"prohibit": [], "description": "new", "allow": ["x"]})
    assert [line for line in found.lines() if line[0] in "+-"] == [
        "-description: old",
        "+description: new",
    ]
    assert not found.means_the_same


def test_the_order_within_lists_of_objects_is_no_difference_either() -> None:
    old = Document("view", "v", {"anonymizers": [{"anonymizer": "noise", "keys": ["a"]}]})
    new = Document("view", "v", {"anonymizers": [{"keys": ["a"], "anonymizer": "blurring"}]})
    (found,) = differences({old.key: old}, {new.key: new})
    changed = [line.strip() for line in found.lines() if line[0] in "+-"]
    assert changed == ["-  anonymizer: noise", "+  anonymizer: blurring"]


def test_a_default_that_is_written_out_means_the_same() -> None:
    found = _difference({"allow": ["x"], "description": "old"})
    assert found.means_the_same
    assert found.action == "update"
