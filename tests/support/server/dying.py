"""Runs `penstock server run`, and kills it at a commit of a request.

    dying.py POINT

POINT is before-commit or after-commit. The first commit of a request is the last.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from penstock.cli import main
from penstock.store.database import Database
from penstock.store.rights.requests import RequestBook


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arrange(point: str) -> None:
    submit, confirm = RequestBook.submit_each, Database._confirm
    under_way: list[bool] = []

    def submit_and_die(self: RequestBook, requests: Any, *, then: Any) -> Any:
        def before(connection: Any, made: Any) -> None:
            then(connection, made)
            if point == "before-commit":
                die()
            under_way.append(True)

        return submit(self, requests, then=before)

    def confirm_and_die(self: Database, connection: Any) -> None:
        if under_way:
            die()
        confirm(self, connection)

    RequestBook.submit_each = submit_and_die  # type: ignore[assignment, method-assign]
    Database._confirm = confirm_and_die  # type: ignore[method-assign]


if __name__ == "__main__":
    arrange(sys.argv[1])
    main(["server", "run", "--json"])
