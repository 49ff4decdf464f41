"""`penstock views risk` and its parts, as far as no Spark is needed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from penstock.cli.entry import penstock
from penstock.cli.streams.risk_plots import draw
from penstock.cli.streams.views import command
from penstock.definitions import DefinitionSet
from penstock.errors import UsageError
from penstock.eventlog import EventLog, Topic
from penstock.model.document import Document
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.anonymizers.k_anonymity import count_persons
from penstock.pipeline.anonymizers.stateful import DeadLetter
from penstock.pipeline.records.columns import OFFSET, PERSON, SUBJECT, TIME
from penstock.pipeline.sinks.commits import Commit, Totals, ViewFolder, ViewWriter
from penstock.pipeline.sinks.published import read_persons, write_persons
from penstock.risk.figures import Knowledge, Question
from penstock.risk.linkage import measure_journalist
from penstock.risk.measurement import Moment, measure_view
from tests.support.commands import run_command

SECRET = bytes(32)
STREAM: dict[str, Any] = {
    "subject": "pid",
    "fields": [
        {"name": "pid", "type": "int", "category": "identifier"},
        {"name": "age", "type": "int", "category": "quasi-identifier"},
        {"name": "diagnosis", "type": "string", "category": "sensitive"},
    ],
}
GROUP = {
    "anonymizer": "k_anonymization",
    "keys": ["pid"],
    "quasi_identifiers": [{"key": "age", "min": 0, "max": 100}],
    "k": 3,
    "delta": 3,
}


def blueprint(*anonymizers: dict[str, Any], **stream: Any) -> Blueprint:
    documents = [
        Document("stream", "patients", {**STREAM, **stream}),
        Document("view", "research", {"stream": "patients", "anonymizers": list(anonymizers)}),
    ]
    return Blueprint.find(DefinitionSet.build(documents), "research")


def publish(folder: Path, plan: Blueprint, rows: list[tuple[int, int, str]]) -> ViewFolder:
    """Let a view's stateful step publish rows in one batch, as its runner does."""
    writer = ViewWriter(folder)
    writer.open()
    (folder / "plans").mkdir(exist_ok=True)
    text = plan.to_json()
    (folder / "plans" / f"{plan.signature}.json").write_text(text, encoding="utf-8")
    pids, ages, diagnoses = zip(*rows, strict=True)
    table = pa.table(
        {
            "pid": pa.array(pids, pa.int32()),
            "age": pa.array(ages, pa.int32()),
            "diagnosis": pa.array(diagnoses, pa.string()),
            OFFSET: pa.array(range(len(rows)), pa.int64()),
            PERSON: pa.array(pids, pa.int64()),
            TIME: pa.array([0] * len(rows), pa.int64()),
            SUBJECT: pa.nulls(len(rows), pa.int64()),
        }
    )
    step = plan.make_step(SECRET)
    assert step is not None
    dead: list[DeadLetter] = []
    total = writer.newest.totals if writer.newest else Totals()
    for outcome in (step.feed(table, 0), step.flush()):
        staged = writer.stage()
        (staged / "data").mkdir()
        fields = outcome.rows.select(list(plan.plan.output))
        pa.parquet.write_table(fields, staged / "data" / "part-0.parquet")
        letters = [{"offset": it.offset, "reason": it.reason} for it in outcome.dead]
        write_persons(folder, writer.sequence, outcome.groups)
        dead += outcome.dead
        total = total.add(Totals(0, fields.num_rows, len(outcome.dead), outcome.loss))
        made = Commit(writer.sequence, plan.signature, at=1, totals=total)
        writer.commit(made, letters)
    writer.close()
    return ViewFolder(folder)


ROWS = [(pid, 20 + pid, "flu" if pid % 2 else "cold") for pid in range(9)]


def test_persons_are_counted_though_the_view_does_not_say_who_they_are(tmp_path: Path) -> None:
    # One person with many records must not pass for many persons.
    rows = [*ROWS, *[(0, 20, "flu")] * 5]
    view = publish(tmp_path, blueprint(GROUP), rows)
    _, risk = measure_view(view)
    assert (risk.unit, risk.persons) == ("persons", Knowledge.COUNTED)
    assert risk.k >= 3
    assert risk.records == len(rows) - risk.rejected
    assert max(bar.least for bar in risk.sizes) <= 9
    assert risk.loss is not None
    assert risk.prosecutor.most == 1 / risk.k


