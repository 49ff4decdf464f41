"""Masks by name, read from definitions, and chains of them over the records of one stream.

    {anonymizer: bucketizing, keys: [age], bucket_size: 10}
    {anonymizer: bucketizing, parameters: [{keys: [age]}, {bucket_size: 10}]}

    record ─→ conform to the schema ─→ mask ─→ mask ─→ … ─→ record of the view, or Rejected

Rules that hold here:
- Both notations give the same mask. A parameter that is listed twice is a problem.
- All problems are collected, each with its place, such as `anonymizers[0].bucket_size`.
- The output of one mask is the input of the next, in type as well.
- What leaves a chain has the fields of its schema and no others: a field that nobody
  declared has no place in a view.
- A record that misses a required field, or holds another type than declared, is rejected.
- Fields that are removed are checked and masked as others, and are not in what leaves.
- `apply` never raises for what a record holds; it raises where the vault cannot be reached.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from penstock.errors import InvalidError, Problem, quote
from penstock.lang.scalars import is_text
from penstock.masks.fields import CHECKS, FieldType, Schema
from penstock.masks.generalization import Blurring, Bucketizing, Generalization, Suppression
from penstock.masks.mask import Mask, Rejected, Stage, Step
from penstock.masks.noise import Noise
from penstock.masks.substitution import ConditionalSubstitution, Substitution
from penstock.masks.supplies import Hierarchy, Supplies
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
        problems.append(Problem(f"{place}.parameters", "this is not a list of parameters", fix))
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


NO_IDENTITY: Final = "the record has no identity, from which chance is drawn"


def check_masks(
    masks: Sequence[Mask],
    schema: Schema,
    hierarchies: Mapping[str, Hierarchy] | None = None,
    place: str = "anonymizers",
) -> list[Problem]:
    """Return all that is wrong with masks for a schema; nothing is needed but definitions."""
    return list(_walk_problems(masks, schema, hierarchies or {}, place))


def _walk_problems(
    masks: Sequence[Mask], schema: Schema, hierarchies: Mapping[str, Hierarchy], place: str
) -> Iterator[Problem]:
    for index, mask in enumerate(masks):
        for problem in mask.check(schema, hierarchies):
            yield Problem(f"{place}[{index}].{problem.place}", problem.message, problem.fix)
        schema = derive_schema([mask], schema)


def derive_schema(masks: Sequence[Mask], schema: Schema) -> Schema:
    """Return the schema after masks; what a mask does not take stays as it is."""
    fields = dict(schema)
    for mask in masks:
        for key in mask.keys:
            if key in fields and fields[key].type in mask.accepts:
                fields[key] = mask.output(fields[key])
    return fields


def missing_reason(name: str) -> str:
    """Return the reason for a record without a required field."""
    return f"the field {quote(name)} is required, and missing"


def type_reason(name: str, kind: FieldType) -> str:
    """Return the reason for a record with a value that its field cannot hold."""
    return f"the field {quote(name)} is declared {kind}, and holds something else"


class Chain:
    """Masks over one schema, ready to be applied; raises InvalidError for what is wrong."""

    def __init__(
        self,
        masks: Sequence[Mask],
        schema: Schema,
        supplies: Supplies,
        removed: Sequence[str] = (),
    ) -> None:
        problems = check_masks(masks, schema, supplies.hierarchies)
        for index, mask in enumerate(masks):
            place = f"anonymizers[{index}]"
            if mask.needs_keys and supplies.keys is None:
                problems.append(Problem(place, f"{mask.name} needs the keys of the view"))
            if mask.needs_vault and supplies.vault is None:
                problems.append(Problem(place, f"{mask.name} needs a vault, and there is none"))
        if problems:
            raise InvalidError("anonymizers", problems)
        self.masks = tuple(masks)
        self.schema = dict(schema)
        self.supplies = supplies
        self.removed = tuple(removed)
        output = derive_schema(masks, schema)
        self.output = {name: it for name, it in output.items() if name not in self.removed}
        self.needs_identity = any(mask.needs_identity for mask in masks)

    @cached_property
    def stages(self) -> list[tuple[Mask, Stage]]:
        """The masks, each with the schema it meets and a label for each of its keys.

        The label counts the masks of the same kind on a field, so that two of them draw
        differently, and a mask draws the same when others are added around it.
        """
        schema: Schema = self.schema
        counts: Counter[tuple[str, str]] = Counter()
        stages = []
        for mask in self.masks:
            labels = {key: str(counts[mask.name, key]) for key in mask.keys}
            counts.update((mask.name, key) for key in mask.keys)
            stages.append((mask, Stage(schema, labels, self.supplies)))
            schema = derive_schema([mask], schema)
        return stages

    @cached_property
    def _steps(self) -> list[Step]:
        return [step for mask, stage in self.stages for step in mask.compile(stage)]

    @cached_property
    def _checks(self) -> list[tuple[str, Any, str | None, str]]:
        return [
            (
                name,
                CHECKS[found.type],
                None if found.optional else missing_reason(name),
                type_reason(name, found.type),
            )
            for name, found in self.schema.items()
        ]

    def apply(
        self, record: Mapping[str, Any], identity: str | None = None
    ) -> dict[str, Any] | Rejected:
        """Return the record of the view, or why there is none.

        `identity` names the record for good (topic, partition and offset, say); only masks
        that draw chance look at it.
        """
        row: dict[str, Any] = {}
        for name, check, missing, wrong in self._checks:
            value = record.get(name)
            if value is None:
                if missing is not None:
                    return Rejected(missing)
            else:
                value = check(value)
                if value is None:
                    return Rejected(wrong)
            row[name] = value
        if identity is None or not is_text(identity):
            if self.needs_identity:
                return Rejected(NO_IDENTITY)
            identity = ""
        for step in self._steps:
            reason = step(row, identity)
            if reason is not None:
                return Rejected(reason)
        for name in self.removed:
            row.pop(name, None)
        return row
