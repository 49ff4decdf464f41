"""Contact tracing: who was where and with whom, and for how long, from location samples."""