def test_without_counts_records_do_not_pass_for_persons(tmp_path: Path) -> None:
    view = publish(tmp_path, blueprint(GROUP), ROWS)
    for sequence in (0, 1):
        write_persons(tmp_path, sequence, None)
    _, risk = measure_view(view)
    assert (risk.unit, risk.persons) == ("records", Knowledge.NONE)


def test_suppressed_records_are_a_share_of_those_that_were_wanted(tmp_path: Path) -> None:
    view = publish(tmp_path, blueprint(GROUP), [(1, 30, "flu"), (2, 40, "flu"), (1, 50, "flu")])
    _, risk = measure_view(view)
    assert (risk.records, risk.groups, risk.k) == (0, 0, 0)
    assert risk.suppressed == 1.0
    assert risk.prosecutor.most == 0.0


def feed_log(folder: Path, rows: list[tuple[int, int, str]]) -> Topic:
    topic = EventLog(folder / "log").topic("patients")
    names = ("pid", "age", "diagnosis")
    topic.append([json.dumps(dict(zip(names, row, strict=True))).encode() for row in rows])
    return topic


def test_the_journalist_looks_among_all_persons_of_the_stream(tmp_path: Path) -> None:
    rows = [(pid, 20 + pid % 3, "flu") for pid in range(6)]
    meter, risk = measure_view(publish(tmp_path / "view", blueprint(GROUP), rows))
    # As many again stand in the stream and not in the view.
    others = [(100 + pid, 20 + pid % 3, "flu") for pid in range(6)]
    topic = feed_log(tmp_path, [*rows, *others, *others])
    found = measure_journalist(meter, topic, SECRET, 0.2)
    assert found is not None
    assert found[0].mean == pytest.approx(risk.prosecutor.mean / 2)
    assert "18 records" in found[1]


def test_masks_before_the_groups_hold_for_the_population_too(tmp_path: Path) -> None:
    bucket = {"anonymizer": "bucketizing", "keys": ["age"], "bucket_size": 50}
    tree = {"value": "any", "children": [{"value": "[0 - 50]"}, {"value": "[50 - 100]"}]}
    quasi = [{"key": "age", "hierarchy": tree}]
    plan = blueprint(bucket, {**GROUP, "quasi_identifiers": quasi})
    meter = measure_view(publish_masked(tmp_path / "view", plan))[0]
    topic = feed_log(tmp_path, [*ROWS, (50, 77, "flu")])
    found = measure_journalist(meter, topic, SECRET, 0.2)
    assert found is not None
    assert found[0].most == pytest.approx(1 / 9)


def publish_masked(folder: Path, plan: Blueprint) -> ViewFolder:
    """Publish nine persons whose ages the masks before have made alike."""
    step = plan.make_step(SECRET)
    assert step is not None
    writer = ViewWriter(folder)
    writer.open()
    (folder / "plans").mkdir()
    text = plan.to_json()
    (folder / "plans" / f"{plan.signature}.json").write_text(text, encoding="utf-8")
    count = len(ROWS)
    table = pa.table(
        {
            "pid": pa.array(range(count), pa.int32()),
            "age": pa.array(["[0 - 50]"] * count),
            "diagnosis": pa.array(["flu"] * count),
            OFFSET: pa.array(range(count), pa.int64()),
            PERSON: pa.array(range(count), pa.int64()),
            TIME: pa.array([0] * count, pa.int64()),
            SUBJECT: pa.nulls(count, pa.int64()),
        }
    )
    step.feed(table.slice(0, 0), 0)
    outcomes = [step.feed(table, 0), step.flush()]
    staged = writer.stage()
    (staged / "data").mkdir()
    joined = pa.concat_tables([it.rows.select(list(plan.plan.output)) for it in outcomes])
    pa.parquet.write_table(joined, staged / "data" / "part-0.parquet")
    groups = pa.concat_tables([it.groups for it in outcomes if it.groups is not None])
    write_persons(folder, writer.sequence, groups)
    totals = Totals(count, joined.num_rows)
    writer.commit(Commit(0, plan.signature, totals=totals))
    writer.close()
    return ViewFolder(folder)


