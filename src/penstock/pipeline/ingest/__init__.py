"""Ways into the event log: files that are fed by hand, and a connector for CSV."""
