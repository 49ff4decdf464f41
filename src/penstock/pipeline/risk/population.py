"""The journalist's view: how many persons of the stream each published group may be about.

An attacker who does not know whether a person is in the view has to choose among all persons
of the stream whose values lie in the published ranges: those of the group, those that were
suppressed, and those that stand in other groups whose ranges overlap.

Rules that hold here:
- Never fewer than the group itself; what is not looked at counts as nobody. So the risk that
  is told is the greatest that is possible, not a guess.
- Looked at are the newest records of the stream and the smallest groups, as many as there is
  time for: the greatest risk is among the smallest groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.definitions.anonymizers.k_anonymity import KAnonymization
from penstock.eventlog import Topic
from penstock.json_text import read_object
from penstock.masks import Chain, Keys, Rejected, Supplies
from penstock.masks.anonymity.domains import Domain
from penstock.masks.substitution import ConditionalSubstitution
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.pipeline.anonymizers.k_anonymity import HIGH, LOW, make_domain
from penstock.pipeline.records.columns import Integers
from penstock.pipeline.risk.figures import Attack, Knowledge, measure_attack
from penstock.pipeline.risk.measurement import Meter
from penstock.pipeline.sinks.published import read_persons

Floats = npt.NDArray[np.float64]

RECORDS: Final = 200_000
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
    start = max(topic.first_offset, topic.next_offset - RECORDS)
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
