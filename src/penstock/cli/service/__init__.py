"""Verbs on the service: settings, processes, users, and servers for development."""
