"""What members of key groups and their managers send each other, signed by their domains.

    member ──request: capability, public key──▶ manager
    member ◀──welcomes and refreshes, in order── manager

Rules that hold here:
- Nothing is taken before the signature of the domain that it must come from was verified: anybody
  could seal a welcome to a member's public key, and so choose the key that the member seals with.
- Broker and outsiders may read these documents: they tell who is in which group and when keys
  change, and no key.
- Who may have which key follows from the capability in the request, and from nothing else.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from penstock.errors import quote
from penstock.trust.key_groups import KeyGroupError, Refresh, Welcome
from penstock.trust.key_tree import Node, Rekey, WrappedKey
from penstock.trust.keys import DomainKey, verify

_REQUEST: Final = b"penstock key request v1"
_MESSAGES: Final = b"penstock key messages v1"
_MISSHAPEN: Final = (TypeError, ValueError, KeyError, AttributeError)
_MOST: Final = (1 << 31) - 1
_LATEST: Final = 1 << 53
_PROBE: Final = X25519PrivateKey.from_private_bytes(b"penstock asks whether it's a key")


class KeyRequest(NamedTuple):
    """What somebody asks who wants keys of a type."""

    member: str
    """The key of the domain that asks."""
    event_type: str
    """The id of the type."""
    token: str
    """Its capability."""
    public_key: bytes
    """What welcomes are sealed to (X25519)."""
    asked: int
    """When it asks, in milliseconds since 1970."""


def sign_request(request: KeyRequest, domain: DomainKey) -> bytes:
    """Return a request as a signed document."""
    return _sign(_REQUEST, {**request._asdict(), "public_key": request.public_key.hex()}, domain)


def read_request(document: bytes) -> KeyRequest:
    """Verify and read a request: it is signed by the domain that it names as member."""
    shape = _read(document)
    statement = shape.get("statement")
    member = statement.get("member") if isinstance(statement, dict) else None
    _verify(_REQUEST, shape, str(member))
    try:
        given = dict(shape["statement"])
        asked = _read_number(given.pop("asked"), _LATEST)
        if not all(type(it) is str for it in given.values()):
            raise _not_understood()
        public_key = bytes.fromhex(given["public_key"])
        # A point of low order would give everybody the same secret: nothing is sealed to it.
        _PROBE.exchange(X25519PublicKey.from_public_bytes(public_key))
        return KeyRequest(**{**given, "public_key": public_key, "asked": asked})
    except _MISSHAPEN:
        raise _not_understood() from None


def sign_messages(messages: Iterable[Welcome | Refresh], manager: DomainKey) -> bytes:
    """Return messages of a manager, in their order, as a signed document."""
    return sign_shapes(map(to_shape, messages), manager)


def to_shape(message: Welcome | Refresh) -> dict[str, Any]:
    """Return a message as plain data, as it is sent and kept."""
    return _shape_welcome(message) if isinstance(message, Welcome) else _shape_refresh(message)


def sign_shapes(shapes: Iterable[dict[str, Any]], manager: DomainKey) -> bytes:
    """Return messages that were kept as plain data as a signed document."""
    return _sign(_MESSAGES, {"messages": [*shapes]}, manager)


def read_messages(document: bytes, manager: str) -> list[Welcome | Refresh]:
    """Verify and read what a manager of this key sent."""
    shape = _read(document)
    _verify(_MESSAGES, shape, manager)
    try:
        return [
            _read_refresh(it) if "rekey" in it else _read_welcome(it)
            for it in shape["statement"]["messages"]
        ]
    except _MISSHAPEN:
        raise _not_understood() from None


def signer_of(document: bytes) -> str:
    """Return who a document says has signed it; whether that is so is not asked."""
    return str(_read(document).get("signer"))


def _sign(purpose: bytes, statement: dict[str, Any], domain: DomainKey) -> bytes:
    signature = domain.sign(purpose, statement)
    shape = {"signer": domain.key, "statement": statement, "signature": signature}
    return json.dumps(shape, indent=1).encode()


def _read(document: bytes) -> dict[str, Any]:
    try:
        shape = json.loads(document)
    except (ValueError, RecursionError):
        raise _not_understood() from None
    if not isinstance(shape, dict):
        raise _not_understood()
    return shape


def _verify(purpose: bytes, shape: dict[str, Any], signer: str) -> None:
    statement, signature = shape.get("statement"), shape.get("signature")
    is_signed = isinstance(statement, dict) and isinstance(signature, str)
    if not is_signed or not verify(signer, purpose, statement or {}, str(signature)):
        message = f"it is not signed by {quote(signer)}, or was changed since"
        raise KeyGroupError(message, fix="ask for it again")


def _not_understood() -> KeyGroupError:
    return KeyGroupError("it is not a document of a key group", fix="`penstock keys` writes them")


def _shape_welcome(welcome: Welcome) -> dict[str, Any]:
    return {
        "group": str(welcome.group),
        "member": welcome.member,
        "generation": welcome.generation,
        "sealed": b64encode(welcome.sealed).decode(),
    }


def _read_welcome(shape: dict[str, Any]) -> Welcome:
    sealed = b64decode(shape["sealed"])
    generation = _read_number(shape["generation"])
    return Welcome(UUID(shape["group"]), str(shape["member"]), generation, sealed)


def _shape_refresh(refresh: Refresh) -> dict[str, Any]:
    rekey = refresh.rekey
    return {
        "group": str(refresh.group),
        "generation": refresh.generation,
        "start": refresh.start,
        "rekey": {
            "revision": rekey.revision,
            "height": rekey.height,
            "keys": [[*it.node, *it.child, b64encode(it.sealed).decode()] for it in rekey.keys],
        },
        "welcomes": [_shape_welcome(it) for it in refresh.welcomes],
    }


def _read_refresh(shape: dict[str, Any]) -> Refresh:
    group, rekey = UUID(shape["group"]), shape["rekey"]
    keys = tuple(
        WrappedKey(
            Node(_read_number(height), _read_number(place)),
            Node(_read_number(below), _read_number(child)),
            b64decode(sealed),
        )
        for height, place, below, child, sealed in rekey["keys"]
    )
    welcomes = tuple(map(_read_welcome, shape["welcomes"]))
    revision, height = _read_number(rekey["revision"]), _read_number(rekey["height"])
    tree = Rekey(group.bytes, revision, height, keys)
    start = _read_number(shape["start"], _LATEST)
    return Refresh(group, _read_number(shape["generation"]), start, tree, welcomes)


def _read_number(value: Any, most: int = _MOST) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise _not_understood()
    return value
