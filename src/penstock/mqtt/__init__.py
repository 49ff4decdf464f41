"""MQTT 3.1.1 and 5 without I/O: packets, topic filters, session states."""
