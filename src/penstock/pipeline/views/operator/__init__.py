"""Stateful steps as streaming queries, one for each view that has such a step."""
