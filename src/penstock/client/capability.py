"""Shows a capability to a gateway, and proves that this client has its key.

    camera = ShownCapability(Path("camera.key").read_bytes(), token, domain=GATEWAYS_KEY)
    camera.key                            # for `penstock cert issue … --to key:HEX`
    camera.follow(paho_client, user="camera-7")               # a new proof for each connection
    paho_client.connect("gateway", 8883, properties=camera.properties)
    aiomqtt.Client("gateway", identifier="c7", username="camera-7",
                   properties=camera.prove(user="camera-7", client="c7"))

Rules that hold here:
- The key never leaves this object; what is shown is a signature over the gateway's domain, user,
  client identifier, capability, time and nonce. A proof is good once, for about a minute.
- Clients that connect again by themselves, as Paho's do, need a new proof each time: `follow`.
- MQTT 5 alone: MQTT 3.1.1 has no user properties. A capability of such a client names its user.
- It needs the library `cryptography`, which is loaded when it is used.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

from paho.mqtt.client import Client
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

CAPABILITY: Final = "penstock-capability"
PROOF: Final = "penstock-proof"
_PURPOSE: Final = b"penstock proof of possession v1"


class ShownCapability:
    """A capability, and the private key that its last link names."""

    def __init__(
        self,
        pem: bytes,
        capability: str,
        *,
        domain: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take the key in PEM form, the capability's text, and the key of the gateway's domain."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
            Ed25519PrivateKey,
        )
        from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
            load_pem_private_key,
        )

        private = load_pem_private_key(pem, password=None)
        if not isinstance(private, Ed25519PrivateKey):
            raise ValueError(  # noqa: TRY004 - a file of another kind, not a wrong argument
                "the key is no Ed25519 key → openssl genpkey -algorithm ed25519 makes one"
            )
        self._private = private
        self._capability = capability
        self._domain = domain
        self._clock = clock
        self.key = private.public_key().public_bytes_raw().hex()
        """The public key: what a capability is issued to."""
        self.properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        """The properties of a client that is followed: give them to its `connect`."""

    def __repr__(self) -> str:
        return f"ShownCapability({self.key[:16]}…)"

    def pairs(self, *, user: str, client: str) -> list[tuple[str, str]]:
        """Return the user properties of one CONNECT."""
        now, nonce = int(1000 * self._clock()), secrets.token_hex(16)
        statement = {
            "domain": self._domain,
            "user": user,
            "client": client,
            "capability": sha256(self._capability.encode()).hexdigest(),
            "time": now,
            "nonce": nonce,
        }
        text = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        framed = b"penstock trust %d " % len(_PURPOSE) + _PURPOSE + text.encode()
        named = base64.urlsafe_b64encode(client.encode()).decode().rstrip("=")
        signature = self._private.sign(framed).hex()
        return [(CAPABILITY, self._capability), (PROOF, f"{now}.{nonce}.{signature}.{named}")]

    def prove(self, *, user: str, client: str) -> Properties:
        """Return the properties of one CONNECT, as Paho and aiomqtt take them."""
        made = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        made.UserProperty = self.pairs(user=user, client=client)
        return made

    def follow(self, client: Client, *, user: str) -> None:
        """Make a new proof whenever a Paho client connects; it keeps its own callback."""
        before = client.on_pre_connect
        identifier = client._client_id.decode()  # noqa: SLF001 - Paho tells it nowhere else

        def prove_anew(found: Client, userdata: Any) -> None:
            kept = [
                it
                for it in getattr(self.properties, "UserProperty", [])
                if it[0] not in {CAPABILITY, PROOF}
            ]
            self.properties.__dict__["UserProperty"] = [
                *kept,
                *self.pairs(user=user, client=identifier),
            ]
            if before is not None:
                before(found, userdata)

        client.on_pre_connect = prove_anew
