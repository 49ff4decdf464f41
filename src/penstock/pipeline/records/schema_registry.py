"""Finds the schemas that Avro values name by a number, at a schema registry.

Rules that hold here:
- A number has one schema for good, so each is asked for once in a process.
- That the registry does not know a number is a fact about the record; that it does not
  answer is trouble that passes, and stops the batch.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any, Final

from penstock.eventlog.connection import BrokerError

SECONDS: Final = 10
MAX_SCHEMA: Final = 1 << 20
NO_ANSWER: Final = "the schema registry did not answer"


class RegistrySchemas:
    """Asks a registry; goes to the tasks as a whole."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, number: int) -> Any:
        """Return the schema of a number; raise LookupError where there is none."""
        request = urllib.request.Request(  # noqa: S310 - http and https only, says the definition
            f"{self.url}/schemas/ids/{number}",
            headers={"Accept": "application/vnd.schemaregistry.v1+json, application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
                content = answer.read(MAX_SCHEMA + 1)
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                raise LookupError(number) from None
            raise _failed(f"it says {error.code}") from None
        except OSError as error:
            raise _failed(str(getattr(error, "reason", error))) from None
        try:
            return json.loads(json.loads(content)["schema"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise LookupError(number) from None


def _failed(reason: str) -> BrokerError:
    return BrokerError(f"{NO_ANSWER}: {reason}", fix="check `registry` of the stream's source")
