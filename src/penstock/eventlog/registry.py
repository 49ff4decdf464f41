"""A schema registry: Avro schemas that have numbers for good, and subjects with versions.

    value in a topic  =  00  number (4 bytes)  datum

Rules that hold here:
- A number has one schema for good, so each is asked for once in a process. That the registry
  does not know a number is a fact about the record; that it does not answer is trouble that
  passes.
- A topic's values have the subject `TOPIC-value`. What a new version may change is for the
  registry to say, by the compatibility that it keeps for the subject.
- Answers are bounded in size and time. No redirect is followed with our password.
"""

from __future__ import annotations

import base64
import io
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from typing_extensions import override

from penstock.errors import UsageError, quote
from penstock.eventlog.connection import GREETING_SECONDS, REASON_LIMIT, BrokerError

if TYPE_CHECKING:
    from penstock.config.brokers import KafkaRegistrySettings

MAX_SCHEMA: Final = 1 << 20
NO_ANSWER: Final = "the schema registry did not answer"
HEADER: Final = 5
_TYPE: Final = "application/vnd.schemaregistry.v1+json"


class SchemaRegistry:
    """One registry; goes to the tasks of Spark as a whole."""

    def __init__(self, url: str, login: str | None = None, ca: Path | None = None) -> None:
        self.url = url
        self._login = login
        self._ca = ca
        self._numbers: dict[tuple[str, str], int] = {}
        self._schemas: dict[int, Any] = {}

    @classmethod
    def of(cls, settings: KafkaRegistrySettings) -> Self:
        """Return the registry that the settings name."""
        if settings.url is None:
            raise UsageError(
                "no schema registry is named", fix="set kafka.registry.url in penstock.yaml"
            )
        login = None
        if settings.user is not None and settings.password is not None:
            login = f"{settings.user}:{settings.password.read_text()}"
        return cls(settings.url.rstrip("/"), login, settings.ca)

    def __call__(self, number: int) -> Any:
        """Return the schema of a number; raise LookupError where there is none."""
        answer = self._ask(f"/schemas/ids/{number}")
        try:
            return json.loads(answer["schema"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise LookupError(number) from None

    def register(self, subject: str, schema: Mapping[str, Any]) -> int:
        """Return the number of a schema; it becomes the newest of the subject where it is new."""
        text = json.dumps(schema)
        if (subject, text) not in self._numbers:
            answer = self._ask(f"/subjects/{_quote(subject)}/versions", {"schema": text})
            number = answer.get("id") if answer else None
            if not isinstance(number, int):
                raise failed("it gave no number to a schema")
            self._numbers[subject, text] = number
        return self._numbers[subject, text]

    def newest(self, subject: str) -> Any:
        """Return the newest schema of a subject; None where there is none."""
        answer = self._ask(f"/subjects/{_quote(subject)}/versions/latest")
        try:
            return json.loads(answer["schema"]) if answer else None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise failed("its answer holds no schema") from None

    def find_conflict(self, subject: str, schema: Mapping[str, Any]) -> str | None:
        """Say why a schema cannot follow the newest of a subject; None where it can."""
        path = f"/compatibility/subjects/{_quote(subject)}/versions/latest?verbose=true"
        answer = self._ask(path, {"schema": json.dumps(schema)})
        if not answer or answer.get("is_compatible") is not False:
            return None  # the first of the subject, or one that fits
        told = answer.get("messages") or ["the registry does not say why"]
        return str(told[0])[:REASON_LIMIT]

    def decode(self, value: bytes) -> dict[str, Any]:
        """Return the fields of a value that names its schema."""
        import fastavro  # noqa: PLC0415 - for those who read Avro

        number = int.from_bytes(value[1:HEADER])
        if number not in self._schemas:
            self._schemas[number] = fastavro.parse_schema(self(number))
        schema = self._schemas[number]
        found: Any = fastavro.schemaless_reader(io.BytesIO(value[HEADER:]), schema, None)
        called = {it["name"]: it.get("doc", it["name"]) for it in schema["fields"]}
        return {called[name]: item for name, item in found.items()}

    def _ask(self, path: str, data: Mapping[str, Any] | None = None) -> Any:
        headers = {"Accept": f"{_TYPE}, application/json", "Content-Type": _TYPE}
        if self._login is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(self._login.encode()).decode()
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(self.url + path, body, headers)  # noqa: S310 - http(s) only
        context = ssl.create_default_context(cafile=self._ca) if self.url[:5] == "https" else None
        opener = urllib.request.build_opener(
            _NoRedirect(), urllib.request.HTTPSHandler(context=context)
        )
        try:
            with opener.open(request, timeout=GREETING_SECONDS) as answer:
                return json.loads(answer.read(MAX_SCHEMA + 1))
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return None
            if error.code in {HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY}:
                raise UsageError(
                    f"the schema registry refuses the schema of {quote(path.split('/')[2])}: "
                    f"{_read_reason(error)}",
                    fix="give the view another name, or change the subject's compatibility",
                ) from None
            raise failed(f"it says {error.code}") from None
        except OSError as error:
            raise failed(str(getattr(error, "reason", error))[:REASON_LIMIT]) from None
        except (ValueError, RecursionError):
            raise failed("its answer is not JSON") from None


def subject_of(topic: str) -> str:
    """Return the subject of a topic's values."""
    return f"{topic}-value"


def topic_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema that the values of a view's topic have.

    Every field may be null and has null as its default, so that fields can come and go.
    """
    fields = []
    for field in schema["fields"]:
        kind = field["type"]
        kinds = [it for it in (kind if isinstance(kind, list) else [kind]) if it != "null"]
        fields.append({**field, "type": ["null", *kinds], "default": None})
    return {**schema, "name": "View", "fields": fields}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    @override
    def redirect_request(self, *_: Any) -> None:
        return None


def _quote(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")


def _read_reason(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read(MAX_SCHEMA))["message"])[:REASON_LIMIT]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return f"it says {error.code}"


def failed(reason: str) -> BrokerError:
    """Return the error of a registry that cannot be asked."""
    return BrokerError(
        f"{NO_ANSWER}: {reason}",
        fix="check kafka.registry, or `registry` of the stream's source, and that it runs",
    )