@pytest.mark.parametrize(
    ("anonymizers", "stream", "knowledge"),
    [
        ((), {}, Knowledge.PUBLISHED),
        ((), {"subject": None}, Knowledge.RECORDS),
        (({"anonymizer": "suppression", "keys": ["pid"]},), {}, Knowledge.NONE),
        (({"anonymizer": "tokenization", "keys": ["pid"], "as": "text"},), {}, Knowledge.PUBLISHED),
        ((GROUP,), {}, Knowledge.COUNTED),
        ((GROUP, {"anonymizer": "suppression", "keys": ["age"]}), {}, Knowledge.NONE),
    ],
)
def test_it_is_known_from_what_persons_are_known(
    anonymizers: tuple[dict[str, Any], ...], stream: dict[str, Any], knowledge: Knowledge
) -> None:
    anonymizers = tuple({k: v for k, v in it.items() if k != "as"} for it in anonymizers)
    question = Question.ask(blueprint(*anonymizers, **stream))
    assert question.knowledge is knowledge
    assert question.exposed == (() if anonymizers else ("pid",))


def test_a_field_that_the_view_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="no field 'shoe'"):
        Question.ask(blueprint(), ["shoe"])
    assert Question.ask(blueprint(), ["diagnosis"], ["age"]).quasi_identifiers == ("diagnosis",)


def test_what_earlier_definitions_published_is_told_and_not_measured(tmp_path: Path) -> None:
    publish(tmp_path, blueprint(GROUP), ROWS)
    changed = blueprint({**GROUP, "k": 4, "delta": 9})
    view = publish(tmp_path, changed, ROWS)
    _, risk = measure_view(view)
    assert risk.k >= 4
    assert (risk.earlier, risk.records, risk.published) == (9, 9, 9)


def test_persons_of_groups_are_counted_once() -> None:
    groups = np.array([0, 0, 0, 2, 2])
    assert count_persons(groups, np.array([7, 7, 8, 7, 9]), 3).tolist() == [2, 0, 2]


def test_counts_of_a_batch_that_is_done_again_are_written_over(tmp_path: Path) -> None:
    write_persons(tmp_path, 3, pa.table({"a": [1]}))
    write_persons(tmp_path, 3, pa.table({"a": [2]}))
    assert [table.to_pydict() for table in read_persons(tmp_path, range(5))] == [{"a": [2]}]
    write_persons(tmp_path, 3, None)
    assert list(read_persons(tmp_path, range(5))) == []


