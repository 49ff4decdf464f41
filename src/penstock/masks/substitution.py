"""Substitution: a value is replaced by one of a list, always or where a record meets a condition.

Rules that hold here:
- Consistent unless `random`: the keyed hash of the value chooses, so that the same value
  always gets the same substitute in this view, and nobody without the key can tell which.
- The type of a field stays, or becomes text where `as: text` declares it.
- Several values may share a substitute, and a value may meet itself where it stands in
  the list: nothing in the output tells such a case from any other.
- Conditions are asked of the record as it came to this mask, for all keys before any
  of them is replaced. One without an answer (a null field, say) counts as met: what cannot be
  decided must not be shown.
- Where a condition is met, null is replaced as well.
- Conditions become expressions of `penstock.lang`, so that they mean the same on null, on NaN and
  in Spark. A range includes both its ends, as the notation [0, 18] says; null leaves an end open.
  A regular expression is looked for anywhere in the text, in linear time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Discriminator, Tag, model_validator
from pydantic import Field as Parameter
from typing_extensions import override

from penstock.errors import Problem, quote
from penstock.lang import Expression, ExpressionError, compile_expression
from penstock.lang.errors import MAX_TEXT
from penstock.lang.scalars import RegexError, compile_regex
from penstock.lang.tree import find_references
from penstock.lang.types import BOOL, DOUBLE, INT, STRING, TIMESTAMP, RecordType, Scope, Type
from penstock.masks.fields import (
    DECIMALS,
    DISCRETE,
    INTEGERS,
    TEXTS,
    Field,
    FieldType,
    Schema,
    read_constant,
)
from penstock.masks.mask import (
    FieldName,
    Mask,
    Row,
    Stage,
    Step,
    Substitutes,
    Target,
    Transform,
    check_constant,
    check_fit,
    fit,
)
from penstock.masks.supplies import Hierarchy, draw
from penstock.model.definition import Part, to_snake_case

ROOT: Final = "r"
MAX_MATCHES: Final = 200
FORMS: Final = frozenset({"match_value", "match_range", "match_regex"})
_TYPES: Final[Mapping[FieldType, Type]] = {
    FieldType.STRING: STRING,
    FieldType.INT: INT,
    FieldType.LONG: INT,
    FieldType.FLOAT: DOUBLE,
    FieldType.DOUBLE: DOUBLE,
    FieldType.BOOLEAN: BOOL,
    FieldType.DATE: TIMESTAMP,
    FieldType.TIMESTAMP: TIMESTAMP,
}


def make_scope(schema: Schema) -> Scope:
    """Return the scope of expressions over one record, whose root is `r`.

    A date is the moment at which it begins in UTC.
    """
    fields = tuple((name, _TYPES[found.type]) for name, found in schema.items())
    return Scope(((ROOT, RecordType(fields)),))


def _check_pattern(text: str) -> str:
    try:
        compile_regex(text)
    except RegexError as error:
        raise ValueError(f"it is not a regular expression of RE2: {error}") from None
    return text


def _check_range(ends: tuple[Any, ...]) -> tuple[Any, ...]:
    for end in ends:
        if end is not None and not isinstance(end, int | float | str):
            raise ValueError("write numbers, dates, or null for an open end")
    if ends == (None, None):
        raise ValueError("a range has at least one end")
    return ends


def _list_values(value: Any) -> Any:
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not 0 < len(values) <= MAX_MATCHES:
        raise ValueError(f"write 1 to {MAX_MATCHES} values")
    return tuple(map(check_constant, values))


class Condition(Part):
    """A condition on one field: exactly one of three forms."""

    match_value: Annotated[Any, AfterValidator(_list_values)] = Parameter(
        default=None, description="The value, or a list of such values."
    )
    match_range: Annotated[tuple[Any, Any], AfterValidator(_check_range)] | None = Parameter(
        default=None,
        strict=False,
        description="The least and the largest value.",
    )
    match_regex: Annotated[str, AfterValidator(_check_pattern)] | None = Parameter(
        default=None, description="A regular expression (RE2)."
    )

    @model_validator(mode="after")
    def _check_forms(self) -> Self:
        forms = (self.match_value, self.match_range, self.match_regex)
        if sum(form is not None for form in forms) != 1:
            raise ValueError("write exactly one of match_value, match_range and match_regex")
        return self

    def check(self, place: str, name: str, found: Field) -> Iterator[Problem]:
        """Yield what does not fit the type of the field."""
        kind = found.type
        if self.match_regex is not None:
            if kind is not FieldType.STRING:
                message = f"{quote(name)} is {kind}, and a regular expression needs text"
                yield Problem(f"{place}.match_regex", message, "use match_value or match_range")
        elif self.match_range is not None:
            if kind in {FieldType.STRING, FieldType.BOOLEAN, FieldType.TIMESTAMP}:
                message = f"{quote(name)} is {kind}, which has no ranges"
                yield Problem(f"{place}.match_range", message, "use match_value or an expression")
            elif None in [_end(end, kind) for end in self.match_range if end is not None]:
                message = f"an end of the range is no {kind}, as {quote(name)} is"
                yield Problem(f"{place}.match_range", message, f"write both ends as {kind}")
        elif kind is FieldType.TIMESTAMP:
            message = f"{quote(name)} is {kind}, which is never matched exactly"
            yield Problem(f"{place}.match_value", message, "use an expression")
        elif None in [read_constant(kind, value) for value in self.match_value]:
            message = f"a value is no {kind}, as {quote(name)} is"
            yield Problem(f"{place}.match_value", message, f"write it as {kind}")

    def expression(self, name: str, found: Field) -> str:
        """Return the condition as an expression."""
        field = f"{ROOT}[{_literal(name)}]"
        if self.match_regex is not None:
            return f"{field}.matches({_literal(self.match_regex)})"
        if self.match_range is None:
            values = [_literal(read_constant(found.type, value)) for value in self.match_value]
            return f"{field} == {values[0]}" if len(values) == 1 else f"{field} in {_list(values)}"
        low, high = self.match_range
        parts = []
        if low is not None:
            parts.append(f"{field} >= {_literal(_end(low, found.type, math.ceil))}")
        if high is not None:
            parts.append(f"{field} <= {_literal(_end(high, found.type, math.floor))}")
        return " && ".join(parts)


def _end(end: Any, kind: FieldType, whole: Any = math.floor) -> Any:
    """Return the end of a range as a value; of a whole number, the last one within."""
    if kind in INTEGERS and isinstance(end, float) and math.isfinite(end):
        end = whole(end)
    value = read_constant(kind, end)
    return None if kind in DECIMALS and value is not None and not math.isfinite(value) else value


def _list(values: list[str]) -> str:
    return f"[{', '.join(values)}]"


def _literal(value: Any) -> str:
    """Return a value as it is written in an expression."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case date():
            return f'timestamp("{value.isoformat()}T00:00:00Z")'
        case _:
            text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            return f'"{text}"'


