"""The first demonstration: a broker, definitions, and decisions that explain themselves."""

from __future__ import annotations

import importlib.resources
import tempfile
from pathlib import Path

from penstock.components import MosquittoServer
from penstock.definitions import read_text
from penstock.definitions.authorizer import make_authorizer
from penstock.policy.access.requests import make_request
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from penstock_lab.demo.story import Story

TOPIC = "home/sensors/power/392"


def run(story: Story) -> None:
    """Apply definitions to a new store and ask what they decide."""
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        story.step("Start a broker")
        with MosquittoServer(Path(folder) / "broker", persistent=False) as broker:
            story.note(f"Mosquitto listens on 127.0.0.1:{broker.port}, for this machine only")
            _decide(story, Path(folder))


def _decide(story: Story, folder: Path) -> None:
    story.step("Apply definitions")
    text = importlib.resources.files(__package__).joinpath("first_steps.yaml").read_text()
    reading = read_text(text, "first_steps.yaml")
    with Database.open(f"sqlite:///{folder / 'penstock.db'}") as database:
        definitions = CheckedDefinitions(Definitions(database))
        change = definitions.apply(reading.documents, actor="demo", reason="first steps")
        story.expect(
            f"{len(change.created)} definitions are in force since epoch {change.epoch}",
            actual=(len(change.created), change.epoch),
            wanted=(5, 1),
        )
        _, meaning = definitions.current()
    story.step(f"Ask who may read {TOPIC}")
    authorizer = make_authorizer(meaning)
    for purpose, wanted in (
        ("operational/billing", True),
        ("marketing/analytics", False),
        (None, False),
    ):
        decision = authorizer.explain(make_request(TOPIC, purpose=purpose))
        word = "allowed" if decision.allowed else "denied"
        story.expect(
            f"for {purpose or 'no purpose'}: {word} by {decision.rule}, because {decision.reason}",
            actual=decision.allowed,
            wanted=wanted,
        )
