"""The engines of a detection: one for each part of the persons, one for what joins persons.

Rules that hold here:
- Workers get the definitions as text and compile them for themselves: what is compiled holds
  generated functions, which do not travel. The text has one form, however definitions were
  ordered when somebody wrote them: state is kept under what operators do, as they are written.
- A batch begins with what the commit before it left, and leaves new files of its own: one
  for each part, under a name that no other try of a batch has. They count with the commit.
- A worker keeps the engines that it has used last, each under the name of the batch that it
  is as of: an engine of a batch that was given up has another name, and is never used.
- What joins persons runs in one place. It takes a transition up right after the record that
  brought it about, and one that time brought about before every record of that time: as an
  engine that sees everything would. Only transitions with actions ask for anything.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

from penstock.cep.context import StateError
from penstock.cep.partition_engine import PartitionEngine, PartitionStep, ResultTable, read_steps
from penstock.cep.program import Program, RequestEvents
from penstock.cep.spark import PartitionedProgram, list_packets, partition_program
from penstock.cep.steps import Transition
from penstock.definitions import DefinitionSet
from penstock.definitions.events.program import compile_program
from penstock.errors import UsageError, quote
from penstock.model.document import Document
from penstock.model.kinds import Concern, Scenario, Stream, kinds_of
from penstock.pipeline.session import freeze_loaded

KINDS: Final = kinds_of(Concern.EVENTS)


@dataclass(frozen=True)
class DetectionPlan:
    """The definitions of events, and the stream whose records are looked at."""

    definitions: DefinitionSet
    stream: Stream

    @classmethod
    def find(cls, definitions: DefinitionSet, stream: str) -> DetectionPlan:
        """Take a stream and all events out of a set."""
        found = definitions.get(Stream, stream)
        if found is None:
            known = ", ".join(definitions.of(Stream)) or "none yet"
            raise UsageError(f"there is no stream {quote(stream)}", fix=f"streams are {known}")
        plan = cls(definitions, found)
        if not list_packets(plan.program):
            raise UsageError(
                "no event is bound to packets, so that nothing can be detected",
                fix="define events, see `penstock schema event`",
            )
        _check_requests(plan.program)
        return plan

    @cached_property
    def text(self) -> str:
        """The definitions that workers need: attributes where a scenario asks for them."""
        filtered = any(it.subject_filter for it in self.definitions.of(Scenario).values())
        wanted = KINDS if filtered else KINDS - {"attributes"}
        chosen = [it for key, it in self.definitions.definitions.items() if key.kind in wanted]
        documents = sorted((it.document() for it in chosen), key=lambda it: it.key)
        return json.dumps(
            [{"kind": it.kind, "name": it.name, "body": it.body} for it in documents],
            ensure_ascii=False,
            sort_keys=True,
        )

    @cached_property
    def signature(self) -> str:
        """A short name of these definitions."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def differs(self, definitions: DefinitionSet) -> bool:
        """Say whether a set tells something else of this detection."""
        other = DetectionPlan(definitions, self.stream)
        return definitions.get(Stream, self.stream.name) != self.stream or other.text != self.text

    @cached_property
    def program(self) -> Program:
        """All that is detected."""
        return _compile(self.text)

    @cached_property
    def separation(self) -> PartitionedProgram:
        """What can be followed in parts, and what cannot."""
        return partition_program(self.program)


@lru_cache(maxsize=4)
def load_separation(text: str) -> PartitionedProgram:
    """Compile the definitions that `text` wrote down."""
    return partition_program(_compile(text))


def _compile(text: str) -> Program:
    documents = [Document(it["kind"], it["name"], it["body"]) for it in json.loads(text)]
    return compile_program(DefinitionSet.build(documents).definitions)


def _check_requests(program: Program) -> None:
    """Refuse requests that need what nobody knows here: the packet that led to them."""
    for name, index in sorted(program.types.items()):
        spec = program.operators[index]
        if not isinstance(spec, RequestEvents):
            continue
        for assignment in spec.assignments:
            strange = sorted(it for it in assignment.value.references if not it.startswith("r."))
            if strange and assignment.name not in spec.optional:
                raise UsageError(
                    f"the request {quote(name)} looks at {strange[0]}, which records do not tell",
                    fix=f"make {assignment.name} optional, or detect it at the gateway",
                )


PART: Final = "part"
KEPT: Final = 8
"""How many engines a worker keeps."""
JOINT: Final = "joint"
JOINT_PART: Final = -1
"""The part that its results are told as."""
_BEFORE: Final = -1


@dataclass(frozen=True, slots=True)
class ErasedNames:
    """People whom engines are to forget, and the attributes of events that name people."""

    people: tuple[str, ...]
    attributes: tuple[str, ...]

    @classmethod
    def gather(cls, notes: Iterable[str]) -> Self:
        """Read the notes of an erasure: JSON, as `rights.erasure` writes them."""
        known = [json.loads(it) for it in notes]
        attributes = {name for it in known for name in it["attributes"]}
        return cls(tuple(sorted({it["person"] for it in known})), tuple(sorted(attributes)))


