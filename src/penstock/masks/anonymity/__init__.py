"""Anonymity of tables and of streams: groups in which nobody stands out.

    domains, dates           what values are, and what a generalization of them loses
    rules                    what a group has to fulfil: k persons, l-diversity, t-closeness
    partitions               cutting tuples into groups
    parameters, publication  k-anonymity of a stream, with bounded delay
    stream, castle           two algorithms for it; algorithms has them by name
    microaggregation         means of groups instead of ranges

Everything works on NumPy arrays of codes and keeps its state in plain sight, so that a Spark
state function can hold it. Nothing here reads, writes or draws without a seed.
"""

from penstock.masks.anonymity.castle import CastleAnonymizer
from penstock.masks.anonymity.dates import DateDomain
from penstock.masks.anonymity.domains import (
    CategoryDomain,
    Domain,
    NumberDomain,
    Space,
    WithNull,
)
from penstock.masks.anonymity.microaggregation import (
    Microaggregate,
    TooFew,
    aggregate_tuples,
    aggregate_values,
)
from penstock.masks.anonymity.partitions import partition
from penstock.masks.anonymity.publication import NONE, Boxes, Release, StreamParameters
from penstock.masks.anonymity.rules import (
    Census,
    Closeness,
    Demands,
    Distance,
    DistinctDiversity,
    EntropyDiversity,
    GroupRule,
    RecursiveDiversity,
)
from penstock.masks.anonymity.stream import StreamAnonymizer, open_stream

__all__ = [
    "NONE",
    "Boxes",
    "CastleAnonymizer",
    "CategoryDomain",
    "Census",
    "Closeness",
    "DateDomain",
    "Demands",
    "Distance",
    "DistinctDiversity",
    "Domain",
    "EntropyDiversity",
    "GroupRule",
    "Microaggregate",
    "NumberDomain",
    "RecursiveDiversity",
    "Release",
    "Space",
    "StreamAnonymizer",
    "StreamParameters",
    "TooFew",
    "WithNull",
    "aggregate_tuples",
    "aggregate_values",
    "open_stream",
    "partition",
]
