"""The process: listeners, workers, the definition feed, and the gateway as a whole."""
