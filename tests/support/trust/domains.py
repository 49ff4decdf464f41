"""Domains of tests: keys that are made once, and what they sign."""

from __future__ import annotations

import uuid
from functools import cache

from penstock.model.grants import Grant, parse_grant
from penstock.model.kinds.trust import TypeAttribute
from penstock.trust.capabilities import Capability, Link, delegate, issue
from penstock.trust.keys import DomainKey

NOW = 1_800_000_000
DAY = 86_400


@cache
def domain(name: str) -> DomainKey:
    """Return the key of a domain, always the same one in a run."""
    del name
    return DomainKey.generate()


def grants(*texts: str) -> tuple[Grant, ...]:
    return tuple(map(parse_grant, texts))


def link(
    signer: str,
    holder: str,
    *texts: str,
    start: int = NOW - DAY,
    until: int = NOW + DAY,
    refresh: int = 0,
) -> Link:
    """Return what a domain grants: to a user, or to a domain of a name."""
    who = holder if holder.startswith("user:") else f"key:{domain(holder).key}"
    return Link(domain(signer).key, who, grants(*texts), start, until, refresh)


def chain(owner: str, *steps: tuple[str, str], **options: int) -> Capability:
    """Return a capability: the owner's link, and one of each holder after it."""
    (holder, text), *rest = steps
    made = issue(domain(owner), link(owner, holder, text, **options))
    for next_holder, narrower in rest:
        made = delegate(made, domain(holder), link(holder, next_holder, narrower, **options))
        holder = next_holder
    return made


def attribute(name: str, kind: str = "string", *, optional: bool = False) -> TypeAttribute:
    """Return an attribute with a UUID of its own."""
    return TypeAttribute.model_validate(
        {"name": name, "id": str(uuid.uuid4()), "type": kind, "optional": optional}
    )
