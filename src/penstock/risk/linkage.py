"""What an attacker learns beyond one group: by linkage, and as one who looks at everybody.

    one view      records of one pseudonym ──▶ the combination of their groups ──▶ who has it too?
    two views     records alike in what both publish ──▶ pairs ──▶ what both tell of a record

Rules that hold here:
- k counts persons behind one record. Who can tell that records are about one person learns
  from all of their groups: a person is hidden among those with the same combination of groups.
- Fields link views where both publish the same values: untouched in both, masked alike, or
  tokens of one domain. Noise and tokens of a view's own key are different values in each.
- A pair counts only where it is certain: no other record of either view has these values.
- What is told is the risk of the worst case: the attacker knows the groups of a person, and
  reads both views. Looked at are the oldest records of each view, up to a limit that is told.
- The journalist does not know whether a person is in the view, and has to choose among all
  persons of the stream whose values lie in the published ranges: those of the group, those that
  were suppressed, and those in other groups whose ranges overlap. Never fewer than the group;
  what is not looked at counts as nobody, so that the risk that is told is the greatest possible.
  Looked at are the newest records and the smallest groups, as many as there is time for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa  # type: ignore[import-untyped]

from penstock.definitions.k_anonymity import KAnonymization
from penstock.definitions.view_checks import Trace
from penstock.eventlog import EventLog, Topic
from penstock.json_text import read_object
from penstock.masks import Chain, Keys, Mask, Rejected, Supplies
from penstock.masks.anonymity.domains import Domain
from penstock.masks.substitution import ConditionalSubstitution
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.anonymizers.k_anonymity import HIGH, LOW, make_domain
from penstock.pipeline.records.columns import Integers
from penstock.pipeline.sinks.commits import Totals, ViewFolder
from penstock.pipeline.sinks.published import read_persons
from penstock.risk.figures import Attack, Knowledge, Promise, Question, measure_attack
from penstock.risk.measurement import Meter, read_newest
from penstock.risk.tally import read_columns, read_delivered

RECORDS: Final = 500_000
"""How many records of a view are looked at."""


@dataclass(frozen=True, slots=True)
class PseudonymLinkage:
    """What the records of one pseudonym tell together."""

    field: str
    pseudonyms: int
    records: float
    """The mean number of records of a pseudonym."""
    k: int
    """Pseudonyms in the smallest set with the same combination of groups."""
    alone: int
    """Pseudonyms whose combination of groups no other has."""
    mean: float
    """The mean risk of a pseudonym: 1 / those with its combination."""


@dataclass(frozen=True, slots=True)
class ViewLinkage:
    """What a view tells together with another one of its stream."""

    view: str
    fields: tuple[str, ...]
    """By which records of both can be paired."""
    records: int
    paired: int
    """Records that have one certain partner in the other view."""
    k: int
    """Pairs in the smallest set that is alike in the quasi-identifiers of both; 0 without pairs."""
    alone: int
    """Pairs that no other is like."""


@dataclass(frozen=True, slots=True)
class Linkage:
    """What was found, over all pseudonyms and other views."""

    pseudonyms: tuple[PseudonymLinkage, ...]
    views: tuple[ViewLinkage, ...]
    limit: int = RECORDS

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON data."""
        return asdict(self)


class PublishedView:
    """The published records of a view, for one who links them."""

    def __init__(self, folder: ViewFolder, log: EventLog, quasi: Sequence[str] = ()) -> None:
        self.folder = folder
        self.blueprint, last = read_newest(folder)
        self.has_records = Promise.find(self.blueprint, last) is None
        self.quasi = Question.ask(self.blueprint, quasi).quasi_identifiers
        self.trace = Trace.of(self.blueprint.plan, self.blueprint.stream)
        self._log = log

    @property
    def name(self) -> str:
        """The name of the view."""
        return self.blueprint.view.name

    @property
    def pseudonyms(self) -> list[str]:
        """The fields by whose values records of one person are known."""
        links = (self.trace.identifiers | self.trace.tokens) - self.trace.hidden
        return [it for it in self.blueprint.plan.output if it in links - self.trace.groups]

    def values(self, columns: Sequence[str], limit: int = RECORDS) -> pd.DataFrame:
        """Return the values of some columns as texts, of the oldest records."""
        tables, rows = [pd.DataFrame(columns=list(columns))], 0
        for table in self._read_tables(list(columns)):
            tables.append(table.to_pandas().astype(str))
            rows += table.num_rows
            if rows >= limit:
                break
        return pd.concat(tables, ignore_index=True).iloc[:limit]

    def _read_tables(self, columns: list[str]) -> Iterator[pa.Table]:
        schema, before = self.blueprint.plan.output, Totals()
        topic = self._log.topic(self.blueprint.view.topic)
        for commit in self.folder.commits():
            count = commit.totals.published - before.published
            before = commit.totals
            if commit.plan != self.blueprint.signature:
                continue
            for name in commit.files:
                if (self.folder.data / name).exists():
                    yield from read_columns(self.folder.data / name, columns, schema)
            if commit.format == "topic":
                yield from read_delivered(topic, commit, count, columns, schema)


