"""Verbs on definitions: put, show, compare, delete, return to what they were."""
