"""Masks at scale: native Spark columns that give the same as `Chain.apply`.

    frame ─→ conform ─→ mask ─→ mask ─→ … ─→ fields of the view + the reason of a rejection

Rules that hold here:
- pyspark is imported in this package alone, and nothing else of `masks` imports it.
- Masks are native columns. Python runs, in Arrow batches, for two things only: tokens of
  FF1 and of a vault, and regular expressions, because Java's are not linear in time.
- No key appears in a query plan, where logs, the user interface and event logs would show
  it: keys and tables come in as scalar subqueries over local rows, whose plan names no value.
- No row fails the job; a rejected row has its reason and nulls in all fields of the view.
"""

from penstock.masks.spark.column_builder import spark_type
from penstock.masks.spark.columns import ChainLayout, JointMasks, RowMasks, mask_frame

__all__ = ["ChainLayout", "JointMasks", "RowMasks", "mask_frame", "spark_type"]
