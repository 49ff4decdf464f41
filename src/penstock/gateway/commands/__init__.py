"""Purpose commands: what clients change by publishing to command topics."""
