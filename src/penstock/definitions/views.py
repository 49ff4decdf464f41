"""Views against their stream: what each anonymizer meets, and what the view's records are.

    stream's fields → masks → at most one stateful step → masks → the view's fields

Rules that hold here:
- A plan exists only where nothing is wrong; all that is wrong with a view is told at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from penstock.definitions.anonymizers import (
    Aggregation,
    MultivariateMicroaggregation,
    Shuffling,
    StatefulAnonymizer,
    UnivariateMicroaggregation,
)
from penstock.definitions.differential_privacy import DifferentialPrivacy
from penstock.definitions.document_checks import find_nearest, follows_from_others, word_bound
from penstock.definitions.k_anonymity import KAnonymization, LDiversity, TCloseness
from penstock.errors import InvalidError, Problem, quote
from penstock.masks import (
    MASKS,
    Chain,
    Field,
    Hierarchy,
    Keys,
    Mask,
    Schema,
    Supplies,
    Vault,
    check_masks,
    derive_schema,
    find_mask,
    read_mask,
    split_anonymizer,
    unknown_parameter,
)
from penstock.masks.noise import Noise
from penstock.model import kinds
from penstock.model.definition import Definition
from penstock.model.document import Key

Definitions = Mapping[Key, Definition]
Finding = tuple[Key, Problem]
Step = Mask | StatefulAnonymizer
Kind = TypeVar("Kind", bound=Definition)
STATEFUL_ANONYMIZERS: Final[Mapping[str, type[StatefulAnonymizer]]] = {
    kind.name: kind
    for kind in (
        Aggregation,
        Shuffling,
        UnivariateMicroaggregation,
        MultivariateMicroaggregation,
        KAnonymization,
        LDiversity,
        TCloseness,
        DifferentialPrivacy,
    )
}


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """What a view does, resolved: masks, at most one stateful step, masks."""

    schema: Schema
    before: tuple[Mask, ...]
    stateful: tuple[StatefulAnonymizer, ...]
    after: tuple[Mask, ...]
    removed: tuple[str, ...] = ()
    """Fields that are left out before the stateful step."""

    @property
    def middle(self) -> Schema:
        """The fields that the stateful step meets."""
        found = derive_schema(self.before, self.schema)
        return {name: it for name, it in found.items() if name not in self.removed}

    @property
    def gathered(self) -> Schema:
        """The fields behind the stateful step."""
        schema = self.middle
        for step in self.stateful:
            schema = step.output(schema)
        return schema

    @property
    def output(self) -> Schema:
        """The fields of the view's records."""
        return derive_schema(self.after, self.gathered)

    def make_chains(
        self,
        view: str,
        secret: bytes,
        hierarchies: Mapping[str, Hierarchy],
        vault: Vault | None = None,
    ) -> tuple[Chain, Chain | None]:
        """Return the masks before and, where there are any, behind the stateful step."""
        supplies = Supplies(keys=Keys(secret, view), hierarchies=hierarchies, vault=vault)
        before = Chain(self.before, self.schema, supplies, self.removed)
        if not self.after:
            return before, None
        # Masks behind draw otherwise than the same masks before.
        behind = replace(supplies, keys=Keys(secret, f"{view}/after"))
        return before, Chain(self.after, self.gathered, behind)


def schema_of(stream: kinds.Stream) -> Schema:
    """Return the fields of a stream as masks see them."""
    return {field.name: Field.of(field.type, optional=field.optional) for field in stream.fields}


def hierarchies_of(definitions: Definitions) -> dict[str, Hierarchy]:
    """Return the hierarchies by name; those with problems are left out."""
    found = {}
    for definition in definitions.values():
        if isinstance(definition, kinds.Hierarchy):
            try:
                found[definition.name] = Hierarchy.model_validate(definition.nested())
            except ValidationError:
                continue
    return found


def plan_view(
    view: kinds.View, stream: kinds.Stream, hierarchies: Mapping[str, Hierarchy]
) -> ViewPlan:
    """Return what a view does; raise InvalidError with all that is wrong with it."""
    problems: list[Problem] = []
    plan = find_plan(view, stream, hierarchies, problems)
    if plan is None:
        raise InvalidError(f"view {view.name}", problems)
    return plan


