"""Demonstrations: real parts on this machine, small stories that check themselves."""