BITS = 60
"""Bits that choose: so many that a list of any length is chosen from evenly."""


class Substitution(Mask):
    """Replaces values by substitutes from a list."""

    name: ClassVar[str] = "substitution"
    accepts: ClassVar[frozenset[FieldType]] = frozenset(FieldType) - {FieldType.TIMESTAMP}

    substitution_list: Substitutes = Parameter(
        description="The substitutes, of the type of the fields, or texts with `as: text`."
    )
    random: bool = Parameter(
        default=False,
        description="Whether the record chooses instead of the value, so that "
        "the same value gets different substitutes.",
    )
    domain: FieldName | None = Parameter(
        default=None,
        description="Fields and views that name the same domain substitute alike; "
        "left out: this field of this view alone.",
    )
    as_: Literal["text"] | None = Parameter(
        default=None, alias="as", description="`text`: the field becomes text."
    )

    @property
    def needs_identity(self) -> bool:
        """Only chance needs the record."""
        return self.random

    @property
    def needs_keys(self) -> bool:
        """The hash is keyed in both cases."""
        return True

    @override
    def check_field(
        self, name: str, found: Field, hierarchies: Mapping[str, Hierarchy]
    ) -> Iterator[Problem]:
        """Yield substitutes of a wrong type, and numbers that cannot be hashed."""
        fix = f"write each substitute as {found.type}, or declare as: text"
        output = self.output(found)
        yield from check_fit("substitution_list", self.substitution_list, name, output, fix)
        if found.type in DECIMALS and not self.random:
            yield Problem(
                "keys",
                f"{quote(name)} is {found.type}: such numbers have no consistent substitute",
                "set random: true, or mask it by bucketizing first",
            )
        if self.random and self.domain is not None:
            yield Problem("domain", "chance knows no domain", "leave domain or random out")

    def output(self, found: Field) -> Field:
        """Return the field as it is, or text where that is declared."""
        return found.as_type(FieldType.STRING) if self.as_ else found

    def key(self, target: Target) -> bytes:
        """Return the key under which substitutes are chosen for a field."""
        if self.domain is not None:
            return target.keys.derive_shared(self.name, self.domain)
        if self.random:
            # Choices of a record from two lists have nothing to do with each other.
            listed = json.dumps(self.substitution_list, ensure_ascii=True)
            return target.keys.derive(self.name, target.name, target.label, "random", listed)
        return target.keys.derive(self.name, target.name, target.label)

    def transform(self, target: Target) -> Transform:
        """Return the choice by value or by record."""
        key = self.key(target)
        chosen = fit(self.substitution_list, self.output(target.field))
        count = len(chosen)
        if self.random:
            return lambda _, identity: chosen[draw(key, identity, BITS) % count]
        write = TEXTS[target.field.type]
        return lambda value, _: chosen[draw(key, write(value), BITS) % count]


