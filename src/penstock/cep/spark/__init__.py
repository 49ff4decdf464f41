"""Detection at scale: Spark columns bind packets, and each partition of subjects has its engine.

    program ─ separate ─→ partitioned: subjects by themselves, any number of partitions in parallel
                       └→ joint: joins across subjects, in one place, with the others' transitions
    record ─ bind ─→ primitive events ─→ partition of its subject ─→ its engine ─→ results

Rules that hold here:
- The operators are those of the in-line engine, with their state; only binding has a second
  form, made of the expressions' columns. So both detect the same.
- pyspark is imported in this package alone, and nothing else of `cep` imports it.
"""

from penstock.cep.spark.partition_engine import (
    PartitionEngine,
    PartitionStep,
    ResultTable,
    read_steps,
)
from penstock.cep.spark.partitioned_program import (
    PartitionedProgram,
    bind_types,
    field_name,
    list_packets,
    match_filter,
    partition_program,
)

__all__ = [
    "PartitionEngine",
    "PartitionStep",
    "PartitionedProgram",
    "ResultTable",
    "bind_types",
    "field_name",
    "list_packets",
    "match_filter",
    "partition_program",
    "read_steps",
]
