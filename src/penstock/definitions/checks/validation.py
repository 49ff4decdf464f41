"""Validates a document against the model of its kind, and words pydantic's errors for people."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from penstock.definitions.checks import Locate
from penstock.errors import Problem, quote
from penstock.model.definition import Definition, Steps
from penstock.model.document import Document
from penstock.model.kinds import KINDS


def validate_document(
    document: Document, locate: Locate, problems: list[Problem]
) -> Definition | None:
    """Return the definition, or None with what is wrong added to `problems`."""
    model = KINDS.get(document.kind)
    if model is None:
        problems.append(
            Problem(
                locate(document.key, ()),
                f"there is no kind {quote(document.kind)}",
                find_nearest(document.kind, KINDS) or f"kinds are {', '.join(sorted(KINDS))}",
            )
        )
        return None
    try:
        return model.model_validate({"name": document.name, **document.body})
    except ValidationError as error:
        problems.extend(
            _problem(detail, model, document, locate)
            for detail in error.errors(include_url=False)
            if not follows_from_others(detail)
        )
        return None


def follows_from_others(detail: ErrorDetails) -> bool:
    """Whether a list is only too short because its entries are wrong, which is told of each."""
    given = detail["input"]
    least = detail.get("ctx", {}).get("min_length", 0)
    return detail["type"] == "too_short" and isinstance(given, list) and len(given) >= least


def word_bound(detail: ErrorDetails) -> tuple[str, str] | None:
    """Say which bound a value is beyond, and what to write; None where it is something else."""
    found = _BOUNDS.get(detail["type"])
    if found is None:
        return None
    name, judged, fix = found
    return f"{quote(detail['input'], 40)} is {judged}", fix.format(detail.get("ctx", {})[name])


_BOUNDS = {
    "greater_than_equal": ("ge", "too small", "write a number of at least {}"),
    "greater_than": ("gt", "too small", "write a number above {}"),
    "less_than_equal": ("le", "too large", "write a number of at most {}"),
    "less_than": ("lt", "too large", "write a number below {}"),
    "too_short": ("min_length", "too short", "give at least {}"),
    "too_long": ("max_length", "too long", "give at most {}"),
}


def _problem(
    detail: ErrorDetails, model: type[Definition], document: Document, locate: Locate
) -> Problem:
    path: Steps = detail["loc"]
    place = locate(document.key, path)
    field = ".".join(map(str, path))
    match detail["type"]:
        case "extra_forbidden":
            known = _fields_at(model, path)
            fix = find_nearest(str(path[-1]), known) or f"known fields: {', '.join(sorted(known))}"
            return Problem(place, f"there is no field {quote(path[-1])} here", fix)
        case "missing":
            about = _describe(model, path)
            return Problem(place, f"the field {field!r} is missing", f"add it{about}")
        case "value_error" | "secret" as found:
            text, _, fix = detail["msg"].removeprefix("Value error, ").partition(" → ")
            quoted = found == "secret" or quote(detail["input"]) in text
            return Problem(
                place, text if quoted else f"{quote(detail['input'])}: {text}", fix or None
            )
        case "literal_error":
            choices = str(detail.get("ctx", {}).get("expected", ""))
            return Problem(place, f"{quote(detail['input'])} is not a choice", f"write {choices}")
        case "tuple_type":
            return Problem(
                place, f"{quote(detail['input'])} is not a list", f"write [{detail['input']}]"
            )
        case _:
            message = detail["msg"][:1].lower() + detail["msg"][1:]
            other = f"{quote(detail['input'])}: {message}", f"see `penstock schema {model.kind}`"
            return Problem(place, *(word_bound(detail) or other))


def _fields_at(model: type[Definition], path: Steps) -> list[str]:
    """Return the fields that stand beside the one at `path`; the top ones where unsure."""
    current: Any = model
    for step in path[:-1]:
        fields = getattr(current, "model_fields", {})
        current = fields[step].annotation if step in fields else current
    fields = getattr(current, "model_fields", None) or model.model_fields
    return [field.alias or name for name, field in fields.items()]


def _describe(model: type[Definition], path: Steps) -> str:
    field = model.model_fields.get(str(path[0])) if len(path) == 1 else None
    return f": {field.description}" if field and field.description else ""


def find_nearest(word: str, known: Mapping[str, Any] | list[str]) -> str | None:
    """Ask whether a known word was meant, if one is much alike."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else None
