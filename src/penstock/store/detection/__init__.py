"""The state of event detection in the store: who detects, its journal, and situations.

    tables ◀── journal (who detects) ◀── situations (what holds, history, requests by hand)

Rules that hold here:
- One process detects at a time, under a lease in the store.
- A batch of the journal is one transaction: all of it is durable, or nothing.
"""
