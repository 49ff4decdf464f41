"""The engine of one partition of the persons, over Arrow batches.

    batch of a partition ─ read_steps ─→ steps ─ PartitionEngine ─→ ResultTable: columns again

Rules that hold here:
- Steps come in the order of records. A step's time never lies before the one of an earlier
  record, whichever part that belongs to: whoever makes the batches sees to it.
- Results of time alone are kept apart from results of a record, so that the joint partition can
  apply both in the order of an engine that sees everything.
- Publications of actions are reported, not published: messages of actions are records of their
  own, written by the gateway that carried the actions out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from penstock.cep.engine import Engine
from penstock.cep.event_binding import BoundEvent, Packet
from penstock.cep.program import PacketEvents, Program, RequestEvents
from penstock.cep.spark import HAPPENED, OWN, field_name, list_packets
from penstock.cep.steps import StepResult, Transition
from penstock.lang import DURATION, TIMESTAMP, Type
from penstock.lang.scalars import EPOCH, MICROSECOND

NOBODY: Final = Packet("", {})
"""Stands for the packet of a record: events are bound already, and nobody asks for more."""

SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()),  # event, transition, publication
        ("name", pa.string()),  # the event type, the scenario, the action
        ("subject", pa.string()),
        ("at", pa.int64()),  # milliseconds since 1970
        ("source", pa.string()),
        ("target", pa.string()),
        ("event", pa.string()),  # what brought a transition about
        ("evolution", pa.int32()),
        ("topic", pa.string()),
        ("said", pa.string()),  # attributes or payload, as JSON
        ("offset", pa.int64()),  # the record that brought it about; null: time did
        ("part", pa.int32()),
        ("step", pa.int64()),
        ("place", pa.int32()),
    ]
)


class PartitionStep(NamedTuple):
    """A record that is some events; without offset: time that passes."""

    offset: int | None
    at: int
    bound: list[BoundEvent]


class PartitionEngine(Engine):
    """An engine that is fed what was bound before."""

    def step(self, step: PartitionStep) -> Iterator[tuple[int | None, StepResult]]:
        """Take a step; yield what time brought about first, then what the record did."""
        timer = self.next_timer()
        if step.offset is None or (timer is not None and timer <= step.at):
            yield None, self.advance(step.at)
        if step.offset is not None:
            yield step.offset, self.apply(NOBODY, step.bound, step.at)

    def ask(self, transition: Transition) -> StepResult:
        """Take up what an evolution elsewhere asks for."""
        outcome = self._begin(transition.at, 0)
        plan = self.program.plans[self.program.scenarios[transition.scenario].plan]
        assert transition.evolution is not None  # noqa: S101 - nobody set it by hand
        actions = plan.evolutions[transition.evolution].actions
        wanted = frozenset(self.program.actions[name].event for name in actions)
        raised = self._runner.request(transition, None, wanted)
        outcome.detected += raised
        # What follows from the request itself is a result of the partition already.
        more = [it for it in raised if not self._is_request(it[0])]
        publications, _ = self._runner.publisher.publish(actions, more, transition, 1)
        outcome.add_publications(publications)
        return outcome

    def _is_request(self, name: str) -> bool:
        return isinstance(self.program.operators[self.program.types[name]], RequestEvents)

    def readers(self) -> list[tuple[str, Callable[[pa.StructArray], Iterator[BoundEvent]]]]:
        """Return for each type of packets what makes its events of columns."""
        return [
            (name, self._reader(name, spec)) for name, spec in list_packets(self.program).items()
        ]

    def _reader(
        self, name: str, spec: PacketEvents
    ) -> Callable[[pa.StructArray], Iterator[BoundEvent]]:
        kind = self._binder.types[name]
        names = [assignment.name for assignment in spec.assignments]
        kinds = [assignment.value.type for assignment in spec.assignments]

        def read(array: pa.StructArray) -> Iterator[BoundEvent]:
            fields = dict(zip((it.name for it in array.type), array.flatten(), strict=True))
            values = [
                _values(fields[field_name(it)], of) for it, of in zip(names, kinds, strict=True)
            ]
            rows: Iterable[tuple[Any, ...]] = zip(*values, strict=True) if values else repeat(())
            times = fields[HAPPENED].to_pylist() if spec.time else repeat(None, len(array))
            ids = fields[OWN].to_pylist() if spec.id else repeat(None, len(array))
            for row, at, identifier in zip(rows, times, ids, strict=False):
                yield kind, dict(zip(names, row, strict=True)), at, identifier

        return read


def _values(array: pa.Array, kind: Type) -> list[Any]:
    """Return values as expressions see them."""
    values: list[Any] = array.to_pylist()
    if kind == TIMESTAMP:
        return [None if it is None else EPOCH + timedelta(0, 0, it) for it in values]
    if kind == DURATION:
        return [None if it is None else it * MICROSECOND for it in values]
    return values


def read_steps(table: pa.Table, engine: PartitionEngine) -> list[PartitionStep]:
    """Return the steps of a batch in order.

    It has the columns `offset` and `at`, and one for each type of packets of the engine. A
    row without offset lets time pass, after all others.
    """
    found: list[tuple[int, int, int, BoundEvent]] = []
    for number, (name, read) in enumerate(engine.readers()):
        column = table[name]
        if column.null_count == len(column):
            continue
        rows = table.select(["offset", "at", name]).filter(column.is_valid()).combine_chunks()
        events = rows[name].combine_chunks()
        offsets, times = rows["offset"].to_pylist(), rows["at"].to_pylist()
        found += zip(offsets, times, repeat(number), read(events), strict=False)
    found.sort(key=itemgetter(0, 2))
    steps = []
    for offset, group in groupby(found, key=itemgetter(0)):
        held = list(group)
        steps.append(PartitionStep(offset, held[0][1], [it[3] for it in held]))
    waits = table.filter(table["offset"].is_null())["at"].to_pylist()
    return steps + [PartitionStep(None, at, []) for at in sorted(waits)]


class ResultTable:
    """What came of steps, column by column."""

    def __init__(self, program: Program, part: int, names: frozenset[str] | None = None) -> None:
        """Keep complex events only; of these, those of some `names`."""
        self._part = part
        self._rows: list[tuple[Any, ...]] = []
        self._texts: dict[int, str] = {}
        attributes = sorted({it.attribute for it in program.scenarios.values()})
        self._attributes = {
            name: next((it for it in attributes if operator.attributes.field(it)), "")
            for name, index in program.types.items()
            if not isinstance(operator := program.operators[index], PacketEvents | RequestEvents)
            and (names is None or name in names)
        }

    def add(self, offset: int | None, outcome: StepResult) -> None:
        """Note what a step came to."""
        step, part, rows = outcome.seq, self._part, self._rows
        place = 0
        for name, row in outcome.detected:
            about = self._attributes.get(name)
            if about is None:
                continue
            text = self._texts.get(row.uid)
            if text is None:
                # Rows that hold are raised again and again, and never change.
                text = self._texts[row.uid] = write_json(row.values)
            subject = row.values.get(about)
            rows.append(
                ("event", name, subject, outcome.at, None, None, None, None, None, text,
                 offset, part, step, place)
            )  # fmt: skip
            place += 1
        for it in outcome.transitions:
            rows.append(
                ("transition", it.scenario, it.subject, it.at, it.source, it.target, it.event,
                 it.evolution, None, None, offset, part, step, place)
            )  # fmt: skip
            place += 1
        for made in outcome.publications:
            text = write_json(dict(made.payload))
            rows.append(
                ("publication", made.action, made.subject, outcome.at, None, None, None, None,
                 made.topic, text, offset, part, step, place)
            )  # fmt: skip
            place += 1

    def table(self) -> pa.Table:
        """Return all as columns."""
        columns: Sequence[Sequence[Any]] = list(zip(*self._rows, strict=True))
        if not columns:
            return SCHEMA.empty_table()
        arrays = [pa.array(it, field.type) for it, field in zip(columns, SCHEMA, strict=True)]
        return pa.Table.from_arrays(arrays, schema=SCHEMA)


def write_json(values: dict[str, Any]) -> str:
    """Return what an event says as text."""
    return json.dumps(values, default=_plain, separators=(",", ":"), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value // MICROSECOND // 1000
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"an event holds {type(value).__name__}")
