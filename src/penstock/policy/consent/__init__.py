"""Consent in decisions: whom a message is about, and which purposes that person opted out of."""
