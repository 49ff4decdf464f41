"""An installation whose views come from a requirements file, run to the end of its stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.config import load
from penstock.model.kinds import View
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions
from tests.support.commands import run_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.control import Control


def import_file(folder: Path, content: bytes, *options: str) -> dict[str, Any]:
    """Import a file by command; return what the command said."""
    (folder / "penstock.yaml").touch()
    (folder / "dash.json").write_bytes(content)
    done = run_command(folder, "views", "import", "dash.json", *options, "--json")
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def run_to_the_end(spark: SparkSession, folder: Path) -> Control:
    """Run all views until they have read what is there, and stop them."""
    from penstock.pipeline.manager import Manager  # noqa: PLC0415 - loads Spark

    config = load(folder / "penstock.yaml", {})
    with Database.open(config.store.connection_url()) as database:
        store = CheckedDefinitions(Definitions(database))
        names = list(store.current()[1].of(View))
        settings = config.pipeline.model_copy(update={"batch": 10_000})
        manager = Manager(spark, settings, lambda: store.current()[1], kafka=config.kafka)
        for action in ("start", "stop"):
            for name in names:
                manager.control.change(name, action)
            manager.run_once()
        for name in names:
            found = manager.control.condition(name)
            assert found is None or found.error is None, (name, found)
    return manager.control
