"""Anonymizers as requirements files write them, in the words of definitions.

    {"anonymizer": "univariate_micro_aggregation", "parameters": [{"windowSize": 25, "k": 20}]}
    {"key": "age", "bucketing": {"bucketSize": 3, "range": [0, 100]}}

Rules that hold here:
- Parameters are spelt there in camelCase; definitions have them in snake_case. Names of fields
  and values stay as they are. Numbers may stand in quotes, and in a hierarchy without them.
- What a mask puts in place of a value is text there. Where the field is a number and the text
  is none, the field becomes text: `as: text` declares it.
- What is no parameter stays as it is: the check of the definition tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from penstock.errors import quote
from penstock.masks.fields import DATES, FieldType, read_constant
from penstock.model.definition import to_snake_case

WINDOW: Final = {"window_size": "size", "advance_time": "advance", "grace_period": "grace"}
NUMBERS: Final = frozenset(
    {*WINDOW, "k", "l", "t", "delta", "mu", "beta", "n_fields", "seed", "noise", "bucket_size"}
)
NAMES: Final[Mapping[str, str]] = {
    "bucketing": "bucketizing",
    "noise_methods": "noise",
    "univariate_micro_aggregation": "univariate_microaggregation",
    "univariant_micro_aggregation": "univariate_microaggregation",
    "multivariate_micro_aggregation": "multivariate_microaggregation",
    "multivariant_micro_aggregation": "multivariate_microaggregation",
}
"""What anonymizers are called there, where it differs."""
SUBSTITUTING: Final = frozenset({"substitution", "conditional_substitution"})
POSTCODE: Final = "zip"
"""The field whose general value is looked up there by its first character alone."""
ENDS: Final = 2

Types = Mapping[str, FieldType]
Complain = Callable[[str, str], None]
"""Takes what is wrong, and the fix."""


def spell(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield parameters as definitions spell them."""
    return ((to_snake_case(str(key)), value) for key, value in given.items())


def translate(
    name: str, parameters: Mapping[str, Any], types: Types, complain: Complain
) -> dict[str, Any]:
    """Return an anonymizer of a definition; `parameters` are in snake_case already."""
    made = {
        key: read_number(value) if key in NUMBERS else _spell_within(key, value, complain)
        for key, value in parameters.items()
    }
    name = NAMES.get(name, name)
    keys = made.get("keys")
    if name == "bucketizing":
        _place_buckets(made)
    if name == "generalization" and keys == [POSTCODE]:
        _match_beginnings(made)
    if name in SUBSTITUTING and isinstance(keys, list):
        _declare_text(made, [types[key] for key in keys if key in types])
    return {"anonymizer": name, **made}


def _spell_within(key: str, value: Any, complain: Complain) -> Any:
    if key in {"quasi_identifiers", "sensitive"} and isinstance(value, list):
        return [
            _read_ranged(dict(spell(it)), complain) if isinstance(it, Mapping) else it
            for it in value
        ]
    if key == "hierarchy":
        return _write_tree(value)
    if key == "condition_map" and isinstance(value, Mapping):
        if not any(isinstance(it, Mapping) for it in value.values()):
            return dict(spell(value))
        return {k: dict(spell(it)) if isinstance(it, Mapping) else it for k, it in value.items()}
    return value


def _read_ranged(field: dict[str, Any], complain: Complain) -> dict[str, Any]:
    """Return a field with its bounds; buckets stand in a part of their own there."""
    if "hierarchy" in field:
        field["hierarchy"] = _write_tree(field["hierarchy"])
    if "bucketing" not in field:
        return field
    buckets = field.pop("bucketing")
    inside = dict(spell(buckets)) if isinstance(buckets, Mapping) else {}
    if not _is_range(inside.get("range")) or not inside.keys() <= {"range", "bucket_size"}:
        about = quote(field.get("key"))
        complain(f"bucketing of {about} has no range", 'write {"bucketSize": 5, "range": [0, 100]}')
        # Any bounds do: nothing of the file is applied, and the rest of it is checked.
        inside = {"range": [0, 1]}
    low, high = map(read_number, inside.pop("range"))
    numbers = {key: read_number(value) for key, value in inside.items()}
    return {**field, "min": low, "max": high, **numbers}


def _is_range(value: object) -> bool:
    return isinstance(value, list) and len(value) == ENDS


def _write_tree(node: Any) -> Any:
    """Return a tree whose values are texts."""
    if not isinstance(node, Mapping):
        return node
    made = dict(node)
    value, children = node.get("value"), node.get("children")
    if isinstance(value, int) and not isinstance(value, bool):
        made["value"] = str(value)
    if isinstance(children, list):
        made["children"] = [_write_tree(child) for child in children]
    return made


def _place_buckets(made: dict[str, Any]) -> None:
    """Let buckets begin where the range does."""
    if _is_range(made.get("range")):
        low = read_number(made.pop("range")[0])
        if low != 0:
            made.setdefault("origin", low)


def _match_beginnings(made: dict[str, Any]) -> None:
    table = made.get("generalization_map")
    if isinstance(table, Mapping) and all(len(str(key)) == 1 for key in table):
        made.setdefault("beginning", 1)


def _declare_text(made: dict[str, Any], types: Sequence[FieldType]) -> None:
    """Bring substitutes to the fields' type, or declare that the fields become text."""
    given = made.get("substitution_list")
    if not isinstance(given, list) or not set(types) - {FieldType.STRING}:
        return
    read = [[read_constant(kind, it) for it in given] for kind in types]
    if all(it is not None for line in read for it in line) and len(set(types)) == 1:
        # Dates are written as text in definitions.
        made["substitution_list"] = given if types[0] in DATES else read[0]
    else:
        made.setdefault("as", "text")
        made["substitution_list"] = [str(it) if type(it) in {int, float} else it for it in given]


def read_number(value: Any) -> Any:
    """Return the number that a text is; everything else as it is."""
    if isinstance(value, str):
        for read in (int, float):
            try:
                return read(value)
            except ValueError:
                continue
    return value
