"""The checks of tables, restrictions and transformations, which know masks and streams.

Rules that hold here:
- What an expression sees is declared, lookups included; a subscription is looked at by s and e.
- What a transformation makes fits the fields it says: of its stream, or of the type it becomes.
- Two transformations that may apply to one message and change one field have an order, and are
  of one type; nothing comes behind a conversion that would be left out by it.
- A set loads this module when it holds one of these kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from penstock.definitions.access_checks import check_emergency_policies
from penstock.definitions.role_checks import check_subjects
from penstock.definitions.views import Definitions, hierarchies_of, schema_of
from penstock.definitions.vocabularies import WrongValueError, read_value, scope_of
from penstock.errors import InvalidError, Problem, quote
from penstock.lang import (
    BOOL,
    STRING,
    Expression,
    RecordType,
    Scope,
    Type,
    compile_expression,
    parse_record,
)
from penstock.masks import Mask, Schema, check_masks, derive_schema, read_masks
from penstock.masks.fields import DISCRETE
from penstock.masks.substitution import make_scope
from penstock.model import kinds
from penstock.model.document import Key
from penstock.model.kinds.interaction import Conversion, InteractionRule, Occasion, as_policy
from penstock.model.topics import overlaps

Found = Iterator[tuple[Key, Problem]]


def table_record(table: kinds.Table) -> RecordType:
    """Return what a row of a table is."""
    columns: Any = table.columns
    return parse_record(columns)


def rule_scope(scope: Scope, rule: InteractionRule, definitions: Definitions) -> Scope:
    """Return what expressions of a rule see: a message, and rows of tables as d."""
    found: list[tuple[str, Type]] = []
    for name, lookup in sorted(rule.lookup.items()):
        table = definitions.get(Key("table", lookup.table))
        if isinstance(table, kinds.Table):
            try:
                found.append((name, table_record(table)))
            except InvalidError:
                continue
    return Scope((*scope.roots, ("d", RecordType(tuple(found)))))


def check_tables(touched: Iterable[kinds.Table], definitions: Definitions) -> Found:
    """Yield columns of no type, and values that are not of their column."""
    del definitions
    for table in touched:
        try:
            types = dict(table_record(table).fields)
        except InvalidError as error:
            yield from (
                (table.key, Problem("columns", it.message, it.fix)) for it in error.problems
            )
            continue
        for key, row in table.rows.items():
            # Keys may be personal: places name them no more than the document does.
            for name, value in row.items():
                place = f"rows.{key}.{name}"
                if name not in types:
                    fix = f"columns are {', '.join(types)}"
                    yield table.key, Problem(place, f"there is no column {quote(name)}", fix)
                    continue
                try:
                    read_value(value, types[name])
                except WrongValueError as error:
                    yield table.key, Problem(place, str(error))


def check_restrictions(touched: Iterable[kinds.Restriction], definitions: Definitions) -> Found:
    """Yield what is wrong with restrictions."""
    scope = _scope(definitions)
    for rule in touched:
        problems = list(_check_common(rule, definitions, scope))
        seen = rule_scope(scope, rule, definitions)
        for field in ("permit", "deny"):
            text = getattr(rule, field)
            if text is None:
                continue
            made = _compile(field, text, seen, BOOL, problems)
            if made is not None and rule.at == "subscription":
                strange = sorted(it for it in made.references if it.split(".")[0] not in "se")
                if strange:
                    what = f"{quote(strange[0])} is of a message, and a subscription has none"
                    problems.append(Problem(field, what, "write at: delivery"))
        if rule.at == "subscription":
            for at, text in enumerate(rule.exempt):
                if "(" in text and any(f"{root}." in text for root in "ot"):
                    what = "it looks at a message, and a subscription has none"
                    problems.append(Problem(f"exempt[{at}]", what, "write _ in its place"))
        yield from ((rule.key, problem) for problem in problems)
        yield from check_subjects([rule], definitions)


def check_transformations(
    touched: Iterable[kinds.Transformation], definitions: Definitions
) -> Found:
    """Yield what is wrong with transformations, by themselves and with each other."""
    scope = _scope(definitions)
    hierarchies = hierarchies_of(definitions)
    rules = list(touched)
    for rule in rules:
        problems = list(_check_common(rule, definitions, scope))
        seen = rule_scope(scope, rule, definitions)
        _compile("when", rule.when, seen, BOOL, problems)
        stream = definitions.get(Key("stream", rule.stream))
        if isinstance(stream, kinds.Stream):
            problems += _check_effect(rule, schema_of(stream), seen, definitions, hierarchies)
        yield from ((rule.key, problem) for problem in problems)
        yield from check_subjects([rule], definitions)
    names = {it.name for it in rules}
    everything = [it for it in definitions.values() if isinstance(it, kinds.Transformation)]
    for one, other in combinations(sorted(everything, key=lambda it: (it.order, it.name)), 2):
        if (one.name in names or other.name in names) and _may_meet(one, other):
            for place, what, fix in _find_conflicts(one, other, definitions):
                yield other.key, Problem(place, what, fix)


def _scope(definitions: Definitions) -> Scope:
    return scope_of(
        [it for it in definitions.values() if isinstance(it, kinds.Vocabulary)], problems=[]
    )


def _compile(
    place: str, text: str, scope: Scope, result: Type | None, problems: list[Problem]
) -> Expression | None:
    try:
        return compile_expression(text, scope, result)
    except InvalidError as error:
        for item in error.problems:
            where = f"{place}, {item.place}" if item.place else place
            problems.append(Problem(where, item.message, item.fix))
        return None


def _check_common(
    rule: InteractionRule, definitions: Definitions, scope: Scope
) -> Iterator[Problem]:
    problems: list[Problem] = []
    for name, lookup in rule.lookup.items():
        _compile(f"lookup.{name}.key", lookup.key, scope, STRING, problems)
    for field in ("during", "except_during"):
        occasion: Occasion | None = getattr(rule, field)
        if occasion is None:
            continue
        if occasion.about is not None:
            _compile(f"{field}.about", occasion.about, scope, STRING, problems)
        for _, problem in check_emergency_policies([as_policy(occasion, rule.name)], definitions):
            problems.append(Problem(f"{field}.{problem.place}", problem.message, problem.fix))
    yield from problems


def _read_masks(rule: kinds.Transformation, problems: list[Problem]) -> tuple[Mask, ...] | None:
    try:
        return read_masks(rule.anonymizers)
    except InvalidError as error:
        problems += error.problems
        return None


def _check_effect(
    rule: kinds.Transformation,
    schema: Schema,
    scope: Scope,
    definitions: Definitions,
    hierarchies: Mapping[str, Any],
) -> list[Problem]:
    """Return what is wrong with what a transformation does to the fields of its stream."""
    problems: list[Problem] = []
    target: Schema | None = None
    if rule.into is not None:
        other = definitions.get(Key("stream", rule.into.stream))
        target = schema_of(other) if isinstance(other, kinds.Stream) else {}
    added: dict[str, Type] = {}
    for name, text in rule.set.items():
        place = f"set.{name}"
        field = schema.get(name) or (target or {}).get(name)
        if field is None:
            fix = f"add it to the stream {(rule.into or rule).stream!r}, or leave it out"
            problems.append(Problem(place, f"there is no field {quote(name)}", fix))
            continue
        wanted = _lang_type({name: field}, name)
        made = _compile(place, text, scope, None, problems)
        if made is not None:
            added[name] = made.type
            if made.type != wanted:
                what = f"{quote(name)} is {field.type}, and this gives {made.type}"
                problems.append(Problem(place, what, "convert it, or name another field"))
    for at, name in enumerate(rule.remove):
        if name not in schema:
            fix = f"fields are {', '.join(schema)}"
            problems.append(Problem(f"remove[{at}]", f"there is no field {quote(name)}", fix))
    masks = _read_masks(rule, problems)
    if masks is None:
        return problems
    kept = {name: it for name, it in schema.items() if name not in rule.remove}
    for index, mask in enumerate(masks):
        if mask.needs_vault:
            what = f"{mask.name} keeps originals in a vault, which is for views"
            problems.append(Problem(f"anonymizers[{index}]", what, "choose another method"))
    # By what is removed nothing is masked: so a view can leave it out before.
    found = check_masks(masks, kept, hierarchies)
    problems += found
    if not found and target is not None and rule.into is not None:
        problems += _check_target(rule.into, derive_schema(masks, kept), set(added), target)
    return problems


def _lang_type(schema: Schema, name: str) -> Type | None:
    record = make_scope(schema).root("r")
    return record.field(name) if record is not None else None


def _check_target(
    into: Conversion, made: Schema, added: set[str], target: Schema
) -> Iterator[Problem]:
    for name, field in target.items():
        there = made.get(name)
        if there is None:
            if name not in added and not field.optional:
                what = f"nothing gives {quote(name)} of the stream {into.stream!r} a value"
                yield Problem("into.stream", what, f"write set: {{{name}: …}}")
        elif there.type is not field.type and name not in added:
            what = f"{quote(name)} would be {there.type}, and is {field.type} there"
            yield Problem("into.stream", what, "give both one type, or set it")
        elif there.optional and not field.optional and name not in added:
            what = f"{quote(name)} may be missing, and is required there"
            yield Problem("into.stream", what, "make it optional there, or set it")
    for name in into.places:
        place = target.get(name)
        if place is None or place.optional or place.type not in DISCRETE:
            what = f"{quote(name)} cannot be a level of the topic"
            fix = "name a required field of the new message that is no number with decimals"
            yield Problem("into.topic", what, fix)


def _may_meet(one: kinds.Transformation, other: kinds.Transformation) -> bool:
    """Tell whether two transformations can apply to one message."""
    if one.at != other.at or not overlaps(one.filter, other.filter):
        return False
    people = {one.subject, other.subject}
    return len(people) == 1 or not all(it.startswith("user:") for it in people)


def _find_conflicts(
    one: kinds.Transformation, other: kinds.Transformation, definitions: Definitions
) -> Iterator[tuple[str, str, str]]:
    """Yield what two transformations disagree on; the first comes first, or both have one order."""
    told = f"the transformation {one.name!r} may change the same message"
    if one.stream != other.stream:
        what = f"{told}, as one of the stream {one.stream!r}"
        yield "stream", what, "name one stream, or filters that share no topic"
        return
    if one.into is not None and (other.into is None or one.order == other.order):
        if other.into is None:
            what = f"{told} into another type before this one (order {one.order})"
            yield "order", what, f"give {one.name!r} a higher order than {other.order}"
        elif one.at == "delivery":
            what = f"{told} into another type, and both have the order {one.order}"
            yield "order", what, "give them different orders: the first that applies counts"
        return
    if one.into is not None:
        return
    shared = sorted(_changed(one) & _used(other))
    if not shared:
        return
    what = f"{told}, and both change {quote(shared[0])}"
    if one.order == other.order and other.into is None:
        yield "order", f"{what} with the order {one.order}", "give them different orders"
        return
    gone = sorted(set(one.remove) & _used(other))
    if gone:
        what = f"{told} before this one, and removes {quote(gone[0])}"
        yield "order", what, "remove it here, or give this one a lower order"
        return
    yield from _check_behind(one, other, definitions)


def _check_behind(
    one: kinds.Transformation, other: kinds.Transformation, definitions: Definitions
) -> Iterator[tuple[str, str, str]]:
    """Yield what the second cannot do with what the first makes."""
    stream = definitions.get(Key("stream", one.stream))
    if not isinstance(stream, kinds.Stream):
        return
    first, second = _read_masks(one, []), _read_masks(other, [])
    if first is None or second is None:
        return
    schema = schema_of(stream)
    hierarchies = hierarchies_of(definitions)
    kept = {name: it for name, it in schema.items() if name not in one.remove}
    if check_masks(first, kept, hierarchies):
        return
    behind = derive_schema(first, kept)
    found = check_masks(second, behind, hierarchies)
    if found:
        what = f"behind the transformation {one.name!r}: {found[0].message}"
        yield found[0].place, what, found[0].fix or "change one of them"
    elif other.into is not None:
        target = definitions.get(Key("stream", other.into.stream))
        if isinstance(target, kinds.Stream):
            left = {k: v for k, v in derive_schema(second, behind).items() if k not in other.remove}
            problems = list(_check_target(other.into, left, set(other.set), schema_of(target)))
            if problems:
                what = f"behind the transformation {one.name!r}: {problems[0].message}"
                yield problems[0].place, what, problems[0].fix or "change one of them"


def _changed(rule: kinds.Transformation) -> set[str]:
    masked = {key for item in rule.anonymizers for key in _keys_of(item)}
    return masked | set(rule.set) | set(rule.remove)


def _used(rule: kinds.Transformation) -> set[str]:
    """Return the fields that a transformation changes or passes on under another type."""
    masks = _read_masks(rule, []) or ()
    asked = {
        name
        for mask in masks
        for name in (getattr(mask, "condition_map", None) or {})
        if isinstance(name, str)
    }
    return _changed(rule) | asked


def _keys_of(item: Mapping[str, Any]) -> Sequence[str]:
    parts = [item, *(it for it in _parameters(item) if isinstance(it, Mapping))]
    found = (key for it in parts for key in it.get("keys", ()) or ())
    return [key["key"] if isinstance(key, Mapping) else str(key) for key in found]


def _parameters(item: Mapping[str, Any]) -> Sequence[Any]:
    given = item.get("parameters", ())
    return [given] if isinstance(given, Mapping) else given if isinstance(given, list) else ()
