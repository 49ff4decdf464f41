"""Durable state: definitions with epochs, change feed, audit log, sessions, detection, consent."""
