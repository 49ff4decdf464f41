"""Benchmarks, one module per part, each printing figures and ratios of one run."""
