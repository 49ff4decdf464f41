"""The form for a view, with a preview of what it does to examples.

    form: stream, fields, anonymizers ─▶ preview: examples before and after ─▶ review ─▶ apply

Rules that hold here:
- The form is made of the anonymizers' own parameters; what it makes is a definition like any other,
  and is applied through the review.
- The preview masks examples that are made up, or that one types, never recorded ones: nobody sees
  a record by it that the policies would not show. It draws keys of its own each time, so that no
  pseudonym of it can be compared with a real one.
"""

from __future__ import annotations

import json
import math
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, get_args, get_origin

from fastapi import Query
from pydantic.fields import FieldInfo

from penstock.console.desk import Visit, Visitor
from penstock.console.pages.definitions import Draft, show_review
from penstock.console.pages.views import ROOM
from penstock.console.rooms import Again, Form, FormData, PageData
from penstock.definitions import DefinitionSet, write_yaml
from penstock.definitions.views import STATEFUL_ANONYMIZERS, hierarchies_of, plan_view
from penstock.errors import InvalidError, PenstockError, Problem, UsageError, quote
from penstock.json_text import read_object
from penstock.masks import Rejected, find_mask
from penstock.masks.chain import MASKS
from penstock.model import kinds
from penstock.model.document import Document
from penstock.yaml_text import Limits, read_documents

_MOST_STEPS: Final = 16
_MOST_RECORDS: Final = 50
_RECORDS_BYTES: Final = 64 * 1024
_EXAMPLES: Final = 6
_VALUE: Final = Limits(size=16 * 1024, depth=16, values=2_000)
_NAMES: Final = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn")


class ParameterField(PageData):
    """One parameter of an anonymizer in the form."""

    name: str
    about: str
    required: bool
    choices: Sequence[str]
    flag: bool
    value: str


class StepForm(PageData):
    """One anonymizer in the form."""

    anonymizer: str
    about: str
    keys: Sequence[str]
    parameters: Sequence[ParameterField]


class FieldEffect(PageData):
    """What became of one field of the examples."""

    field: str
    kept: int
    changed: int
    removed: int
    before: int
    after: int
    """How many values there are that differ."""
    loss: float
    """The share of what the values told apart that is lost: 0 nothing, 1 all of it."""


class PreviewFigures(PageData):
    """What the examples lose and risk together."""

    loss: float
    risk_before: float
    risk_after: float
    alone_before: int
    alone_after: int
    """How many records nobody else is like."""
    known_by: Sequence[str]
    """The fields by which somebody would know a person."""


class PreviewRow(PageData):
    """One record before and after; none: it was rejected."""

    before: Mapping[str, Any]
    after: Mapping[str, Any] | None
    reason: str


class ViewForm(PageData):
    """The form of a view, with what it would do to examples."""

    name: str
    stream: str
    streams: Sequence[str]
    fields: Sequence[str]
    roles: str
    purposes: str
    remove: Sequence[str]
    steps: Sequence[StepForm]
    anonymizers: Sequence[str]
    records: str
    rows: Sequence[PreviewRow]
    effects: Sequence[FieldEffect]
    figures: PreviewFigures | None
    stateful: Sequence[str]
    rejected: int
    problems: Sequence[Mapping[str, str]]
    text: str


@ROOM.page("/views/form", "New view", "views/form.html", hidden=True)
def show_form(visit: Visitor, stream: Annotated[str, Query(max_length=256)] = "") -> ViewForm:
    """Show the form of a new view, or of one that there is by its name."""
    visit.require_administration()
    return _make_form(visit, FormData([("stream", stream)]))


@ROOM.action("/views/form")
def fill_form(visit: Visitor, form: Form) -> Again:
    """Add or remove an anonymizer, preview, or go on to the review."""
    visit.require_administration()
    if form.get("do") == "review":
        made = _make_form(visit, form)
        if not made.problems:
            return show_review(visit, Draft(made.text, (), f"the view {made.name}"))
        return Again("views/form.html", "New view", made)
    return Again("views/form.html", "New view", _make_form(visit, form), status=200)


