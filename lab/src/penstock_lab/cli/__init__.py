"""The lab's verbs of the command line; entry points plug them in."""