def find_plan(
    view: kinds.View,
    stream: kinds.Stream,
    hierarchies: Mapping[str, Hierarchy],
    problems: list[Problem],
) -> ViewPlan | None:
    """Return what a view does, or None with all that is wrong with it added to `problems`."""
    read = read_steps(view, problems)
    steps = [step for step in read if step is not None]
    whole = schema_of(stream)
    if stream.sealed == "attributes":
        # Who has no key for what a view removes reads the rest all the same.
        loose = {
            name: Field(whole[name].type, optional=True) for name in view.remove if name in whole
        }
        whole = {name: loose.get(name, it) for name, it in whole.items()}
    problems += _find_unremovable(view, whole)
    # What is removed is no field to anything that the view does.
    schema = {name: it for name, it in whole.items() if name not in view.remove}
    if len(steps) < len(read):
        _check_steps(read, view.anonymizers, schema, hierarchies, problems)
        return None
    plan = _arrange(whole, steps, view.remove, problems)
    # Behind a step that is one too many, nobody knows what fields there are.
    kept = {id(step) for step in (*plan.before, *plan.stateful, *plan.after)}
    sound = list(takewhile(lambda step: id(step) in kept, steps))
    _check_steps(sound, view.anonymizers[: len(sound)], schema, hierarchies, problems)
    _check_window(view, plan, problems)
    if view.shards is not None and not plan.stateful:
        message = "no anonymizer holds records back, so that there is nothing to divide"
        problems.append(Problem("shards", message, "leave it out"))
    for index, step in enumerate(plan.stateful, len(plan.before)):
        for found in step.check_view(view, stream):
            place = f"anonymizers[{index}].{found.place}"
            problems.append(Problem(place, found.message, found.fix))
    return None if problems else plan


def read_steps(view: kinds.View, problems: list[Problem]) -> list[Step | None]:
    """Return the anonymizers of a view; None for each that is none, with what is wrong with it."""
    return [
        _read_step(item, f"anonymizers[{index}]", problems)
        for index, item in enumerate(view.anonymizers)
    ]


def _read_step(item: object, place: str, problems: list[Problem]) -> Step | None:
    split = split_anonymizer(item, place, problems)
    if split is None:
        return None
    name, parameters = split
    kind = STATEFUL_ANONYMIZERS.get(name)
    if kind is None:
        if find_mask(name) is None:
            known = sorted([*MASKS, *STATEFUL_ANONYMIZERS])
            message = f"there is no anonymizer {quote(name)}"
            fix = find_nearest(name, known) or f"anonymizers are {', '.join(known)}"
            problems.append(Problem(place, message, fix))
            return None
        return read_mask(item, place, problems)
    try:
        return kind.model_validate(parameters)
    except ValidationError as error:
        details = error.errors(include_url=False)
        problems.extend(_describe(it, kind, place) for it in details if not follows_from_others(it))
        return None


def _describe(detail: ErrorDetails, kind: type[StatefulAnonymizer], place: str) -> Problem:
    # Parentheses mark which form of a value was meant: nothing that stands in the document.
    for step in (it for it in detail["loc"] if not str(it).startswith("(")):
        place += f"[{step}]" if isinstance(step, int) else f".{step}"
    match detail["type"]:
        case "extra_forbidden":
            return unknown_parameter(kind, kind.name, detail["loc"], place)
        case "missing":
            return Problem(place, "the parameter is missing", "add it")
        case "value_error":
            text, _, hint = detail["msg"].removeprefix("Value error, ").partition(" → ")
            return Problem(place, text, hint or None)
        case "literal_error":
            choices = str(detail.get("ctx", {}).get("expected", ""))
            message = f"{quote(detail['input'], 40)} is not a choice"
            return Problem(place, message, f"write {choices}")
        case _ if bound := word_bound(detail):
            return Problem(place, *bound)
        case _:
            message = detail["msg"][:1].lower() + detail["msg"][1:]
            return Problem(place, f"{quote(detail['input'], 40)}: {message}")


def _find_unremovable(view: kinds.View, schema: Schema) -> Iterator[Problem]:
    """Yield names under `remove` that are no fields; a view has some field left."""
    for at, name in enumerate(view.remove):
        if name not in schema:
            fix = f"fields are {', '.join(schema)}"
            yield Problem(f"remove[{at}]", f"there is no field {quote(name)}", fix)
    if set(schema) <= set(view.remove):
        yield Problem("remove", "the view would have no fields", "leave one of them out")


