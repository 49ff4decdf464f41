"""Collective steps as stateful queries of Spark, one for each view that has such a step."""
