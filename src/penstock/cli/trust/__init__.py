"""What crosses the borders of a domain: keys, capabilities, signed event types."""
