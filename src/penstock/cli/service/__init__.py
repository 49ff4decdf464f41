"""Verbs on the service: its settings, its processes, its users and its servers for trials."""
