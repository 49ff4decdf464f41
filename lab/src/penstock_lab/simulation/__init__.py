"""Simulations of days, in process or through a gateway."""
