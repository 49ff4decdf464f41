"""Replicates situations from the gateway that detects to the others."""
