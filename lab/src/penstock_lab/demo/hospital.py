"""Patients of a hospital, and four audiences that each see what they need of them."""

from __future__ import annotations

import importlib.resources
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

from rich.padding import Padding
from rich.table import Table

from penstock.config import defaults
from penstock.config.installation import PipelineSettings
from penstock.definitions import DefinitionSet, read_text
from penstock.eventlog import EventLog
from penstock.feeding.ingest import feed
from penstock.model.kinds import Stream, View
from penstock.pipeline.control import Control
from penstock.pipeline.sinks.published import read_published
from penstock_lab.demo.story import INDENT, Story
from penstock_lab.generate.hospital import SCHEMA, generate
from penstock_lab.generate.writers import write

PATIENTS: Final = 3000
SEED: Final = 2024
K: Final = 5
AUDIENCES: Final = ("doctor", "nurse", "administration", "research")
QUASI: Final = ("zip", "gender", "age", "insurance_company")
HIDDEN: Final = {
    "nurse": ("pid", "zip", "insurance_number", "hba1c"),
    "administration": ("pid", "name", "zip", "gender", "age", "glucose", "hba1c"),
}
Record = dict[str, Any]


def run(story: Story) -> None:
    """Make patients up, derive four views from their stream, and look at them."""
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        settings = defaults(Path(folder), {}).pipeline
        definitions = _define(story)
        _admit_patients(story, Path(folder), settings, definitions)
        _run_views(story, settings, definitions)
        control = Control(settings.folder)
        views = {name: list(read_published(control.view(name))) for name in AUDIENCES}
        dead = sum(1 for _ in control.view("research").dead_letters())
        compare(story, views, dead)


def _define(story: Story) -> DefinitionSet:
    story.step("Declare what each audience may see")
    text = importlib.resources.files(__package__).joinpath("hospital.yaml").read_text("utf-8")
    definitions = DefinitionSet.build(read_text(text, "hospital.yaml").documents)
    for name in AUDIENCES:
        view = definitions.get(View, name)
        story.note(f"{name}: {view.description if view else ''}")
    return definitions


def _admit_patients(
    story: Story, folder: Path, settings: PipelineSettings, definitions: DefinitionSet
) -> None:
    story.step("Admit patients")
    file = folder / "patients.csv"
    write(generate(PATIENTS, SEED), SCHEMA, "csv", str(file))
    stream = definitions.of(Stream)["patients"]
    fed, _ = feed(file, stream, EventLog(settings.event_log).topic(stream.topic))
    story.expect(f"{fed:,} patients are in the event log", actual=fed, wanted=PATIENTS)


def _run_views(story: Story, settings: PipelineSettings, definitions: DefinitionSet) -> None:
    from penstock.pipeline.manager import Manager  # noqa: PLC0415 - loads Spark
    from penstock.pipeline.session import open_session  # noqa: PLC0415 - loads Spark

    story.step("Let Spark derive four views from the stream (it takes a moment to start)")
    control = Control(settings.folder)
    spark = open_session(settings)
    try:
        for action in ("start", "stop"):
            # Stopping lets go what is still held back for k-anonymity.
            for name in AUDIENCES:
                control.change(name, action)
            Manager(spark, settings, lambda: definitions).run_once()
    finally:
        spark.stop()
    for name in AUDIENCES:
        last = control.view(name).last()
        read = last.totals.read if last else 0
        story.expect(f"{name} has seen {read:,} records", actual=read, wanted=PATIENTS)


def compare(story: Story, views: dict[str, list[Record]], dead: int) -> None:
    """Show a patient in all views, and check what each of them hides."""
    story.step("The same patient, as four audiences see her or him")
    doctor, research = views["doctor"], views["research"]
    # The demonstration knows what links the two; a researcher does not.
    links = ("diagnosis", "glucose", "hba1c", "medication")
    known = Counter(tuple(row[field] for field in links) for row in research)
    patient = next(row for row in doctor if known[tuple(row[field] for field in links)] == 1)
    same = {
        name: next(row for row in views[name] if _is_patient(row, patient, name))
        for name in AUDIENCES
    }
    table = Table("", *AUDIENCES, box=None, pad_edge=False, header_style="bold")
    for field in patient:
        table.add_row(
            field, *("·" if same[it][field] is None else str(same[it][field]) for it in AUDIENCES)
        )
    story.console.print(Padding(table, INDENT))

    for name, hidden in HIDDEN.items():
        left = {row[field] for row in views[name] for field in hidden}
        story.expect(
            f"{name}: {', '.join(hidden)} are * in all {len(views[name]):,} records",
            actual=(left, len(views[name])),
            wanted=({"*"}, PATIENTS),
        )
    story.expect(
        "research: no patient number, name or insurance number is left",
        actual={(row["pid"], row["name"], row["insurance_number"]) for row in research},
        wanted={(None, "*", "*")},
    )
    groups = Counter(tuple(row[field] for field in QUASI) for row in research)
    least = min(groups.values())
    story.expect(
        f"research: {len(groups)} groups by {', '.join(QUASI)}, the smallest of {least} patients",
        actual=least >= K,
        wanted=True,
    )
    story.expect(
        f"research: {len(research):,} patients are published and {dead} suppressed, none is lost",
        actual=len(research) + dead,
        wanted=PATIENTS,
    )


def _is_patient(row: Record, patient: Record, audience: str) -> bool:
    links = {
        "doctor": ("pid",),
        "nurse": ("name", "age", "glucose"),
        "administration": ("insurance_number",),
        "research": ("diagnosis", "glucose", "hba1c", "medication"),
    }
    return all(row[field] == patient[field] for field in links[audience])
