"""Definitions in the store: one set of documents, each change an epoch.

    edits ──▶ history (every revision, every epoch) ◀── checked (valid as a whole, recorded)
                 └──▶ snapshots (the set at one epoch) ──▶ `store.follower`

Rules that hold here:
- What is stored is always a valid set: every change goes through `checked`.
- History is never rewritten.
"""
