"""penstock.yaml: typed settings, environment overrides, secrets from files.

Rules that hold here:
- Settings are frozen and complete: every value has a default and every path is absolute.
- All problems are reported at once, each with its place and its fix.
- A secret is never in the settings, only the place where it is kept.
"""

from penstock.config.catalogue import Config
from penstock.config.loader import FILE_NAME, FILE_VARIABLE, defaults, find, load
from penstock.config.secrets import KeyFile, Secret, SecretFile, SecretVariable

__all__ = [
    "FILE_NAME",
    "FILE_VARIABLE",
    "Config",
    "KeyFile",
    "Secret",
    "SecretFile",
    "SecretVariable",
    "defaults",
    "find",
    "load",
]
