"""Synthetic records in any volume, deterministic by seed."""
