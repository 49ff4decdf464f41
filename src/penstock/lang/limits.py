"""Every bound of the expression language, in one place.

Rules that hold here:
- A bound on the text, the tree or a pattern is checked when the expression is
  compiled; passing it is an error that names the bound.
- A bound on values is checked when the expression is evaluated; passing it is
  the outcome "missing", in all forms alike.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

# The text and the tree.
MAX_TEXT: Final = 8192  # characters of an expression
MAX_NODES: Final = 2000  # nodes of its tree
MAX_DEPTH: Final = 32  # nodes from the root of its tree to a leaf; Spark fails beyond 40
MAX_PROBLEMS: Final = 20  # problems reported at once
MAX_PATTERN: Final = 512  # characters of a regular expression
MAX_PATTERN_MEMORY: Final = 1 << 20  # bytes that its automaton may take
MAX_TYPE_TEXT: Final = 4096  # characters of a type's notation
MAX_TYPE_DEPTH: Final = 16  # lists, maps and records within each other
MAX_QUANTIFIER_DEPTH: Final = 2  # exists/all within each other

# Values.
MIN_INT: Final = -(2**63)
MAX_INT: Final = 2**63 - 1
MAX_EXACT: Final = 2**53  # every int up to here is a double without rounding
MAX_STRING: Final = 65_536  # code points of a string that an expression builds
MAX_NUMERAL: Final = 64  # characters of a string that int() or double() reads
MIN_TIMESTAMP: Final = datetime.min.replace(tzinfo=UTC)
MAX_TIMESTAMP: Final = datetime.max.replace(tzinfo=UTC)
MAX_DURATION: Final = timedelta(seconds=315_576_000_000)  # 10,000 years, both ways

# A quantifier visits each element once. One whose body loops again visits few, so
# that the product stays within what one message may cost.
MAX_VISITS: Final = 10_000
MAX_VISITS_NESTED: Final = 100
