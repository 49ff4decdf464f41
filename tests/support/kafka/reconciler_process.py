"""A process that brings Kafka to what a store says when it is told to: to be killed at it.

Run as `python -m tests.support.kafka.reconciler_process FOLDER BOOTSTRAP PASSWORD_FILE`. It
says that it is ready, waits for a line that says `follow` or `repair`, does it, and says that
it is done.
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.config.brokers import KafkaSettings
from penstock.config.secrets import KeyFile, SecretFile
from penstock.kafka import open_reconciler
from penstock.store import kafka_users
from penstock.store.database import Database
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.history import Definitions

HOLD_SECONDS = 2.0
"""How long who comes next has to wait after a kill; shorter than in earnest."""


def main(folder: Path, bootstrap: str, password: Path) -> None:
    """Do what the line says."""
    kafka_users.HOLD_SECONDS = HOLD_SECONDS
    kafka_users._RENEW_SECONDS = HOLD_SECONDS / 4
    settings = KafkaSettings(
        bootstrap=bootstrap,
        security="sasl_plaintext",
        password=SecretFile(password),
        key=KeyFile(folder / "credentials.key"),
        iterations=4096,
        timeout=60,
    )
    with Database.open(f"sqlite:///{folder}/penstock.db") as database:
        reconciler = open_reconciler(settings, database, CheckedDefinitions(Definitions(database)))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        if sys.stdin.readline().strip() == "follow":
            reconciler.follow_up()
        else:
            reconciler.repair()
        sys.stdout.write("done\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
