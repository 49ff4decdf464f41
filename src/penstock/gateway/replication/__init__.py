"""Replicates situations from the leader, which detects events, to its followers."""
