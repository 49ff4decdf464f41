"""Named arrays as bytes, and back: what a stream's state is saved as.

Rules that hold here:
- What was cut short or changed on the way is refused: each array carries a checksum.
- No object is ever unpickled.
"""

from __future__ import annotations

import io
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from penstock.errors import UsageError


def pack(arrays: dict[str, npt.NDArray[Any]]) -> bytes:
    """Write arrays as bytes."""
    target = io.BytesIO()
    np.savez(target, allow_pickle=False, **arrays)
    return target.getvalue()


def unpack(state: bytes) -> dict[str, npt.NDArray[Any]]:
    """Read what `pack` wrote."""
    try:
        with np.load(io.BytesIO(state), allow_pickle=False) as source:
            return dict(source)
    except (BadZipFile, ValueError, OSError, EOFError, KeyError, AttributeError) as error:
        raise UsageError(
            f"the state of {len(state)} bytes cannot be read",
            fix="go back to an older checkpoint, or begin the view anew",
        ) from error
