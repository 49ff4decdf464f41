"""What the manager of a key group sends to its members, as signed bytes.

    signature (64 bytes) | JSON

Rules that hold here:
- Nothing is taken before the signature of the group's manager was verified: anybody could seal
  a welcome to a member's public key, and so choose the key that the member seals with.
- Broker and outsiders may read these bytes: they tell who is in the group and when keys change,
  and no key.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any, Final
from uuid import UUID

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from penstock.trust.key_groups import KeyGroupError, Refresh, Welcome
from penstock.trust.key_tree import Node, Rekey, WrappedKey

SIGNATURE_BYTES: Final = 64
MAX_BYTES: Final = 64 << 20
"""Of one message: a first refresh of some hundred thousand members."""
_CONTEXT: Final = b"penstock key message"


def sign_message(message: Welcome | Refresh, manager: Ed25519PrivateKey) -> bytes:
    """Return a message of the manager as signed bytes."""
    shape = _shape_welcome(message) if isinstance(message, Welcome) else _shape_refresh(message)
    body = json.dumps(shape, separators=(",", ":")).encode()
    return manager.sign(_CONTEXT + body) + body


def read_message(data: bytes, manager: Ed25519PublicKey) -> Welcome | Refresh:
    """Verify and read a message of the manager."""
    if len(data) > MAX_BYTES:
        message = f"a message of {len(data)} bytes, where a key group's have {MAX_BYTES} at most"
        raise KeyGroupError(message)
    signature, body = data[:SIGNATURE_BYTES], data[SIGNATURE_BYTES:]
    try:
        manager.verify(signature, _CONTEXT + body)
    except InvalidSignature:
        text = "a message to a key group is not signed by the group's manager"
        raise KeyGroupError(text, fix="ask its owner which key is the manager's") from None
    shape = json.loads(body)
    return _read_refresh(shape) if "rekey" in shape else _read_welcome(shape)


def _shape_welcome(welcome: Welcome) -> dict[str, Any]:
    return {
        "group": str(welcome.group),
        "member": welcome.member,
        "generation": welcome.generation,
        "sealed": b64encode(welcome.sealed).decode(),
    }


def _read_welcome(shape: dict[str, Any]) -> Welcome:
    sealed = b64decode(shape["sealed"])
    return Welcome(UUID(shape["group"]), shape["member"], shape["generation"], sealed)


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
        WrappedKey(Node(height, place), Node(below, child), b64decode(sealed))
        for height, place, below, child, sealed in rekey["keys"]
    )
    welcomes = tuple(map(_read_welcome, shape["welcomes"]))
    tree = Rekey(group.bytes, rekey["revision"], rekey["height"], keys)
    return Refresh(group, shape["generation"], shape["start"], tree, welcomes)
