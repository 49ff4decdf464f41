"""Erasure as a service of Penstock's own: what it keeps about a person goes, with evidence."""
