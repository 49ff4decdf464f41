"""Scenarios: state machines per subject, their transitions, and their actions."""
