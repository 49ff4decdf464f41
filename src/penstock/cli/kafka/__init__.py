"""Verbs on the users and roles of a Kafka cluster."""