def _arrange(
    schema: Schema, steps: list[Step], removed: tuple[str, ...], problems: list[Problem]
) -> ViewPlan:
    before: list[Mask] = []
    stateful: list[StatefulAnonymizer] = []
    after: list[Mask] = []
    for index, step in enumerate(steps):
        if isinstance(step, Mask):
            (after if stateful else before).append(step)
            continue
        if after or (stateful and "table" in {step.family, stateful[-1].family}):
            problems.append(
                Problem(
                    f"anonymizers[{index}]",
                    f"{step.name} would be a second step over many records",
                    "make another view of it; anonymizers of one window stand side by side",
                )
            )
            continue
        stateful.append(step)
    return ViewPlan(schema, tuple(before), tuple(stateful), tuple(after), removed)


def _check_steps(
    steps: Sequence[Step | None],
    items: Sequence[object],
    schema: Schema,
    hierarchies: Mapping[str, Hierarchy],
    problems: list[Problem],
) -> None:
    """Check each step against the fields it meets; None stands for an item that is none.

    What a field is behind a step with problems is not known. Of steps that work on such a
    field it is only asked whether the field exists.
    """
    unknown: set[str] = set()
    for index, (step, item) in enumerate(zip(steps, items, strict=True)):
        names = _fields_of(step, item, schema)
        if step is None or names & unknown:
            problems += _find_unknown(_keys_of(step, item), schema, index)
            unknown |= names
            continue
        if isinstance(step, Mask):
            found = check_masks([step], schema, hierarchies, "")
            found = [Problem(it.place.removeprefix("[0]."), it.message, it.fix) for it in found]
        else:
            found = list(step.check(schema, hierarchies))
        place = f"anonymizers[{index}]"
        problems += [Problem(f"{place}.{it.place}", it.message, it.fix) for it in found]
        if found:
            unknown |= names
        elif isinstance(step, Mask):
            schema = derive_schema([step], schema)
        else:
            schema = step.output(schema)


def _fields_of(step: Step | None, item: object, schema: Schema) -> set[str]:
    """Return the fields that a step changes or asks; all, where that cannot be told."""
    found = set(_keys_of(step, item))
    if step is None:
        name = item.get("anonymizer") if isinstance(item, Mapping) else None
        return found if isinstance(name, str) and find_mask(name) else set(schema)
    if getattr(step, "expression", None) is not None:
        return set(schema)
    asked = getattr(step, "condition_map", None)
    found |= set(asked) if isinstance(asked, Mapping) else set()
    parts = (*getattr(step, "quasi_identifiers", ()), *getattr(step, "sensitive", ()))
    return found | {part.key for part in parts}


def _keys_of(step: Step | None, item: object = None) -> Sequence[str]:
    """Return the keys of a step, or those that stand where it could not be read."""
    if step is not None:
        return getattr(step, "keys", ())
    split = split_anonymizer(item, "", [])
    keys = split[1].get("keys") if split else None
    return [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else ()


def _find_unknown(keys: Sequence[str], schema: Schema, index: int) -> Iterator[Problem]:
    """Yield keys that no field has, whatever the steps before make of the fields."""
    for number, key in enumerate(keys):
        if key not in schema:
            place = f"anonymizers[{index}].keys[{number}]"
            fix = f"fields are {', '.join(schema)}"
            yield Problem(place, f"there is no field {quote(key)}", fix)


def _check_window(view: kinds.View, plan: ViewPlan, problems: list[Problem]) -> None:
    windowed = [step.name for step in plan.stateful if step.windowed]
    if windowed and view.window is None:
        message = f"{windowed[0]} needs a window"
        problems.append(Problem("window", message, "add window: {size: 10s}"))
    if view.window is not None and not windowed:
        problems.append(Problem("window", "no anonymizer uses the window", "leave it out"))
    if view.window is not None and view.window.advance not in {None, view.window.size}:
        problems.extend(_find_repeated_noise(plan))


def _find_repeated_noise(plan: ViewPlan) -> Iterator[Problem]:
    """Yield noise on values that overlapping windows publish several times.

    Each copy would have a draw of its own, and their mean the value. Aggregates are other values
    in each window, so that one draw for all copies would tell their differences.
    """
    made = {key for step in plan.stateful for key in getattr(step, "keys", ())}
    for index, mask in enumerate(plan.after, len(plan.before) + len(plan.stateful)):
        for number, key in enumerate(mask.keys):
            if isinstance(mask, Noise) and key not in made:
                place = f"anonymizers[{index}].keys[{number}]"
                message = f"{quote(key)} would get other noise in each window a record lies in"
                yield Problem(place, message, "put the noise before the window anonymizers")