MAX_CONDITIONS = 32


def _tell_form(value: object) -> str | None:
    match value:
        case Condition():
            return "(own)"
        case Mapping():
            # A form in another spelling is no field: it is told which one is meant.
            plain = not any(isinstance(it, Mapping) for it in value.values())
            words = {to_snake_case(str(key)) if plain else key for key in value}
            return "(own)" if words and words <= FORMS else "(named)"
        case _:
            return None


ConditionMap = Annotated[
    Annotated[Condition, Tag("(own)")]
    | Annotated[
        Mapping[FieldName, Condition],
        Parameter(min_length=1, max_length=MAX_CONDITIONS),
        Tag("(named)"),
    ],
    Discriminator(
        _tell_form,
        custom_error_type="conditions",
        custom_error_message="write {match_value: …}, or {field: {match_value: …}}",
    ),
]


class ConditionalSubstitution(Mask):
    """Replaces values where a condition is met."""

    name: ClassVar[str] = "conditional_substitution"
    accepts: ClassVar[frozenset[FieldType]] = frozenset(FieldType) - {FieldType.TIMESTAMP}

    condition_map: ConditionMap | None = Parameter(
        default=None,
        description="The condition on each key itself (`{match_range: [0, 18]}`), or conditions "
        "by field, of which all have to be met (`{rank: {match_value: Manager}}`).",
    )
    expression: Annotated[str, Parameter(min_length=1, max_length=MAX_TEXT)] | None = Parameter(
        default=None,
        description="An expression over the record `r` in place of condition_map, "
        'such as `r.rank == "Manager" && r.salary > 100000`.',
    )
    substitution_list: Substitutes = Parameter(
        description="What values become: one substitute, or several to choose from by value.",
    )
    as_: Literal["text"] | None = Parameter(
        default=None,
        alias="as",
        description="`text`: the field becomes text, also where the condition is not met.",
    )

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
        if (self.condition_map is None) == (self.expression is None):
            raise ValueError("give condition_map or expression → exactly one of both")
        return self

    @property
    def needs_keys(self) -> bool:
        """Only a choice is keyed."""
        return len(self.substitution_list) > 1

    def check(self, schema: Schema, hierarchies: Mapping[str, Hierarchy]) -> Iterator[Problem]:
        """Yield what is wrong with keys, conditions and substitutes."""
        yield from super().check(schema, hierarchies)
        if isinstance(self.condition_map, Mapping):
            for name, condition in self.condition_map.items():
                if name in schema:
                    yield from condition.check(f"condition_map.{name}", name, schema[name])
                else:
                    fix = f"fields are {', '.join(schema)}"
                    yield Problem("condition_map", f"there is no field {quote(name)}", fix)
        elif self.expression is not None:
            try:
                compile_expression(self.expression, make_scope(schema), BOOL)
            except ExpressionError as error:
                for problem in error.problems:
                    yield Problem("expression", problem.message, problem.fix)

    @override
    def check_field(
        self, name: str, found: Field, hierarchies: Mapping[str, Hierarchy]
    ) -> Iterator[Problem]:
        """Yield substitutes and conditions that do not fit the field."""
        fix = f"write it as {found.type}, or declare as: text"
        if self.as_ and found.type not in DISCRETE:
            message = f"{quote(name)} is {found.type}, which cannot be written as text"
            yield Problem("as", message, "leave it out and substitute a number")
        else:
            yield from check_fit(
                "substitution_list", self.substitution_list, name, self.output(found), fix
            )
        if found.type in DECIMALS and self.needs_keys:
            message = f"{quote(name)} is {found.type}, for which there can be one substitute"
            yield Problem("substitution_list", message, "leave one in the list")
        if isinstance(self.condition_map, Condition):
            yield from self.condition_map.check("condition_map", name, found)

    def output(self, found: Field) -> Field:
        """Return the field as it is, or text where that is declared."""
        return found.as_type(FieldType.STRING) if self.as_ else found

    def condition(self, name: str, schema: Schema) -> Expression:
        """Return the condition under which a key is replaced."""
        if self.expression is not None:
            text = self.expression
        elif isinstance(self.condition_map, Condition):
            text = self.condition_map.expression(name, schema[name])
        else:
            text = " && ".join(
                condition.expression(field, schema[field])
                for field, condition in (self.condition_map or {}).items()
            )
        return compile_expression(text, make_scope(schema), BOOL)

    def key(self, target: Target) -> bytes:
        """Return the key under which substitutes are chosen for a field."""
        return target.keys.derive(self.name, target.name, target.label)

    def compile(self, stage: Stage) -> list[Step]:
        """Return one step for all keys."""
        schema = stage.schema
        conditions = {name: self.condition(name, schema) for name in self.keys}
        functions = {made.text: made.function for made in conditions.values()}
        replacements = [
            _Replacement(
                name,
                conditions[name].text,
                self._choose(stage.target(name)),
                TEXTS[schema[name].type] if self.as_ else None,
            )
            for name in self.keys
        ]
        read = _bring_dates(list(conditions.values()), schema)

        def step(row: Row, _: str) -> None:
            record = read(row)
            met = {text: function(record) is not False for text, function in functions.items()}
            for it in replacements:
                value = row[it.name]
                if met[it.condition]:
                    row[it.name] = it.choose(value)
                elif it.write is not None and value is not None:
                    row[it.name] = it.write(value)

        return [step]

    def _choose(self, target: Target) -> Callable[[Any], Any]:
        chosen = fit(self.substitution_list, self.output(target.field))
        count = len(chosen)
        if count == 1:
            return lambda _: chosen[0]
        key, write = self.key(target), TEXTS[target.field.type]
        return lambda value: chosen[draw(key, "" if value is None else write(value), BITS) % count]


@dataclass(frozen=True, slots=True)
class _Replacement:
    """What becomes of one key."""

    name: str
    condition: str
    choose: Callable[[Any], Any]
    write: Callable[[Any], str] | None


def _bring_dates(conditions: list[Expression], schema: Schema) -> Callable[[Row], Row]:
    """Return a function that gives dates the form in which expressions take them."""
    asked = {path[1] for made in conditions for path in find_references(made.tree) if path[1:]}
    dates = [name for name in schema if name in asked and schema[name].type is FieldType.DATE]
    if not dates:
        return lambda row: row

    def read(row: Row) -> Row:
        begun = {
            name: datetime.combine(row[name], time.min, UTC)
            for name in dates
            if row[name] is not None
        }
        return {**row, **begun}

    return read
