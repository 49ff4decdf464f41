"""The watch tells how it goes, also where no Kafka is within reach."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from penstock.components.processes import free_port
from penstock.config import load
from penstock.kafka import open_reconciler
from penstock.kafka.reconciler import BEHIND, FAILURES, make_health, run_watch
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions

PATIENCE = 120.0


def test_a_cluster_out_of_reach_is_tried_again_and_told(tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text(
        f"kafka: {{bootstrap: 127.0.0.1:{free_port()}, security: sasl_plaintext, "
        "password: {env: KAFKA_PASSWORD}, monitor_port: 0}\n"
    )
    config = load(tmp_path / "penstock.yaml", {"KAFKA_PASSWORD": "secret"})
    stop, before = threading.Event(), FAILURES._value.get()
    with Database.open(f"sqlite:///{tmp_path}/penstock.db") as database:
        definitions = CheckedDefinitions(Definitions(database))
        reconciler = open_reconciler(config.kafka, database, definitions)
        assert not make_health(reconciler, stop).readiness().ok, "it was not tried yet"
        watcher = threading.Thread(target=run_watch, args=(config, reconciler, stop))
        watcher.start()
        try:
            deadline = time.monotonic() + PATIENCE
            while FAILURES._value.get() < before + 2:
                assert time.monotonic() < deadline, "it was not tried again"
                time.sleep(0.05)
            assert BEHIND._value.get() == 1
            assert "cannot be reached" in reconciler.progress().trouble
        finally:
            stop.set()
            watcher.join()
        assert make_health(reconciler, stop).readiness().ok, "it was tried"
