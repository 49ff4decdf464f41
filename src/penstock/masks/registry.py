"""The row-wise masks by name, and how definitions of views are read into them.

    {anonymizer: bucketizing, keys: [age], bucket_size: 10}
    {anonymizer: bucketizing, parameters: [{keys: [age]}, {bucket_size: 10}]}

Rules that hold here:
- Both notations give the same mask. A parameter that stands there twice is a problem.
- All problems are collected, each with its place, such as `anonymizers[0].bucket_size`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from penstock.errors import InvalidError, Problem, quote
from penstock.masks.bucketizing import Bucketizing
from penstock.masks.generalization import Blurring, Generalization, Suppression
from penstock.masks.mask import Mask
from penstock.masks.noise import Noise
from penstock.masks.substitution import ConditionalSubstitution, Substitution
from penstock.masks.tokenization import Tokenization
from penstock.model.definition import Part, to_snake_case

_KINDS: Final[tuple[type[Mask], ...]] = (
    Suppression,
    Blurring,
    Substitution,
    Tokenization,
    Generalization,
    Bucketizing,
    Noise,
    ConditionalSubstitution,
)

MASKS: Final[Mapping[str, type[Mask]]] = {kind.name: kind for kind in _KINDS}

OTHER_NAMES: Final[Mapping[str, str]] = {"noise_methods": "noise"}
"""Names that files of others use."""


def find_mask(name: str) -> type[Mask] | None:
    """Return the mask of a name, or None where it is not row-wise or unknown."""
    return MASKS.get(OTHER_NAMES.get(name, name))


MAX_MASKS: Final = 64


def read_masks(items: Sequence[object], place: str = "anonymizers") -> tuple[Mask, ...]:
    """Return the masks of a list; raise InvalidError with all that is wrong with it."""
    problems: list[Problem] = []
    if len(items) > MAX_MASKS:
        problems.append(Problem(place, f"{len(items)} anonymizers are more than {MAX_MASKS}"))
    found = [
        read_mask(item, f"{place}[{index}]", problems)
        for index, item in enumerate(items[:MAX_MASKS])
    ]
    if problems:
        raise InvalidError(place, problems)
    return tuple(mask for mask in found if mask is not None)


def read_mask(item: object, place: str, problems: list[Problem]) -> Mask | None:
    """Return a mask, or None with what is wrong added to `problems`."""
    split = split_anonymizer(item, place, problems)
    if split is None:
        return None
    name, parameters = split
    kind = find_mask(name)
    if kind is None:
        near = difflib.get_close_matches(name, MASKS, n=1)
        fix = f"did you mean {near[0]!r}?" if near else f"row-wise masks are {', '.join(MASKS)}"
        problems.append(Problem(place, f"there is no row-wise mask {quote(name)}", fix))
        return None
    try:
        return kind.model_validate(parameters)
    except ValidationError as error:
        details = error.errors(include_url=False)
        problems.extend(_problem(detail, kind, place) for detail in details)
        return None


def split_anonymizer(
    item: object, place: str, problems: list[Problem]
) -> tuple[str, dict[str, Any]] | None:
    """Return name and parameters of an anonymizer in either notation, or None."""
    name = item.get("anonymizer") if isinstance(item, Mapping) else None
    if not isinstance(item, Mapping) or not isinstance(name, str):
        fix = "write {anonymizer: NAME, keys: [FIELD], …}"
        problems.append(Problem(place, "this names no anonymizer", fix))
        return None
    beside = {key: value for key, value in item.items() if key not in {"anonymizer", "parameters"}}
    lists = item.get("parameters", [])
    if isinstance(lists, Mapping):
        lists = [lists]
    if not isinstance(lists, list | tuple) or not all(isinstance(it, Mapping) for it in lists):
        fix = "write [{keys: [FIELD]}, {bucket_size: 10}]"
        problems.append(Problem(f"{place}.parameters", "this is no list of parameters", fix))
        return None
    parameters: dict[str, Any] = {}
    for part in (beside, *lists):
        for key, value in part.items():
            if key in parameters:
                message = f"the parameter {quote(key)} is given twice"
                problems.append(Problem(place, message, "leave one of them out"))
                return None
            parameters[str(key)] = value
    if isinstance(parameters.get("keys"), list | tuple):
        parameters["keys"] = [_read_key(key) for key in parameters["keys"]]
    return name, parameters


def _read_key(key: Any) -> Any:
    """Return the name of a field, which may be written {key: NAME}."""
    return key["key"] if isinstance(key, Mapping) and set(key) == {"key"} else key


def _problem(detail: ErrorDetails, kind: type[Mask], place: str) -> Problem:
    steps = [step for step in detail["loc"] if not str(step).startswith("(")]
    for step in steps:
        place += f"[{step}]" if isinstance(step, int) else f".{step}"
    match detail["type"]:
        case "extra_forbidden":
            return unknown_parameter(kind, kind.name, steps, place)
        case "missing":
            about = _describe(kind, str(steps[-1]))
            return Problem(place, "the parameter is missing", f"add it{about}")
        case "value_error":
            text, _, fix = detail["msg"].removeprefix("Value error, ").partition(" → ")
            return Problem(place, text, fix or None)
        case "too_short":
            return Problem(place, "the list is empty", "write at least one")
        case "too_long":
            most = detail.get("ctx", {}).get("max_length")
            return Problem(place, "the list is too long", f"write at most {most}")
        case _:
            message = detail["msg"][:1].lower() + detail["msg"][1:]
            return Problem(place, f"{quote(detail['input'], 40)}: {message}")


def unknown_parameter(
    kind: type[Part], name: str, steps: Sequence[str | int], place: str
) -> Problem:
    """Say that an anonymizer has no such parameter, and which one may be meant."""
    given = str(steps[-1])
    snake = to_snake_case(given)
    if snake != given and snake in _find_names(kind):
        message = f"{quote(given)} is no name of a parameter: those are written in snake_case"
        return Problem(place, message, f"write {snake}")
    known = [field.alias or name for name, field in kind.model_fields.items()]
    near = difflib.get_close_matches(given, known, n=1)
    fix = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(known))}"
    return Problem(place, f"{name} has no such parameter", fix)


def _find_names(kind: Any, seen: tuple[type[Part], ...] = ()) -> Iterator[str]:
    """Yield the names of all parameters, also of those within others."""
    if isinstance(kind, type) and issubclass(kind, Part) and kind not in seen:
        for name, field in kind.model_fields.items():
            yield field.alias or name
            yield from _find_names(field.annotation, (*seen, kind))
    for part in get_args(kind):
        yield from _find_names(part, seen)


def _describe(kind: type[Mask], alias: str) -> str:
    for name, field in kind.model_fields.items():
        if (field.alias or name) == alias and field.description:
            return f": {field.description}"
    return ""
