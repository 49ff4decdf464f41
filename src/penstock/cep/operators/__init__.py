"""Operators: windows, aggregates, joins and negation, maintained incrementally."""
