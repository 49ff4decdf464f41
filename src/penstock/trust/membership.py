"""Which domains are in a network: each shows that it may be, and hears that others agree.

    A: "I am A, here is what lets me connect; heard: nobody; nonce a1"  ──▶ all
    B: "I am B, …; heard: A with a1; nonce b1"                          ──▶ A knows that B is there
    A: "I am A, …; heard: B with b1; nonce a2"                          ──▶ B knows that A is there

Rules that hold here:
- A gateway announces itself with its domain's key, and with a capability that begins with the key
  of the network's coordinator: proof that it holds the key, for this network, at this time.
- It names the newest nonce of each gateway that it believes. Who hears an own, recent nonce back
  knows that the other one is there now, and believes this one: both have checked. No copy of an
  old announcement has a nonce of now in it.
- Clocks may differ by `skew`. An announcement that is older than another of its gateway, or older
  than `patience`, counts for nothing: who falls silent is out.
- Whose capability ends or is revoked is out at once, whoever vouches for it.
- So many gateways of one domain are known, and so many in all: nobody fills the memory of others.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.json_text import read_object
from penstock.model.grants import CONNECT, INSTALL
from penstock.trust import capabilities
from penstock.trust.capabilities import Capability, Revocations
from penstock.trust.keys import KEY, SIGNATURE, DomainKey, TrustError, canonical, verify

SIZE_LIMIT: Final = 65_536
GATEWAY_LIMIT: Final = 64
"""Gateways of one domain."""
MEMBER_LIMIT: Final = 512
NONCES: Final = 8
"""How many of the own nonces count as recent."""
_ANNOUNCEMENT: Final = b"penstock announcement v1"
_NONCE: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_NAME: Final = re.compile(r"[0-9a-f]{64}/[0-9a-f]{16}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a gateway says of itself: signed by its domain's key."""

    network: str
    key: str
    gateway: str
    """Tells the gateways of a domain apart: 16 hexadecimal digits."""
    capability: str
    """What lets its domain connect; empty for the coordinator."""
    published: int
    """Milliseconds since 1970."""
    nonce: str
    heard: tuple[tuple[str, str], ...]
    """The newest nonce of each gateway that it believes, by name."""

    @property
    def name(self) -> str:
        """What names the gateway in the network."""
        return f"{self.key}/{self.gateway}"

    def statement(self) -> dict[str, Any]:
        """Return what the signature is over."""
        return {
            "network": self.network,
            "key": self.key,
            "gateway": self.gateway,
            "capability": self.capability,
            "published": self.published,
            "nonce": self.nonce,
            "heard": dict(self.heard),
        }

    def sign(self, key: DomainKey) -> bytes:
        """Return it as the bytes that are published."""
        statement = self.statement()
        return canonical({**statement, "signature": key.sign(_ANNOUNCEMENT, statement)})


def read_announcement(payload: bytes) -> Announcement:
    """Read an announcement, and verify its signature."""
    found = (read_object(payload) if len(payload) <= SIZE_LIMIT else None) or {}
    match found:
        case {
            "network": str(network),
            "key": str(key),
            "gateway": str(gateway),
            "capability": str(capability),
            "published": int(published),
            "nonce": str(nonce),
            "heard": dict(heard),
            "signature": str(signature),
            **rest,
        } if (
            not rest
            and not isinstance(published, bool)
            and KEY.fullmatch(key)
            and _NAME.fullmatch(f"{key}/{gateway}")
            and _NONCE.fullmatch(nonce)
            and SIGNATURE.fullmatch(signature)
            and len(heard) <= MEMBER_LIMIT
            and _are_nonces(heard)
        ):
            made = Announcement(
                network, key, gateway, capability, published, nonce, tuple(sorted(heard.items()))
            )
            if canonical(found) == payload and verify(
                key, _ANNOUNCEMENT, made.statement(), signature
            ):
                return made
    raise TrustError("the announcement is not signed as it should be, or was changed")


def _are_nonces(heard: Mapping[Any, Any]) -> bool:
    return all(
        _NAME.fullmatch(name) and isinstance(nonce, str) and _NONCE.fullmatch(nonce)
        for name, nonce in heard.items()
    )


@dataclass(slots=True)
class _Known:
    """A gateway of another domain that was heard of."""

    said: Announcement
    capability: Capability | None
    confirmed: int | None = None
    """When it last named a recent nonce of ours, by its own clock; None: it never did."""


