"""The state of an anonymized stream as bytes: named arrays, and nothing that is unpickled.

Rules that hold here:
- State that was cut short or changed is refused: each array carries a checksum.
"""

from __future__ import annotations

import io
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from penstock.errors import UsageError
from penstock.masks.anonymity.parameters import StreamParameters


def pack(parameters: StreamParameters, arrays: dict[str, npt.NDArray[Any]]) -> bytes:
    """Write arrays as bytes, together with what they depend on."""
    target = io.BytesIO()
    signature = np.frombuffer(parameters.signature, dtype=np.uint8)
    np.savez(target, allow_pickle=False, signature=signature, **arrays)
    return target.getvalue()


def unpack(parameters: StreamParameters, state: bytes) -> dict[str, npt.NDArray[Any]]:
    """Read what `pack` wrote with the same parameters."""
    try:
        with np.load(io.BytesIO(state), allow_pickle=False) as source:
            parts = dict(source)
        signature = parts.pop("signature").tobytes()
    except (BadZipFile, ValueError, OSError, EOFError, KeyError, AttributeError) as error:
        raise UsageError(
            f"the state of {len(state)} bytes cannot be read",
            fix="go back to an older checkpoint, or begin the view anew",
        ) from error
    if signature != parameters.signature:
        raise UsageError(
            "the state was written with other parameters",
            fix="flush the stream before its parameters change, or begin the view anew",
        )
    return parts