def measure_linkage(view: PublishedView, others: Sequence[PublishedView]) -> Linkage:
    """Return what a view's records tell by their pseudonyms, and with each of other views."""
    return Linkage(
        tuple(measure_pseudonym(view, it) for it in view.pseudonyms if it not in view.quasi),
        tuple(join_views(view, other) for other in others if other.has_records),
    )


def measure_pseudonym(view: PublishedView, field: str) -> PseudonymLinkage:
    """Return how many pseudonyms share the combination of groups of their records."""
    quasi = [it for it in view.quasi if it != field]
    frame = view.values([field, *quasi])
    pairs = frame.drop_duplicates()
    # A combination is a set: the sum of what its groups are scattered to knows no order.
    scattered = _hash(pairs[quasi]) if quasi else 1
    sums = pairs.assign(combination=scattered).groupby(field)["combination"].sum()
    sizes = sums.groupby(sums).transform("size").to_numpy()
    number = int(sizes.size)
    return PseudonymLinkage(
        field,
        number,
        round(len(frame) / number, 2) if number else 0.0,
        int(sizes.min()) if number else 0,
        int((sizes == 1).sum()),
        float((1.0 / sizes).mean()) if number else 0.0,
    )


def find_shared(view: Blueprint, other: Blueprint) -> list[str]:
    """Return the fields that hold the same values in records of both views."""
    traces = [Trace.of(it.plan, it.stream) for it in (view, other)]
    unseen = {name for trace in traces for name in trace.hidden | trace.groups}
    shared = [it for it in view.plan.output if it in other.plan.output and it not in unseen]
    return [it for it in shared if _is_alike(_masks_of(view, it), _masks_of(other, it))]


def join_views(view: PublishedView, other: PublishedView) -> ViewLinkage:
    """Pair the records of two views, and tell how many are alike in what both say."""
    shared = find_shared(view.blueprint, other.blueprint)
    own = list(dict.fromkeys([*shared, *view.quasi]))
    more = [it for it in dict.fromkeys([*other.quasi, *other.pseudonyms]) if it not in shared]
    left = view.values(own)
    if not shared:
        return ViewLinkage(other.name, (), len(left), 0, 0, 0)
    right = other.values([*shared, *more])
    keys = [_hash(left[shared]), _hash(right[shared])]
    sides = [
        frame.assign(**{_PAIR: key})[~key.duplicated(keep=False)]
        for frame, key in zip((left, right), keys, strict=True)
    ]
    told = sides[1].rename(columns={it: f"{_PAIR}{it}" for it in (*shared, *more)})
    pairs = sides[0].merge(told, on=_PAIR)
    alike = [*view.quasi, *(f"{_PAIR}{it}" for it in more)]
    sizes = np.full(len(pairs), len(pairs))
    if alike and len(pairs):
        told_both = _hash(pairs[alike])
        sizes = told_both.groupby(told_both).transform("size").to_numpy()
    return ViewLinkage(
        other.name,
        tuple(shared),
        len(left),
        len(pairs),
        int(sizes.min()) if len(pairs) else 0,
        int((sizes == 1).sum()),
    )


_PAIR: Final = "penstock:pair:"


def _hash(frame: pd.DataFrame) -> pd.Series[Any]:
    return pd.util.hash_pandas_object(frame, index=False)


def _masks_of(blueprint: Blueprint, name: str) -> list[Mask | str]:
    """Return what touches a field, in order; an anonymizer of windows is never like another."""
    plan = blueprint.plan
    found: list[Mask | str] = [it for it in plan.before if name in it.keys]
    touched = any(name in getattr(it, "keys", ()) for it in plan.stateful)
    found += [f"{blueprint.view.name}/{plan.stateful[0].name}"] if touched else []
    return found + [it for it in plan.after if name in it.keys]


def _is_alike(masks: list[Mask | str], others: list[Mask | str]) -> bool:
    """Whether the same value becomes the same: by the same masks, and by no key of one view."""
    if len(masks) != len(others):
        return False
    return all(
        isinstance(one, Mask)
        and isinstance(two, Mask)
        and one.model_copy(update={"keys": ()}) == two.model_copy(update={"keys": ()})
        and (not one.needs_keys or getattr(one, "domain", None) is not None)
        for one, two in zip(masks, others, strict=True)
    )


Floats = npt.NDArray[np.float64]

POPULATION_RECORDS: Final = 200_000
BOXES: Final = 2_000
CONDITIONAL: Final = ConditionalSubstitution.name


