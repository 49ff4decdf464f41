"""Values by topic filter: what matches a topic, what covers or overlaps a filter."""