def _make_form(visit: Visit, form: FormData) -> ViewForm:
    streams = visit.definitions.of(kinds.Stream)
    chosen = streams.get(form.get("stream", "")) or next(
        (it for _, it in sorted(streams.items())), None
    )
    steps = _read_step_forms(form)
    if form.get("do") == "add" and len(steps) < _MOST_STEPS:
        steps.append(_make_step(form.text("add", 64), (), {}))
    elif form.get("do", "").startswith("remove-"):
        gone = form["do"].removeprefix("remove-")
        steps = [it for number, it in enumerate(steps) if str(number) != gone]
    records = form.get("records", "")
    changed = form.get("shown", "") != (chosen.name if chosen else "")
    if chosen is not None and (changed or not records.strip()):
        records = "\n".join(json.dumps(it) for it in make_records(chosen))
    problems: list[Problem] = []
    document = _make_document(form, chosen.name if chosen else "", steps, problems)
    rows: list[PreviewRow] = []
    stateful: list[str] = []
    if chosen is None:
        problems.append(Problem("stream", "there is no stream", "define one first"))
    elif not problems:
        try:
            rows, stateful = _preview(visit.definitions, chosen, document, records)
        except InvalidError as error:
            problems += error.problems
        except PenstockError as error:
            problems.append(Problem("", error.message, error.fix))
    return ViewForm(
        name=form.text("name", 256),
        stream=chosen.name if chosen else "",
        streams=sorted(streams),
        fields=[it.name for it in chosen.fields] if chosen else [],
        roles=form.text("roles"),
        purposes=form.text("purposes"),
        remove=form.all("remove"),
        steps=steps,
        anonymizers=sorted([*MASKS, *STATEFUL_ANONYMIZERS]),
        records=records,
        rows=rows,
        effects=list(_measure(rows)),
        figures=_measure_risk(chosen, rows) if chosen is not None else None,
        stateful=stateful,
        rejected=sum(it.after is None for it in rows),
        problems=[
            {"place": it.place, "message": it.message, "fix": it.fix or ""}
            for it in (problems if form.get("do") else [])
        ],
        text=write_yaml([document]),
    )


def _read_step_forms(form: FormData) -> list[StepForm]:
    found = []
    for number, name in enumerate(form.all("step")[:_MOST_STEPS]):
        prefix = f"step.{number}."
        values = {it.removeprefix(prefix): form[it] for it in form if it.startswith(prefix)}
        found.append(_make_step(name, tuple(form.all(f"{prefix}keys")), values))
    return found


def _make_step(name: str, keys: Sequence[str], values: Mapping[str, str]) -> StepForm:
    kind = find_mask(name) or STATEFUL_ANONYMIZERS.get(name)
    if kind is None:
        raise UsageError(f"there is no anonymizer {quote(name)}", fix="choose one of the list")
    return StepForm(
        anonymizer=name,
        about=(kind.__doc__ or "").partition("\n")[0],
        keys=keys,
        parameters=[
            ParameterField(
                name=info.alias or field,
                about=info.description or "",
                required=info.is_required(),
                choices=list(_choices(info)),
                flag=info.annotation is bool,
                value=values.get(info.alias or field, ""),
            )
            for field, info in kind.model_fields.items()
            if field != "keys"
        ],
    )


def _choices(info: FieldInfo) -> Iterator[str]:
    """Yield the words that a parameter may have, where these are a few."""
    for it in (info.annotation, *get_args(info.annotation)):
        if str(get_origin(it)).endswith("Literal"):
            yield from (str(word) for word in get_args(it))
            return


def _read_value(text: str, place: str, problems: list[Problem]) -> Any:
    """Read a parameter as YAML: a number, a word, a list, a map."""
    try:
        found = read_documents(text.encode(), place, _VALUE)
    except InvalidError as error:
        problems += error.problems
        return None
    for source in found:
        problems += source.problems.values()
    return found[0].data if found else None


def _words(text: str) -> list[str]:
    return [it.strip() for it in text.split(",") if it.strip()]


def _make_document(
    form: FormData, stream: str, steps: Sequence[StepForm], problems: list[Problem]
) -> Document:
    anonymizers: list[dict[str, Any]] = []
    for number, step in enumerate(steps):
        made: dict[str, Any] = {"anonymizer": step.anonymizer}
        if step.keys:
            made["keys"] = list(step.keys)
        for it in step.parameters:
            if it.value.strip():
                place = f"{step.anonymizer} ({number + 1}) {it.name}"
                made[it.name] = _read_value(it.value, place, problems)
        anonymizers.append(made)
    body: dict[str, Any] = {"stream": stream, "anonymizers": anonymizers}
    for name in ("roles", "purposes"):
        if words := _words(form.text(name)):
            body[name] = words
    if form.all("remove"):
        body["remove"] = form.all("remove")
    return Document("view", form.text("name", 256) or "new-view", body)


def make_records(stream: kinds.Stream) -> list[dict[str, Any]]:
    """Return made-up records of a stream, which differ from one another."""
    made = []
    for number in range(_EXAMPLES):
        values: dict[str, Any] = {
            "int": 20 + 7 * number,
            "long": 1000 + 137 * number,
            "float": 36.1 + number / 4,
            "double": 36.1 + number / 4,
            "boolean": number % 2 == 0,
            "date": f"19{60 + 6 * number}-0{number + 1}-1{number}",
            "timestamp": f"2026-01-0{number + 1}T0{number}:30:00Z",
        }
        record = {
            it.name: values.get(it.type, _NAMES[number] if it.name == stream.subject else None)
            for it in stream.fields
        }
        for it in stream.fields:
            if record[it.name] is None:
                record[it.name] = f"{it.name}-{number % 3 + 1}"
        made.append(record)
    return made


