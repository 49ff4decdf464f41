"""Penstock's lab: benchmarks, demonstrations, generators and simulations.

Rules that hold here:
- A distribution of its own, `penstock-lab`: whoever runs a gateway need not have it.
- Its verbs join the command line through entry points (`penstock.commands`), its simulated
  houses through `penstock.simulations`. Nothing in `penstock` imports this package.
"""
