"""Simulations: made-up days pass, in process or through a gateway."""