class Members:
    """The gateways of other domains in a network, as one gateway knows them."""

    def __init__(
        self, network: str, coordinator: str, own: str, *, skew: int, patience: int
    ) -> None:
        self.network = network
        self._coordinator = coordinator
        self._own = own
        self._skew = skew
        self._patience = patience
        self._known: dict[str, _Known] = {}
        self._nonces: deque[str] = deque(maxlen=NONCES)

    def announce(
        self,
        key: DomainKey,
        gateway: str,
        capability: str,
        now: int,
        nonce: str,
        revocations: Revocations,
    ) -> bytes:
        """Return the next announcement of this gateway; the nonce is a new one."""
        self._nonces.append(nonce)
        heard = tuple(
            (name, it.said.nonce)
            for name, it in sorted(self._known.items())
            if self._object_to(it, now, revocations) is None
        )
        said = Announcement(self.network, key.key, gateway, capability, now, nonce, heard)
        return said.sign(key)

    def hear(self, payload: bytes, now: int, revocations: Revocations) -> str:
        """Take note of what a gateway says of itself; return its name, or raise why not."""
        said = read_announcement(payload)
        if said.network != self.network:
            raise TrustError("the announcement is for another network")
        if said.published > now + self._skew:
            raise TrustError("the announcement is from the future: clocks are too far apart")
        before = self._known.get(said.name)
        if before is not None and before.said.published > said.published:
            raise TrustError("the announcement is older than another of its gateway")
        held = None
        if said.key != self._coordinator:
            same = before is not None and before.said.capability == said.capability
            held = before.capability if before and same else capabilities.read(said.capability)
        known = _Known(said, held, before.confirmed if before is not None else None)
        reason = self._object_to(known, now, revocations)
        if reason is not None:
            self._known.pop(said.name, None)
            raise TrustError(reason)
        if before is None:
            self._make_room(said.key, now, revocations)
        if dict(said.heard).get(self._own) in self._nonces:
            known.confirmed = said.published
        self._known[said.name] = known
        return said.name

    def leave(self, name: str) -> None:
        """Forget a gateway that has gone."""
        self._known.pop(name, None)

    def current(self, now: int, revocations: Revocations) -> frozenset[str]:
        """Return the gateways, by name, that are members now: both sides have checked."""
        return frozenset(
            name
            for name, it in self._known.items()
            if it.confirmed is not None
            and it.confirmed > now - self._patience
            and self._object_to(it, now, revocations) is None
        )

    def domains(self, now: int, revocations: Revocations) -> frozenset[str]:
        """Return the keys of the domains that are members now."""
        return frozenset(it.partition("/")[0] for it in self.current(now, revocations))

    def may_install(self, key: str) -> bool:
        """Tell whether a member domain may introduce types in the network."""
        if key == self._coordinator:
            return True
        return any(
            grant.allows("network", self.network, INSTALL)
            for it in self._known.values()
            if it.said.key == key and it.capability is not None
            for grant in it.capability.grants
        )

    def _object_to(self, known: _Known, now: int, revocations: Revocations) -> str | None:
        """Say why a gateway is not believed at a time; None where it is."""
        said, held = known.said, known.capability
        if said.published <= now - self._patience:
            return "the announcement is too old"
        if said.key == self._coordinator:
            return None
        if held is None:
            return "it shows no capability"
        return object_to_connection(held, said.key, self.network, self._coordinator) or (
            held.object_to(now / 1000, revocations)
        )

    def _make_room(self, key: str, now: int, revocations: Revocations) -> None:
        if len(self._known) >= MEMBER_LIMIT:
            for name in [
                name
                for name, it in self._known.items()
                if self._object_to(it, now, revocations) is not None
            ]:
                del self._known[name]
        own = sum(it.said.key == key for it in self._known.values())
        if own >= GATEWAY_LIMIT or len(self._known) >= MEMBER_LIMIT:
            raise TrustError("too many gateways are known, of this domain or in all")


def object_to_connection(held: Capability, key: str, network: str, coordinator: str) -> str | None:
    """Say why a capability does not let a domain connect to a network; None where it does."""
    if held.owner != coordinator:
        return "its capability is not of the network's coordinator"
    if held.links[-1].holder_key != key:
        return "its capability is held by somebody else"
    if not any(it.allows("network", network, CONNECT) for it in held.grants):
        return "its capability does not let it connect to this network"
    return None


def write_document(kind: str, name: str, body: Mapping[str, Any]) -> bytes:
    """Return a definition that proves itself, as it is published to other domains."""
    return json.dumps({"kind": kind, "name": name, "body": body}, separators=(",", ":")).encode()
