"""Typed, frozen definitions: what a data officer declares."""
