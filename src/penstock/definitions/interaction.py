"""Compiles restrictions and transformations, and carries transformations out.

    payload ──▶ JSON object ──▶ set ──▶ fields of the stream ──▶ masks ──▶ remove ──▶ payload
                                                                    └──▶ into: topic, fields

Rules that hold here:
- What leaves has the fields of its stream, or of the one it is turned into, and no others. A
  message that does not fit, a value that is missing, a mask that cannot take a value: each is a
  reason, and who asks denies the message.
- Several transformations are one way: the second takes what the first makes. What `set` says is
  computed of the message as it was published.
- Dates are text in JSON; whatever is not changed is written as it was read. Null is left out.
- Chance is drawn from the content of the message: who gets it twice, or with a friend, gets one
  draw. The keys are the transformation's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from typing import Any, Final

from pydantic_core import to_json

from penstock.definitions.access import (
    compile_emergency,
    compile_subject,
    name_rule,
    scenarios_by_plan,
)
from penstock.definitions.interaction_checks import rule_scope, table_record
from penstock.definitions.set import DefinitionSet
from penstock.definitions.views import hierarchies_of, schema_of
from penstock.definitions.vocabularies import read_value
from penstock.errors import PenstockError
from penstock.lang import BOOL, STRING, Expression, compile_expression
from penstock.lang.scalars import read_timestamp
from penstock.masks import Chain, Keys, Rejected, Schema, Supplies, read_masks
from penstock.masks.fields import CHECKS, DATES, FieldType
from penstock.model import kinds
from penstock.model.kinds.interaction import Conversion, Occasion, as_policy
from penstock.model.topics import check_topic
from penstock.policy.access.emergencies import Emergency
from penstock.policy.access.requests import Message
from penstock.policy.decision import Reshaped, Seen
from penstock.policy.interaction import InteractionEngine, Lookup, Rule

_LEVEL_LIMIT: Final = 256
_MARKS: Final = frozenset("/+#\0")

ReadKey = Callable[[], bytes]
"""Returns the secret of masks."""


def compile_interaction(
    definitions: DefinitionSet, read_key: ReadKey | None = None
) -> InteractionEngine:
    """Compile all restrictions and transformations; without a key no mask can use one."""
    rules = [
        *(_compile_rule(it, definitions) for it in definitions.of(kinds.Restriction).values()),
        *(_compile_rule(it, definitions) for it in definitions.of(kinds.Transformation).values()),
    ]
    compiler = _ReshapingCompiler(definitions, read_key)
    return InteractionEngine(rules, compiler.make)


def _compile_rule(
    rule: kinds.Restriction | kinds.Transformation, definitions: DefinitionSet
) -> Rule:
    scope = rule_scope(definitions.scope, rule, definitions.definitions)
    text = rule.when if isinstance(rule, kinds.Transformation) else rule.permit or rule.deny
    if text is None:
        raise TypeError(f"{rule.key} was not checked")
    scenarios = scenarios_by_plan(definitions)

    def occasion(found: Occasion | None) -> Emergency | None:
        if found is None:
            return None
        policy = as_policy(found, rule.name)
        return compile_emergency(policy, definitions, scenarios)

    return Rule(
        name_rule(rule.key),
        rule.at,
        rule.filter,
        rule.subject,
        compile_expression(text, scope, BOOL),
        exempt=tuple(compile_subject(it, definitions.scope) for it in rule.exempt),
        during=occasion(rule.during),
        outside=occasion(rule.except_during),
        lookups=tuple(
            Lookup(
                name,
                compile_expression(it.key, definitions.scope, STRING),
                _read_rows(definitions.of(kinds.Table)[it.table]),
            )
            for name, it in sorted(rule.lookup.items())
        ),
        transforms=isinstance(rule, kinds.Transformation),
        forbids=isinstance(rule, kinds.Restriction) and rule.deny is not None,
        converts=isinstance(rule, kinds.Transformation) and rule.into is not None,
        order=rule.order if isinstance(rule, kinds.Transformation) else 0,
    )


def _read_rows(table: kinds.Table) -> Mapping[str, Mapping[str, Any]]:
    types = dict(table_record(table).fields)
    return {
        key: {name: read_value(value, types[name]) for name, value in row.items()}
        for key, row in table.rows.items()
    }


class _ReshapingCompiler:
    """Makes reshapings: of what the transformations are that rules stand for."""

    def __init__(self, definitions: DefinitionSet, read_key: ReadKey | None) -> None:
        self._definitions = definitions
        self._read_key = read_key
        self._transformations = {
            name_rule(it.key): it for it in definitions.of(kinds.Transformation).values()
        }

    def make(self, rules: tuple[Rule, ...]) -> SchemaReshaping:
        """Return what carries out the transformations of these rules, in their order."""
        found = [self._transformations[it.name] for it in rules]
        streams = self._definitions.of(kinds.Stream)
        schema = schema_of(streams[found[0].stream])
        entry = schema
        steps = []
        for rule, it in zip(rules, found, strict=True):
            target = schema_of(streams[it.into.stream]) if it.into is not None else None
            steps.append(self._make_step(rule, it, schema, target))
            if target is None:
                schema = steps[-1].chain.output
        fixed = not any(map(_looks_at_who_asks, steps))
        return SchemaReshaping(
            ", ".join(it.name for it in rules),
            entry,
            tuple(steps),
            fixed=fixed,
            keep_properties=all(it.keep_properties for it in found),
        )

    def _make_step(
        self, rule: Rule, it: kinds.Transformation, schema: Schema, target: Schema | None
    ) -> Step:
        definitions = self._definitions
        scope = rule_scope(definitions.scope, it, definitions.definitions)
        declared = schema_of(definitions.of(kinds.Stream)[it.stream])
        added = {name: declared[name] for name in it.set if name in declared}
        entry = {**schema, **added}
        supplies = Supplies(hierarchies=hierarchies_of(definitions.definitions))
        masks = read_masks(it.anonymizers)
        if any(mask.needs_keys or mask.needs_identity for mask in masks):
            if self._read_key is None:
                raise PenstockError("the key of masks is not known here")
            keys = Keys(self._read_key(), f"transformation/{it.name}")
            supplies = Supplies(keys, supplies.hierarchies)
        chain = Chain(masks, entry, supplies, it.remove)
        return Step(
            rule,
            tuple((name, compile_expression(text, scope)) for name, text in it.set.items()),
            chain,
            target,
            it.into,
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One transformation, behind those before it."""

    rule: Rule
    additions: tuple[tuple[str, Expression], ...]
    chain: Chain
    target: Schema | None
    into: Conversion | None


