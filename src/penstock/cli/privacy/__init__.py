"""Verbs on privacy: consent, tokens, and the audit log that proves what was done."""
