"""Stateful anonymizers: they hold records back until these are hidden among others.

They are pure: rows come in and leave as Arrow tables, state is bytes. `penstock.pipeline.views`
keeps that state in the state store of Spark.
"""
