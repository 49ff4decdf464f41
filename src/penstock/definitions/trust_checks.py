"""Checks of what other domains signed: event types, capabilities, lists of revocations.

Rules that hold here:
- What is not signed as it should be never becomes a definition. What was signed in time stays one:
  times are asked about when a document is registered (`admit`), and when a capability is used.
- A revocation list never takes the place of a newer one: nothing that was revoked comes back.
- Problems name keys by their short form, and never quote a capability.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from penstock.errors import PenstockError, Problem
from penstock.model import kinds
from penstock.model.definition import Definition
from penstock.model.document import Document, Key
from penstock.policy.capabilities import CapabilityBook, ForeignType, HeldCapability
from penstock.trust import capabilities
from penstock.trust.capabilities import Capability, RevocationList, Revocations
from penstock.trust.event_types import TypeRegistry, object_to_times
from penstock.trust.keys import TrustError

Found = Iterator[tuple[Key, Problem]]
ADMITTED: Final = frozenset({"event-type", "revocation-list"})
"""The kinds whose documents are looked at when they are registered."""


def check_event_types(
    touched: Iterable[kinds.EventType], definitions: Mapping[Key, Definition]
) -> Found:
    """Yield types that nobody may believe."""
    known = [it for it in definitions.values() if isinstance(it, kinds.EventType)]
    registry = TypeRegistry(known)
    for it in touched:
        reason = registry.object_to(it)
        if reason is not None:
            fix = "ask its issuer for the type as it was signed, and for those behind it"
            yield it.key, Problem("signature", f"the event type is not trusted: {reason}", fix)
    if len(registry) < len(known):
        yield from _find_twins(known)


def _find_twins(known: Iterable[kinds.EventType]) -> Found:
    seen: dict[tuple[str, str, str], str] = {}
    for it in sorted(known, key=lambda it: it.name):
        other = seen.setdefault((it.issuer, it.label, it.version), it.name)
        if other != it.name:
            what = f"it is the same version as the event-type {other!r}"
            yield it.key, Problem("version", what, "delete one of the two")


def check_capabilities(
    touched: Iterable[kinds.Capability], definitions: Mapping[Key, Definition]
) -> Found:
    """Yield capabilities whose chain is broken."""
    del definitions
    for it in touched:
        try:
            capabilities.read(it.token)
        except TrustError as error:
            fix = "copy the document as it was written, or ask for another"
            yield it.key, Problem("token", error.message, fix)


def check_revocation_lists(
    touched: Iterable[kinds.RevocationList], definitions: Mapping[Key, Definition]
) -> Found:
    """Yield lists that their key did not sign."""
    del definitions
    for it in touched:
        try:
            read_list(it)
        except TrustError as error:
            yield it.key, Problem("signature", error.message, "ask its signer for the list")


def read_list(definition: kinds.RevocationList) -> RevocationList:
    """Verify the signature of a list, and return it."""
    return capabilities.read_revocations(
        {
            "signer": definition.name,
            "issued": definition.issued,
            "revoked": list(definition.revoked),
            "signature": definition.signature,
        }
    )


def collect_revocations(documents: Mapping[Key, Document]) -> Revocations:
    """Return the lists that documents hold; one that is wrong counts for nothing."""
    found = Revocations()
    for key, it in documents.items():
        if key.kind == kinds.RevocationList.kind:
            try:
                found.take(read_list(kinds.RevocationList.model_validate(_fields(it))))
            except (ValueError, TrustError):
                continue
    return found


_read_known = lru_cache(maxsize=4096)(capabilities.read)


def compile_capabilities(definitions: Mapping[Key, Definition], home: str) -> CapabilityBook:
    """Return what users of this domain may do with the types of others; `home` is its key."""
    found = [definitions[key] for key in sorted(definitions)]
    types = {it.name: it for it in found if isinstance(it, kinds.EventType)}
    streams = [
        (it, ForeignType(types[it.event_type].issuer, types[it.event_type].label))
        for it in found
        if isinstance(it, kinds.Stream)
        and it.event_type is not None
        and types[it.event_type].issuer != home
    ]
    revocations = Revocations(read_list(it) for it in found if isinstance(it, kinds.RevocationList))
    held = [
        _hold(it.name, _read_known(it.token), revocations, home)
        for it in found
        if isinstance(it, kinds.Capability)
    ]
    return CapabilityBook(streams, (it for it in held if it is not None))


def _hold(
    name: str, found: Capability, revocations: Revocations, home: str
) -> HeldCapability | None:
    """Return a capability of a user of ours; None: it is of a domain, or of another's user."""
    kind, _, user = found.holder.partition(":")
    if kind != "user" or found.issuer != home:
        return None
    return HeldCapability(
        name,
        user,
        found.owner,
        found.grants,
        found.valid_from,
        found.holds_until(revocations),
        found.revoked(revocations),
        found.text,
    )


def admit(documents: Sequence[Document], held: Mapping[Key, Document], now: float) -> list[Problem]:
    """Return what speaks against registering documents now, beside what is held."""
    together = {**held, **{it.key: it for it in documents}}
    found = []
    for it in documents:
        before = held.get(it.key)
        if it.kind not in ADMITTED or (before is not None and before.body == it.body):
            continue
        try:
            reason = _object_to(it, before, together, now)
        except (ValueError, PenstockError):
            continue  # the check of the set says what is wrong with it
        if reason is not None:
            found.append(Problem(str(it.key), reason, "ask its signer for a new one"))
    return found


def _object_to(
    document: Document,
    before: Document | None,
    together: Mapping[Key, Document],
    now: float,
) -> str | None:
    if document.kind == kinds.EventType.kind:
        made = kinds.EventType.model_validate(_fields(document))
        return object_to_times(made, now, collect_revocations(together))
    if before is not None and document.body["issued"] < before.body["issued"]:
        return "a newer list of this key is known: what it revoked would come back"
    if document.body["issued"] > now + SKEW:
        return "the list is from the future: none could ever take its place"
    return None


SKEW: Final = 300
"""How many seconds the clocks of two domains may be apart."""


def _fields(document: Document) -> dict[str, Any]:
    return {"name": document.name, **document.body}