_kept: OrderedDict[tuple[str, int], tuple[str, PartitionEngine]] = OrderedDict()


def make_task(
    text: str, folder: str, before: str, token: str, erased: ErasedNames | None = None
) -> Callable[[pa.Table], pa.Table]:
    """Return what takes the rows of one part, and returns what came of them."""

    def follow(table: pa.Table) -> pa.Table:
        freeze_loaded()
        part = table[PART][0].as_py()
        program = load_separation(text).keyed
        engine = _take_engine(program, Path(folder), before, part)
        if erased is not None:
            engine.forget(erased.people, erased.attributes)
        results = ResultTable(program, part)
        for step in read_steps(table, engine):
            for offset, outcome in engine.step(step):
                results.add(offset, outcome)
        save_engine(engine, Path(folder), token, str(part))
        _kept[folder, part] = token, engine
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
        return results.table()

    return follow


def _take_engine(program: Program, folder: Path, before: str, part: int) -> PartitionEngine:
    held = _kept.pop((str(folder), part), None)
    if held is not None and held[0] == before and held[1].program is program:
        return held[1]
    return load_engine(program, folder, before, str(part))


def load_engine(program: Program, folder: Path, token: str, part: str) -> PartitionEngine:
    """Return the engine of a part as of a batch; a new one before the first batch."""
    if not token:
        return PartitionEngine(program)
    try:
        state = (folder / token / part).read_bytes()
    except FileNotFoundError:
        raise StateError(
            f"the state of part {part} of a detection is missing in {folder}",
            fix="restore the folder from a backup; on a cluster, all nodes must see it",
        ) from None
    engine = PartitionEngine.load(program, state)
    assert isinstance(engine, PartitionEngine)  # noqa: S101 - it is made by its own class
    return engine


def save_engine(engine: PartitionEngine, folder: Path, token: str, part: str) -> None:
    """Write an engine down, and when time alone may change something in it.

    A task that is tried again replaces what it wrote.
    """
    timer = engine.next_timer()
    _write(folder / token / part, engine.save())
    _write(folder / token / f"{part}.timer", b"" if timer is None else str(timer).encode())


def find_timer(folder: Path, token: str) -> int | None:
    """Return when time alone may change something in any part."""
    told = [path.read_bytes() for path in (folder / token).glob("*.timer")]
    return min((int(it) for it in told if it), default=None)


def _write(target: Path, content: bytes) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(target)


class JointEngine:
    """The engine of what joins persons."""

    def __init__(self, separation: PartitionedProgram, engines: Path, token: str) -> None:
        if separation.joint is None:
            raise TypeError("nothing joins persons")
        self._program = separation.joint
        self._names = separation.results
        self._engines = engines
        self._engine: PartitionEngine = load_engine(separation.joint, engines, token, JOINT)

    def forget(self, erased: ErasedNames) -> None:
        """Forget people who are erased."""
        self._engine.forget(erased.people, erased.attributes)

    def follow(self, samples: pa.Table, results: Path, clock: int) -> pa.Table:
        """Take in a batch, with what came of its parts; return what came of it here."""
        # What happens, by time, record, and place in the results of that record.
        line: list[tuple[int, int, tuple[int, ...], PartitionStep | Transition]] = [
            (step.at, step.offset or 0, (), step) for step in read_steps(samples, self._engine)
        ]
        line += self._read_transitions(results)
        line.sort(key=lambda item: item[:3])
        found = ResultTable(self._program, JOINT_PART, self._names)
        for _, offset, _, item in line:
            if isinstance(item, PartitionStep):
                for told, outcome in self._engine.step(item):
                    found.add(told, outcome)
            else:
                found.add(None if offset == _BEFORE else offset, self._engine.ask(item))
        for told, outcome in self._engine.step(PartitionStep(None, clock, [])):
            found.add(told, outcome)
        return found.table()

    def save(self, token: str) -> None:
        """Write the state down."""
        save_engine(self._engine, self._engines, token, JOINT)

    def _read_transitions(
        self, results: Path
    ) -> list[tuple[int, int, tuple[int, ...], PartitionStep | Transition]]:
        """Return the transitions that ask for something, with their places."""
        table = pyarrow.parquet.read_table(results, filters=[("kind", "=", "transition")])
        return [
            (
                row["at"],
                _BEFORE if row["offset"] is None else row["offset"],
                (row["part"], row["step"], row["place"]),
                _transition(row),
            )
            for row in table.to_pylist()
            if self._asks(row)
        ]

    def _asks(self, row: dict[str, Any]) -> bool:
        if row["evolution"] is None:
            return False  # no event brought it about
        plan = self._program.plans[self._program.scenarios[row["name"]].plan]
        return bool(plan.evolutions[row["evolution"]].actions)


def _transition(row: dict[str, Any]) -> Transition:
    return Transition(
        row["name"],
        row["subject"],
        row["source"],
        row["target"],
        row["at"],
        row["event"],
        None,
        row["evolution"],
    )