@dataclass(frozen=True, slots=True)
class Population:
    """Persons of a stream, with the codes of their quasi-identifiers."""

    codes: Floats
    persons: Integers

    def count_inside(self, lows: Floats, highs: Floats) -> int:
        """Return how many persons have a record between these codes."""
        chosen = np.arange(self.persons.size)
        for line, low, high in zip(self.codes, lows, highs, strict=True):
            values = line[chosen]
            chosen = chosen[(values >= low) & (values <= high)]
        return int(np.unique(self.persons[chosen]).size)


def measure_journalist(
    meter: Meter, topic: Topic, secret: bytes, threshold: float
) -> tuple[Attack, str] | None:
    """Return the risk, and against whom; None where the stream's records tell nothing more."""
    domains = _find_domains(meter)
    start = max(topic.first_offset, topic.next_offset - POPULATION_RECORDS)
    if domains is None or start >= topic.next_offset:
        return None
    groups = meter.groups()
    if not groups.keys or groups.knowledge is Knowledge.NONE:
        return None
    population = read_population(meter.blueprint, topic, domains, secret, start)
    boxes = _read_boxes(meter, domains)
    sizes = groups.sizes.copy()
    for place in np.argsort(sizes, kind="stable")[:BOXES].tolist():
        box = boxes.get(groups.keys[place])
        if box is not None:
            sizes[place] = max(sizes[place], population.count_inside(*box))
    looked = f"{population.persons.size:,} records of the stream"
    return measure_attack(sizes, groups.records, threshold), f"persons in {looked}, at least"


def read_population(
    blueprint: Blueprint, topic: Topic, domains: list[Domain], secret: bytes, start: int
) -> Population:
    """Read who stands in the stream from an offset on, as the masks before the groups say."""
    chain = _make_chain(blueprint, {domain.name for domain in domains}, secret)
    subject = blueprint.stream.subject
    columns: list[list[object]] = [[] for _ in domains]
    persons: list[int] = []
    known: dict[Any, int] = {}
    for record in topic.read(start):
        found = read_object(record.value)
        if found is not None:
            who = found.get(subject) if subject is not None else record.offset
            masked = chain.apply(found, f"{topic.folder.name}/{record.offset}") if chain else found
            if isinstance(masked, Rejected):
                continue
            persons.append(known.setdefault(str(who), len(known)))
            for column, domain in zip(columns, domains, strict=True):
                column.append(masked.get(domain.name))
    codes = np.stack(
        [domain.encode(column) for domain, column in zip(domains, columns, strict=True)]
    )
    fine = ~np.isnan(codes).any(axis=0)
    return Population(codes[:, fine], np.array(persons, dtype=np.int64)[fine])


def _make_chain(blueprint: Blueprint, names: set[str], secret: bytes) -> Chain | None:
    """Return the masks that change what groups are made of; others may have side effects."""
    masks = [mask for mask in blueprint.plan.before if names & set(mask.keys)]
    if not masks:
        return None
    supplies = Supplies(keys=Keys(secret, blueprint.view.name), hierarchies=blueprint.hierarchies)
    return Chain(masks, blueprint.plan.schema, supplies)


def _find_domains(meter: Meter) -> list[Domain] | None:
    """Return the domains that published ranges are of, if raw values can be placed in them."""
    plan = meter.blueprint.plan
    step = plan.stateful[0] if plan.stateful else None
    if not isinstance(step, KAnonymization):
        return None
    names = {quasi.key for quasi in step.quasi_identifiers}
    masked = {key for mask in plan.after for key in mask.keys}
    if names != set(meter.question.quasi_identifiers) or names & masked:
        return None
    if any(mask.name == CONDITIONAL for mask in plan.before):
        return None  # it looks at fields that other masks may have changed
    hierarchies = meter.blueprint.hierarchies
    domains = {
        quasi.key: make_domain(quasi, hierarchies, null=quasi.shares_null(plan.middle))
        for quasi in step.quasi_identifiers
    }
    return [domains[name] for name in meter.question.quasi_identifiers]


def _read_boxes(
    meter: Meter, domains: list[Domain]
) -> dict[tuple[int, ...], tuple[Floats, Floats]]:
    """Return between which codes each group lies, as widely as its published values say."""
    found: dict[tuple[int, ...], tuple[Floats, Floats]] = {}
    for table in read_persons(meter.folder.folder, meter.sequences):
        lows, highs = [], []
        for domain in domains:
            low = np.asarray(table[f"{LOW}{domain.name}"])
            high = np.asarray(table[f"{HIGH}{domain.name}"])
            low, high = domain.widen(low, high)
            lows.append(low)
            highs.append(high)
        for place, key in enumerate(meter.keys_of(table)):
            low = np.array([line[place] for line in lows])
            high = np.array([line[place] for line in highs])
            found[key] = (low, high)
    return found
