"""Made-up records in any volume, the same for the same seed."""
