"""The form at scale: a native Spark Column; NULL is missing.

Rules that hold here:
- pyspark is imported in this package alone, and nothing else of `lang` imports it.
- No row fails the job, whatever it holds and whether ANSI mode is on: operations are
  Spark's try_* functions or guarded. The session's time zone has no influence.
- Inputs have the types of `spark_type`; `check_inputs` tells whether a frame's do.
"""

from penstock.lang.spark.compiler import column
from penstock.lang.spark.values import Inputs, check_inputs, spark_struct, spark_type

__all__ = ["Inputs", "check_inputs", "column", "spark_struct", "spark_type"]