def _looks_at_who_asks(step: Step) -> bool:
    """Tell whether what a step adds depends on who gets it, or when."""
    if not step.additions:
        return False
    read = [*(it for _, it in step.additions), *(it.key for it in step.rule.lookups)]
    return any(path.partition(".")[0] in {"s", "e"} for it in read for path in it.references)


class SchemaReshaping:
    """Carries transformations of messages of one stream out, one after the other."""

    __slots__ = ("_dates", "_identified", "_keeps_properties", "_steps", "fixed", "name")

    def __init__(
        self,
        name: str,
        entry: Schema,
        steps: tuple[Step, ...],
        *,
        fixed: bool,
        keep_properties: bool,
    ) -> None:
        self.name = name
        self.fixed = fixed
        self._keeps_properties = keep_properties
        self._steps = steps
        self._dates = tuple((name, it.type) for name, it in entry.items() if it.type in DATES)
        self._identified = any(it.chain.needs_identity for it in steps)

    def apply(self, message: Message, see: Callable[[], Seen]) -> Reshaped | str:
        """Return what leaves, or why nothing does."""
        content = message.content
        if content is None:
            return "the payload is not a JSON object"
        row: Mapping[str, Any] = content
        if self._dates:
            row = read = dict(content)
            for name, kind in self._dates:
                if name in read:
                    read[name] = _read_date(read[name], kind)
        identity = _identify(message.topic, content) if self._identified else ""
        copies: list[tuple[str, bytes]] = []
        passes = True
        for step in self._steps:
            made = _change(step, row, see, identity)
            if isinstance(made, str):
                return made
            if step.into is None:
                row = made
                continue
            topic = _fill(step.into, made)
            if topic is None:
                return "a value cannot be a level of the topic"
            converted = _encode(made)
            if step.rule.at == "delivery":
                return Reshaped(converted, topic, keeps_properties=self._keeps_properties)
            copies.append((topic, converted))
            passes = passes and step.into.keep
        payload = _encode(row) if passes else None
        return Reshaped(payload, None, tuple(copies), self._keeps_properties)


def _change(
    step: Step, row: Mapping[str, Any], see: Callable[[], Seen], identity: str
) -> dict[str, Any] | str:
    """Return the record behind one transformation, or why there is none."""
    added: dict[str, Any] = {}
    if step.additions:
        seen = see()
        rows = step.rule.rows(seen)
        for name, expression in step.additions:
            value = expression.function(*seen, rows)
            if value is None:
                return f"nothing gives {name} a value"
            added[name] = value
        row = {**row, **added}
    made = step.chain.apply(row, identity)
    if isinstance(made, Rejected):
        return made.reason
    if step.target is None:
        return made
    found: dict[str, Any] = {}
    for name, kind in step.target.items():
        value = made[name] if name in made else added.get(name)
        if value is not None:
            value = CHECKS[kind.type](value)
        if value is None and not (kind.optional and added.get(name) is None):
            return f"the new message needs {name}"
        found[name] = value
    return found


def _identify(topic: str, content: Mapping[str, Any]) -> str:
    text = json.dumps([topic, content], sort_keys=True)
    return sha256(text.encode()).hexdigest()


def _read_date(value: Any, kind: FieldType) -> Any:
    """Return the value of a date that JSON has as text; what is none stays, and fits nowhere."""
    if not isinstance(value, str):
        return value
    if kind is FieldType.TIMESTAMP:
        return read_timestamp(value) or value
    try:
        return date.fromisoformat(value)
    except ValueError:
        return value


def _encode(row: Mapping[str, Any]) -> bytes:
    # Several times as fast as the library's encoder; dates become text in ISO 8601.
    if None in row.values():
        row = {name: it for name, it in row.items() if it is not None}
    return to_json(row, inf_nan_mode="null")


def _fill(into: Conversion, row: Mapping[str, Any]) -> str | None:
    """Return the topic of a new message; None where a value is no level of one."""
    topic = into.topic
    if "{" not in topic:
        return topic
    for name in into.places:
        value = row.get(name)
        text = value if isinstance(value, str) else to_json(value).decode().strip('"')
        if value is None or not 0 < len(text) <= _LEVEL_LIMIT or not _MARKS.isdisjoint(text):
            return None
        if not text.isprintable() or text[0] in "$!" or "{" in text:
            return None
        topic = topic.replace(f"{{{name}}}", text)
    try:
        check_topic(topic)
    except PenstockError:
        return None
    return topic
