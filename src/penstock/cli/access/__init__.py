"""Verbs on access: who may read and write what, why, and which emergencies open it."""
