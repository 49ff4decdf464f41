"""A chain of masks over the records of one stream: checked as a whole, compiled once.

    record ─→ conform to the schema ─→ mask ─→ mask ─→ … ─→ record of the view, or Rejected

Rules that hold here:
- The output of one mask is the input of the next, in type as well.
- What leaves a chain has the fields of its schema and no others: a field that nobody
  declared has no place in a view.
- A record that misses a required field, or holds another type than declared, is rejected.
- `apply` never raises for what a record holds; it raises where the vault cannot be reached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from penstock.errors import InvalidError, Problem, quote
from penstock.lang.scalars import is_text
from penstock.masks.fields import CHECKS, FieldType, Schema
from penstock.masks.mask import Mask, Rejected, Stage, Step
from penstock.masks.supplies import Hierarchy, Supplies

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

    def __init__(self, masks: Sequence[Mask], schema: Schema, supplies: Supplies) -> None:
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
        self.output = derive_schema(masks, schema)
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
        return row
