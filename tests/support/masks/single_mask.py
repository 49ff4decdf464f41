"""One mask over one field: what most tests of masks need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.masks import (
    Chain,
    Field,
    Hierarchy,
    Keys,
    Rejected,
    Supplies,
    Vault,
    check_masks,
    read_masks,
)

SECRET = bytes(range(32))
PLACES = Hierarchy.model_validate(
    {
        "value": "Europe",
        "children": [
            {"value": "Germany", "children": [{"value": "Berlin"}, {"value": "Potsdam"}]},
            {"value": "France", "children": [{"value": "Paris"}]},
            {"value": "Monaco"},
        ],
    }
)


class MemoryVault:
    """A vault for one process."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], bytes] = {}

    def put(self, vault: str, entries: Mapping[str, bytes]) -> None:
        self.entries.update({(vault, token): sealed for token, sealed in entries.items()})

    def get(self, vault: str, token: str) -> bytes | None:
        return self.entries.get((vault, token))


def supply(view: str = "view", vault: Vault | None = None) -> Supplies:
    return Supplies(Keys(SECRET, view), {"places": PLACES}, vault)


def chain_of(kind: str, *specs: dict[str, Any], supplies: Supplies | None = None) -> Chain:
    items = [{"keys": ["x"], **spec} for spec in specs]
    schema = {"x": Field.of(kind, optional=True)}
    return Chain(read_masks(items), schema, supplies or supply())


def mask_one(kind: str, spec: dict[str, Any], value: Any, identity: str = "t/0/1") -> Any:
    """Return what becomes of a value, or the Rejected."""
    outcome = chain_of(kind, spec).apply({"x": value}, identity)
    return outcome if isinstance(outcome, Rejected) else outcome["x"]


def problems_of(spec: dict[str, Any], **fields: str) -> list[str]:
    """Return the problems of a mask for a schema, as people read them."""
    schema = {name: Field.of(kind) for name, kind in fields.items()}
    return [str(it) for it in check_masks(read_masks([spec]), schema, {"places": PLACES})]
