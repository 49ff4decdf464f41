"""Decisions and their explanation; pure. `authorizer` composes all rules in one place."""
