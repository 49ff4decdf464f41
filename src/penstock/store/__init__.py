"""What must last: definitions with epochs, the change feed, the audit log."""
