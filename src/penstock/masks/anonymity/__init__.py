"""Anonymity of tables and of streams: groups in which nobody stands out.

    domains, space        what values are, and what a generalization of them loses
    rules, diversity, closeness   what a group has to fulfil
    cuts                  cutting tuples into groups
    parameters, stream, reuse, release   k-anonymity of a stream, with bounded delay
    microaggregation      means of groups instead of ranges

Everything works on NumPy arrays of codes and keeps its state in plain sight, so that a Spark
state function can hold it. Nothing here reads, writes or draws without a seed.
"""

from penstock.masks.anonymity.closeness import Closeness, Distance
from penstock.masks.anonymity.cuts import partition
from penstock.masks.anonymity.diversity import (
    DistinctDiversity,
    EntropyDiversity,
    RecursiveDiversity,
)
from penstock.masks.anonymity.domains import CategoryDomain, Domain, NumberDomain
from penstock.masks.anonymity.microaggregation import (
    Microaggregate,
    TooFew,
    aggregate_tuples,
    aggregate_values,
)
from penstock.masks.anonymity.parameters import Parameters
from penstock.masks.anonymity.release import Release
from penstock.masks.anonymity.reuse import NONE, Boxes
from penstock.masks.anonymity.rules import Census, Demands, Rule
from penstock.masks.anonymity.space import Space
from penstock.masks.anonymity.stream import StreamAnonymizer

__all__ = [
    "NONE",
    "Boxes",
    "CategoryDomain",
    "Census",
    "Closeness",
    "Demands",
    "Distance",
    "DistinctDiversity",
    "Domain",
    "EntropyDiversity",
    "Microaggregate",
    "NumberDomain",
    "Parameters",
    "RecursiveDiversity",
    "Release",
    "Rule",
    "Space",
    "StreamAnonymizer",
    "TooFew",
    "aggregate_tuples",
    "aggregate_values",
    "partition",
]
