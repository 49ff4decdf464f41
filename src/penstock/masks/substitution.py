"""Substitution: a value is replaced by one of a list.

Rules that hold here:
- Consistent unless `random`: the keyed hash of the value chooses, so that the same value
  always gets the same substitute in this view, and nobody without the key can tell which.
- The type of a field stays, or becomes text where `as: text` declares it.
- Several values may share a substitute, and a value may meet itself where it stands in
  the list: nothing in the output tells such a case from any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import Field as Parameter
from typing_extensions import override

from penstock.errors import Problem, quote
from penstock.masks.fields import DECIMALS, TEXTS, Field, FieldType
from penstock.masks.hierarchy import Hierarchy
from penstock.masks.mask import FieldName, Mask, Substitutes, Target, Transform, check_fit, fit
from penstock.masks.supplies import draw

BITS = 60
"""Bits that choose: so many that a list of any length is chosen from evenly."""


class Substitution(Mask):
    """Replaces values by substitutes from a list."""

    name: ClassVar[str] = "substitution"
    accepts: ClassVar[frozenset[FieldType]] = frozenset(FieldType) - {FieldType.TIMESTAMP}

    substitution_list: Substitutes = Parameter(
        description="The substitutes, of the type of the fields, or texts with `as: text`."
    )
    random: bool = Parameter(
        default=False,
        description="Whether the record chooses instead of the value, so that "
        "the same value gets different substitutes.",
    )
    domain: FieldName | None = Parameter(
        default=None,
        description="Fields and views that name the same domain substitute alike; "
        "left out: this field of this view alone.",
    )
    as_: Literal["text"] | None = Parameter(
        default=None, alias="as", description="`text`: the field becomes text."
    )

    @property
    def needs_identity(self) -> bool:
        """Only chance needs the record."""
        return self.random

    @property
    def needs_keys(self) -> bool:
        """The hash is keyed in both cases."""
        return True

    @override
    def check_field(
        self, name: str, found: Field, hierarchies: Mapping[str, Hierarchy]
    ) -> Iterator[Problem]:
        """Yield substitutes of a wrong type, and numbers that cannot be hashed."""
        fix = f"write each substitute as {found.type}, or declare as: text"
        output = self.output(found)
        yield from check_fit("substitution_list", self.substitution_list, name, output, fix)
        if found.type in DECIMALS and not self.random:
            yield Problem(
                "keys",
                f"{quote(name)} is {found.type}: such numbers have no consistent substitute",
                "set random: true, or mask it by bucketizing first",
            )
        if self.random and self.domain is not None:
            yield Problem("domain", "chance knows no domain", "leave domain or random out")

    def output(self, found: Field) -> Field:
        """Return the field as it is, or text where that is declared."""
        return found.as_type(FieldType.STRING) if self.as_ else found

    def key(self, target: Target) -> bytes:
        """Return the key under which substitutes are chosen for a field."""
        if self.domain is not None:
            return target.keys.derive_shared(self.name, self.domain)
        if self.random:
            # Choices of a record from two lists have nothing to do with each other.
            listed = json.dumps(self.substitution_list, ensure_ascii=True)
            return target.keys.derive(self.name, target.name, target.label, "random", listed)
        return target.keys.derive(self.name, target.name, target.label)

    def transform(self, target: Target) -> Transform:
        """Return the choice by value or by record."""
        key = self.key(target)
        chosen = fit(self.substitution_list, self.output(target.field))
        count = len(chosen)
        if self.random:
            return lambda _, identity: chosen[draw(key, identity, BITS) % count]
        write = TEXTS[target.field.type]
        return lambda value, _: chosen[draw(key, write(value), BITS) % count]
