"""Verbs on access: users and roles, who may do what and why, and which emergencies open it."""
