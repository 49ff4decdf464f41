"""What the gateway itself publishes: messages of actions, and wills."""
