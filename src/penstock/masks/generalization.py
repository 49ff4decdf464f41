"""Suppression, blurring and generalization: a value is hidden, in part, or told less exactly.

Rules that hold here:
- Suppressed text becomes `*`, everything else null. Null in a text becomes `*` too: whether there
  was a value is hidden as well.
- Blurring replaces part of a text by Xs, as in `XXXXXXXXXXXXX313`. What is left is shown as it
  was, so that it hides little from who knows the rest. Of a number its notation is blurred, with
  the sign.
- Generalization replaces a value by what it is an instance of (Berlin → Germany). One that the map
  or hierarchy does not know becomes the declared default, or the record is rejected; it never
  passes as it is. Numbers match as numbers: the key "07" of a map is the int 7.
- With `beginning`, the first characters of the value's notation are looked up as a text; the
  notation of a number has no leading zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Discriminator, Tag, model_validator
from pydantic import Field as Parameter

from penstock.errors import Problem, quote
from penstock.masks.fields import DISCRETE, INTEGERS, TEXTS, Field, FieldType, read_text
from penstock.masks.mask import FieldName, Mask, Row, Stage, Step, Target, Text, Transform
from penstock.masks.supplies import MAX_DEPTH, Hierarchy

SYMBOL: Final = "*"


class Suppression(Mask):
    """Replaces values by `*`, or by null where the field is not text."""

    name: ClassVar[str] = "suppression"
    accepts: ClassVar[frozenset[FieldType]] = frozenset(FieldType)

    as_: Literal["text"] | None = Parameter(
        default=None,
        alias="as",
        description="`text`: fields of every type become text, and hold `*`. "
        "Otherwise numbers, dates and the like become null.",
    )

    def output(self, found: Field) -> Field:
        """Text stays text; other types become optional, or text where that is declared."""
        if found.type is FieldType.STRING or self.as_:
            return Field(FieldType.STRING)
        return replace(found, optional=True)

    def compile(self, stage: Stage) -> list[Step]:
        """Return the steps: each sets a constant, also in place of null."""
        return [_set(key, self.replacement(stage.schema[key])) for key in self.keys]

    def replacement(self, found: Field) -> str | None:
        """Return what stands in place of every value of a field."""
        return SYMBOL if self.output(found).type is FieldType.STRING else None


def _set(name: str, constant: str | None) -> Step:
    def step(row: Row, _: str) -> None:
        row[name] = constant

    return step


BLUR_SYMBOL: Final = "X"


class Blurring(Mask):
    """Replaces characters of a text by X."""

    name: ClassVar[str] = "blurring"
    accepts: ClassVar[frozenset[FieldType]] = INTEGERS | {FieldType.STRING}

    n_fields: int | None = Parameter(
        default=None,
        gt=0,
        le=65_536,
        description="How many characters to blur; all where it is left out.",
    )
    keep_length: bool = Parameter(
        default=True,
        description="Whether each blurred character becomes an X; "
        "otherwise one X stands for all of them.",
    )
    from_: Literal["start", "end"] = Parameter(
        default="start", alias="from", description="The end of the text where blurring begins."
    )

    def output(self, found: Field) -> Field:
        """Return a text, whatever the field was."""
        return found.as_type(FieldType.STRING)

    def transform(self, target: Target) -> Transform:
        """Return the function over texts or whole numbers."""
        write = TEXTS[target.field.type]
        limit, at_start = self.n_fields, self.from_ == "start"
        fixed = None if self.keep_length else BLUR_SYMBOL

        def blur(value: object, _: str) -> str:
            text = write(value)
            count = len(text) if limit is None else min(limit, len(text))
            hidden = fixed or BLUR_SYMBOL * count
            return hidden + text[count:] if at_start else text[: len(text) - count] + hidden

        return blur


MAX_ENTRIES: Final = 100_000
MAX_BEGINNING: Final = 4096


def _tell_form(value: object) -> str | None:
    match value:
        case str():
            return "(name)"
        case Hierarchy() | Mapping():
            return "(tree)"
        case _:
            return None


HierarchyOrName = Annotated[
    Annotated[FieldName, Tag("(name)")] | Annotated[Hierarchy, Tag("(tree)")],
    Discriminator(
        _tell_form,
        custom_error_type="hierarchy",
        custom_error_message="name a hierarchy, or write its tree: {value, children}",
    ),
]


class Generalization(Mask):
    """Replaces values by more general ones."""

    name: ClassVar[str] = "generalization"
    accepts: ClassVar[frozenset[FieldType]] = DISCRETE - {FieldType.TIMESTAMP}
    refusal: ClassVar[str] = "the value is not in the map or hierarchy, and there is no default"

    generalization_map: Mapping[Text, Text] | None = Parameter(
        default=None,
        min_length=1,
        max_length=MAX_ENTRIES,
        description="The general value for each value.",
    )
    hierarchy: HierarchyOrName | None = Parameter(
        default=None, description="The name of a hierarchy, or its tree: {value, children}."
    )
    level: int | None = Parameter(
        default=None, gt=0, le=MAX_DEPTH, description="How many steps to go up in the hierarchy."
    )
    beginning: int | None = Parameter(
        default=None,
        gt=0,
        le=MAX_BEGINNING,
        description="How many characters of a value the map knows it by, such as the first "
        "digit of a postcode; left out: all.",
    )
    default: Text | None = Parameter(
        default=None, description="What unknown values become; left out: the record is rejected."
    )

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        if (self.generalization_map is None) == (self.hierarchy is None):
            raise ValueError(
                "give generalization_map, or hierarchy and level → exactly one of both"
            )
        if (self.hierarchy is None) != (self.level is None):
            raise ValueError("hierarchy and level go together → give both")
        if self.beginning is not None:
            if self.generalization_map is None:
                raise ValueError("beginning is for generalization_map → leave it out")
            for text in self.generalization_map:
                if len(text) > self.beginning:
                    raise ValueError(
                        f"{quote(text)} has more than {self.beginning} characters, so that no "
                        "value is found by it → shorten it, or make beginning greater"
                    )
        return self

    def check_field(
        self, name: str, found: Field, hierarchies: Mapping[str, Hierarchy]
    ) -> Iterator[Problem]:
        """Yield an unknown hierarchy, and values that are none of the field's type."""
        if isinstance(self.hierarchy, str) and self.hierarchy not in hierarchies:
            known = ", ".join(sorted(hierarchies)) or "none yet"
            message = f"there is no hierarchy {quote(self.hierarchy)}"
            yield Problem("hierarchy", message, f"hierarchies are {known}")
            return
        place = "hierarchy" if self.hierarchy else "generalization_map"
        seen: dict[Any, str] = {}
        kind = FieldType.STRING if self.beginning is not None else found.type
        for text, general in self.pairs(hierarchies).items():
            value = read_text(kind, text)
            if value is None:
                message = f"{quote(text)} is no {found.type}, as {quote(name)} is"
                yield Problem(place, message, f"write values as {found.type}")
            elif seen.setdefault(value, general) != general:
                message = f"{quote(text)} is there twice, with different general values"
                yield Problem(place, message, "leave one of them out")

    def pairs(self, hierarchies: Mapping[str, Hierarchy]) -> Mapping[str, str]:
        """Return the general value for each value, as texts."""
        if self.generalization_map is not None:
            return self.generalization_map
        chosen = self.hierarchy
        tree = chosen if isinstance(chosen, Hierarchy) else hierarchies[str(chosen)]
        return tree.at_level(self.level or 1)

    def table(self, target: Target) -> dict[str, str]:
        """Return the general value for the notation of each value, or for how it begins."""
        pairs = self.pairs(target.supplies.hierarchies)
        if self.beginning is not None:
            return dict(pairs)
        kind, write = target.field.type, TEXTS[target.field.type]
        return {write(read_text(kind, text)): general for text, general in pairs.items()}

    def output(self, found: Field) -> Field:
        """Return a text, whatever the field was."""
        return found.as_type(FieldType.STRING)

    def transform(self, target: Target) -> Transform:
        """Return the look-up."""
        table, default, end = self.table(target), self.default, self.beginning
        write = TEXTS[target.field.type]
        return lambda value, _: table.get(write(value)[:end], default)
