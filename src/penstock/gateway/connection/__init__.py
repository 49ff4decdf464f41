"""One client: its connection, its connection to the broker, its session and subscriptions."""
