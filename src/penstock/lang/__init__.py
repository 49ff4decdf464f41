"""Expressions: one syntax tree, three forms (Python function, Spark Column, interpreter)."""
