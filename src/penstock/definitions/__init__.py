"""Sets of definitions: reading documents, checking them as a whole, comparing them.

Rules that hold here:
- All problems of all documents are reported at once, each with its place and its fix.
- A set is either valid as a whole or it does not exist: types, references, cycles and
  expressions are checked before a `DefinitionSet` is made.
- A check (`access_checks`, `role_checks`, …) yields every problem that it finds, each with its
  place and its fix; none stops at the first. It reads no files and keeps no state: what is given
  is all that it looks at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from penstock.definitions.documents import (
        Difference,
        Reading,
        after_applying,
        differences,
        read_paths,
        read_text,
        write_json,
        write_yaml,
    )
    from penstock.definitions.set import DefinitionSet
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "documents": (
                "Difference",
                "Reading",
                "after_applying",
                "differences",
                "read_paths",
                "read_text",
                "write_json",
                "write_yaml",
            ),
            "set": ("DefinitionSet",),
        },
    )

__all__ = [
    "DefinitionSet",
    "Difference",
    "Reading",
    "after_applying",
    "differences",
    "read_paths",
    "read_text",
    "write_json",
    "write_yaml",
]