def test_it_is_drawn_as_png_and_as_svg_with_texts(tmp_path: Path) -> None:
    _, risk = measure_view(publish(tmp_path / "view", blueprint(GROUP), ROWS))
    draw("research", risk, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    draw("research", risk, tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for words in ("View research", "persons in a group", "promised: k = 3"):
        assert words in drawn
    draw("research", replace(risk, loss=None, sizes=[], history=[]), tmp_path / "b.svg")
    with pytest.raises(UsageError, match="not a picture"):
        draw("research", risk, tmp_path / "a.pdf")


def test_the_command_measures_what_stands_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    plan = blueprint(GROUP)
    documents = [
        {"kind": it["kind"], "name": it["name"], **it["body"]} for it in json.loads(plan.to_json())
    ]
    (tmp_path / "all.yaml").write_text("\n---\n".join(map(json.dumps, documents)))
    penstock.main(["apply", "-f", "all.yaml"], standalone_mode=False)
    with pytest.raises(UsageError, match="published nothing yet"):
        command.main(["risk", "research"], standalone_mode=False)
    publish(tmp_path / "penstock-data" / "views" / "research", plan, ROWS)
    capsys.readouterr()
    command.main(["risk", "research", "--json"], standalone_mode=False)
    data = json.loads(capsys.readouterr().out)
    assert data["view"] == "research"
    assert data["k"] >= 3
    assert data["sensitive"]["diagnosis"]["distinct"] == 2
    command.main(["risk", "research", "--plot", "r.svg"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "persons in the smallest group" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert (tmp_path / "r.svg").exists()
    with pytest.raises(UsageError, match="no view 'nobody'"):
        command.main(["risk", "nobody"], standalone_mode=False)


def test_of_noisy_figures_the_command_tells_the_promise_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    noisy = {
        "anonymizer": "differential_privacy",
        "aggregates": [{"name": "patients", "mode": "count"}],
        "epsilon": 0.5,
        "budget": 5,
        "renew": "30d",
    }
    view = {"stream": "patients", "anonymizers": [noisy], "window": {"size": "1h"}}
    documents = [Document("stream", "patients", STREAM), Document("view", "figures", view)]
    plan = Blueprint.find(DefinitionSet.build(documents), "figures")
    files = [{"kind": it.kind, "name": it.name, **it.body} for it in documents]
    Path("all.yaml").write_text("\n---\n".join(map(json.dumps, files)))
    penstock.main(["apply", "-f", "all.yaml"], standalone_mode=False)
    folder = ViewWriter(tmp_path / "penstock-data" / "views" / "figures")
    folder.open()
    (folder.folder / "plans").mkdir()
    (folder.folder / "plans" / f"{plan.signature}.json").write_text(plan.to_json())
    folder.stage()
    folder.commit(Commit(0, plan.signature, totals=Totals(9, 4, 1234)))
    folder.close()
    capsys.readouterr()
    command.main(["risk", "figures", "--json"], standalone_mode=False)
    told = json.loads(capsys.readouterr().out)
    assert (told["measure"], told["epsilon"], told["budget"]) == ("differential privacy", 0.5, 5.0)
    assert (told["windows_per_person"], told["published"], told["rejected"]) == (10, 4, 1000)
    assert not {"k", "prosecutor", "sensitive", "sizes"} & told.keys()
    command.main(["risk", "figures"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "have no meaning here" in shown
    assert "in 30 days" in shown
    with pytest.raises(UsageError, match="publishes noisy figures, no records"):
        command.main(["risk", "figures", "--plot", "r.svg"], standalone_mode=False)


def test_where_no_quasi_identifier_is_declared_the_command_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    bare = [{"name": it["name"], "type": it["type"]} for it in STREAM["fields"]]
    plan = blueprint(GROUP, fields=bare)
    files = [
        {"kind": it["kind"], "name": it["name"], **it["body"]} for it in json.loads(plan.to_json())
    ]
    Path("all.yaml").write_text("\n---\n".join(map(json.dumps, files)))
    penstock.main(["apply", "-f", "all.yaml"], standalone_mode=False)
    folder = tmp_path / "penstock-data" / "views" / "research"
    publish(folder, plan, ROWS)
    capsys.readouterr()
    command.main(["risk", "research"], standalone_mode=False)
    assert "no quasi-identifier is declared" not in capsys.readouterr().out
    monkeypatch.setattr("penstock.risk.figures._find_generalized", lambda _: ())
    command.main(["risk", "research"], standalone_mode=False)
    assert "no quasi-identifier is declared" in capsys.readouterr().out


def test_what_a_view_generalizes_is_a_quasi_identifier_whatever_the_stream_says() -> None:
    bare = [{"name": it["name"], "type": it["type"]} for it in STREAM["fields"]]
    assert Question.ask(blueprint(GROUP, fields=bare)).quasi_identifiers == ("age",)
    assert Question.ask(blueprint(GROUP, fields=bare)).counted
    assert Question.ask(blueprint(fields=bare)).quasi_identifiers == ()
    named = Question.ask(blueprint(GROUP, fields=bare), ["diagnosis"])
    assert named.quasi_identifiers == ("diagnosis",)


EXACT = {**GROUP, "quasi_identifiers": [{"key": "age", "min": 0, "max": 100}], "delta": 9}


def test_a_promise_that_is_not_kept_is_told_in_words_and_by_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    plan = blueprint(EXACT)
    documents = [
        {"kind": it["kind"], "name": it["name"], **it["body"]} for it in json.loads(plan.to_json())
    ]
    (tmp_path / "all.yaml").write_text("\n---\n".join(map(json.dumps, documents)))
    assert run_command(tmp_path, "apply", "-f", "all.yaml").returncode == 0
    publish(tmp_path / "penstock-data" / "views" / "research", plan, ROWS)
    kept = run_command(tmp_path, "views", "risk", "research")
    assert kept.returncode == 0, kept.stderr
    assert re.search(r"k ≥ 3 +[0-9]+ +kept", kept.stdout)
    # What the view leaves as it is tells its records apart.
    words = ("views", "risk", "research", "--quasi-identifier", "age", "--quasi-identifier")
    broken = run_command(tmp_path, *words, "diagnosis", "--plot", "r.svg")
    assert broken.returncode == 1
    assert re.search(r"k ≥ 3 +[12] +NOT KEPT in [0-9]+ groups? with [0-9]+ records?", broken.stdout)
    drawn = (tmp_path / "r.svg").read_text(encoding="utf-8")
    assert "promised: k = 3" in drawn
    assert "below (hatched)" in drawn
    told = json.loads(run_command(tmp_path, *words, "diagnosis", "--json").stdout)["promises"]
    assert [(it["figure"], it["kept"]) for it in told] == [("k", False)]


def test_views_are_compared_in_one_table_and_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    documents = [Document("stream", "patients", STREAM)]
    for name, k in (("small", 2), ("large", 6), ("silent", 5)):
        body = {"stream": "patients", "anonymizers": [{**EXACT, "k": k, "delta": 9}]}
        documents.append(Document("view", name, body))
    built = DefinitionSet.build(documents)
    files = [{"kind": it.kind, "name": it.name, **it.body} for it in documents]
    (tmp_path / "all.yaml").write_text("\n---\n".join(map(json.dumps, files)))
    assert run_command(tmp_path, "apply", "-f", "all.yaml").returncode == 0
    for name in ("small", "large"):
        publish(tmp_path / "penstock-data/views" / name, Blueprint.find(built, name), ROWS)
    done = run_command(tmp_path, "views", "compare", "--plot", "c.svg")
    assert done.returncode == 0, done.stderr
    assert re.search(r"small +9 +2 +kept", done.stdout)
    assert re.search(r"large +9 +9 +kept", done.stdout)
    assert "silent  has published nothing yet" in done.stdout
    assert "large, k = 9" in (tmp_path / "c.svg").read_text(encoding="utf-8")
    told = json.loads(run_command(tmp_path, "views", "compare", "small", "--json").stdout)
    assert [it["view"] for it in told["views"]] == ["small"]
    assert "no view 'nobody'" in run_command(tmp_path, "views", "compare", "nobody").stderr


@pytest.mark.parametrize(
    ("extra", "figure"),
    [
        ({"anonymizer": "l_diversity", "l": 2}, "l"),
        ({"anonymizer": "l_diversity", "l": 2, "method": "entropy"}, "l"),
        ({"anonymizer": "l_diversity", "l": 2, "method": "recursive", "c": 9.0}, "l"),
        ({"anonymizer": "t_closeness", "t": 0.4}, "t"),
    ],
)
def test_diversity_and_closeness_are_judged_by_the_rule_of_the_view(
    tmp_path: Path, extra: dict[str, Any], figure: str
) -> None:
    sensitive = [{"key": "diagnosis", "values": ["flu", "cold"]}]
    plan = blueprint({**EXACT, **extra, "sensitive": sensitive})
    view = publish(tmp_path, plan, ROWS)
    _, risk = measure_view(view)
    assert [(it.figure, it.field, it.kept) for it in risk.promises] == [
        ("k", None, True),
        (figure, "diagnosis", True),
    ]
    # The same records under a reader's eye that tells even diagnoses apart.
    for path in view.data.rglob("*.parquet"):
        table = pa.parquet.read_table(path)
        texts = ["flu" if place < 5 else "cold" for place in range(table.num_rows)]
        column = table.schema.get_field_index("diagnosis")
        ages = table.schema.get_field_index("age")
        forged = table.set_column(column, "diagnosis", pa.array(texts))
        halves = ["low" if place < 5 else "high" for place in range(table.num_rows)]
        pa.parquet.write_table(forged.set_column(ages, "age", pa.array(halves)), path)
    (judged,) = [it for it in measure_view(view)[1].promises if it.figure == figure]
    assert (judged.kept, judged.groups, judged.records) == (False, 2, risk.records)


def test_a_panel_with_one_point_is_left_out(tmp_path: Path) -> None:
    _, risk = measure_view(publish(tmp_path / "view", blueprint(EXACT), ROWS))
    moments = [Moment(at, 9, 0.5) for at in (1_000_000, 2_000_000)]
    draw("research", replace(risk, history=moments), tmp_path / "a.svg")
    draw("research", replace(risk, history=moments[:1]), tmp_path / "b.svg")
    assert "information loss" in (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "information loss" not in (tmp_path / "b.svg").read_text(encoding="utf-8")
