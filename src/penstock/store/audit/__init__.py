"""The audit log: append-only, tamper-evident, and without anybody's name in it."""
