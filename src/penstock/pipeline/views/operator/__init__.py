"""Stateful anonymizers as streaming queries, one for each view that has any."""
