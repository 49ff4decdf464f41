"""Packages that name what their modules offer, and load a module when it is asked for.

    if TYPE_CHECKING:
        from penstock.telemetry.endpoint import Endpoint
    else:
        __getattr__ = lazy_exports(__name__, {"endpoint": ("Endpoint",)})

Who asks for one name of a package then pays for one module of it, which is what keeps command
lines quick.

Rules that hold here:
- Type checkers read the imports, and never see `__getattr__`: a misspelt name stays an error.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_exports(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose modules offer these names."""
    places = {name: module for module, offered in names.items() for name in offered}

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{places[name]}"), name)

    return find
