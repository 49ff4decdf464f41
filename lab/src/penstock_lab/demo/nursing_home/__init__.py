"""The nursing home of the case study: definitions, and what carries its messages."""