def _preview(
    definitions: DefinitionSet, stream: kinds.Stream, document: Document, records: str
) -> tuple[list[PreviewRow], list[str]]:
    """Return examples before and after the masks, and what holds records back."""
    try:
        view = kinds.View.model_validate({"name": document.name, **document.body})
    except ValueError as error:
        raise UsageError(
            "the view does not have its shape", fix="correct the name, roles and purposes"
        ) from error
    hierarchies = hierarchies_of(definitions.definitions)
    plan = plan_view(view, stream, hierarchies)
    before, behind = plan.make_chains(view.name, secrets.token_bytes(32), hierarchies, _NoVault())
    # What masks behind a stateful step meet is not here.
    chains = [before] if behind is None or plan.stateful else [before, behind]
    rows = []
    for number, record in enumerate(_read_records(records)):
        after: dict[str, Any] | Rejected = dict(record)
        for chain in chains:
            if not isinstance(after, Rejected):
                after = chain.apply(after, f"preview/{number}")
        refused = isinstance(after, Rejected)
        rows.append(
            PreviewRow(
                before=record,
                after=None if isinstance(after, Rejected) else after,
                reason=str(after.reason) if refused and isinstance(after, Rejected) else "",
            )
        )
    return rows, [it.name for it in plan.stateful]


class _NoVault:
    """Keeps nothing: originals of a preview are not to be found later."""

    def put(self, vault: str, entries: Mapping[str, bytes]) -> None:
        """Forget the entries."""

    def get(self, vault: str, token: str) -> bytes | None:  # noqa: ARG002 - as vaults are asked
        """Return nothing."""
        return None


def _read_records(text: str) -> list[dict[str, Any]]:
    if len(text) > _RECORDS_BYTES:
        raise UsageError("these are too many records for a preview", fix="leave some out")
    found = []
    for number, line in enumerate(filter(str.strip, text.splitlines()), 1):
        record = read_object(line.encode())
        if record is None:
            raise UsageError(f"line {number} of the records is not a JSON object", fix="correct it")
        found.append(record)
    if len(found) > _MOST_RECORDS:
        raise UsageError(f"more than {_MOST_RECORDS} records", fix="leave some out")
    return found


def _measure(rows: Sequence[PreviewRow]) -> Iterator[FieldEffect]:
    """Yield how much of each field is left in the examples."""
    done = [(it.before, it.after) for it in rows if it.after is not None]
    for name in dict.fromkeys(field for before, _ in done for field in before):
        had = [str(before.get(name)) for before, _ in done]
        has = [str(after.get(name)) for _, after in done if name in after]
        kept = sum(name in after and after[name] == before.get(name) for before, after in done)
        told = _entropy(had)
        loss = 0.0
        if len(has) < len(done):
            loss = 1.0
        elif told:
            loss = max(0.0, 1 - _entropy(has) / told)
        yield FieldEffect(
            field=name,
            kept=kept,
            changed=len(has) - kept,
            removed=len(done) - len(has),
            before=len(set(had)),
            after=len(set(has)),
            loss=loss,
        )


def _entropy(values: Sequence[str]) -> float:
    """Return how well values tell records apart, in bits."""
    counts = Counter(values)
    return -sum(it / len(values) * math.log2(it / len(values)) for it in counts.values())


def _measure_risk(stream: kinds.Stream, rows: Sequence[PreviewRow]) -> PreviewFigures | None:
    """Return what the examples lose, and how far a person can be found by what is known of them.

    Known are the quasi-identifiers of the stream; where it names none, all fields.
    """
    done = [(it.before, it.after) for it in rows if it.after is not None]
    if not done:
        return None
    known = [it.name for it in stream.fields if it.category == "quasi-identifier"]
    known = known or [it.name for it in stream.fields]
    groups = [
        Counter(tuple(str(it.get(name)) for name in known) for it in records)
        for records in ([before for before, _ in done], [after for _, after in done])
    ]
    losses = [it.loss for it in _measure(rows)]
    # The mean over records of 1 / size of the group is groups / records.
    before, after = (len(it) / len(done) for it in groups)
    alone = [sum(count == 1 for count in it.values()) for it in groups]
    return PreviewFigures(
        loss=sum(losses) / max(1, len(losses)),
        risk_before=before,
        risk_after=after,
        alone_before=alone[0],
        alone_after=alone[1],
        known_by=known,
    )
