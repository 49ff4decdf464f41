"""Runs the command line: `python -m penstock VERB`."""

from penstock.cli import main

main()
