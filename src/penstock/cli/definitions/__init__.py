"""Verbs on definitions: apply, show, compare, delete, roll back."""
