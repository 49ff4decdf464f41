"""Capabilities that clients show when they connect, and the proof that they have their keys.

    CONNECT: penstock-capability, penstock-proof ──▶ holds? ──▶ its key? ──▶ new? ──▶ counts
                                                                              │
                     all gateways of the domain: nonces in the store ◀────────┘

Rules that hold here:
- A capability whose last link names a key counts for who proves to have it: a signature over
  this domain, user, client identifier, capability, time and nonce.
- It counts beside what the user may do at home, for this connection, and for a day at most.
- No proof counts twice, at whichever gateway of the domain, whatever restarts: nonces are in the
  store until their time is over. What is from longer ago than `trust.skew` is refused by its time.
- Who logs in as nobody shows nothing. Clients of MQTT 3.1.1 have no user properties: a capability
  for them names their user, and their gateway vouches for who that is.
"""

from __future__ import annotations

from typing import Final

from penstock.gateway.authorization.credentials import MessageCredentials
from penstock.gateway.connection.authentication import RefusedError
from penstock.gateway.event_loop import Background
from penstock.gateway.session import Session
from penstock.mqtt import Connect, ReasonCode
from penstock.store.spent_nonces import SpentNonces
from penstock.trust import capabilities
from penstock.trust.credentials import POSSESSED, read_possession
from penstock.trust.keys import TrustError

CAPABILITY: Final = "penstock-capability"
PROOF: Final = "penstock-proof"


class PresentedCapabilities:
    """Checks what clients show."""

    def __init__(
        self,
        credentials: MessageCredentials,
        nonces: SpentNonces,
        background: Background,
        skew: int,
    ) -> None:
        """Take how far clocks may be apart, in milliseconds."""
        self._credentials = credentials
        self._nonces = nonces
        self._background = background
        self._skew = skew

    async def check(self, connect: Connect, session: Session, now: int) -> None:
        """Let what a client shows count for its connection; refuse it where it does not hold."""
        pairs = connect.properties.user
        shown = [value for name, value in pairs if name == CAPABILITY]
        proofs = [value for name, value in pairs if name == PROOF]
        if not shown and not proofs:
            return
        if len(shown) != 1 or len(proofs) != 1 or session.user is None:
            raise _refuse("show one capability with one proof, as a user that is known here")
        try:
            held = capabilities.read(shown[0])
            proof = read_possession(proofs[0], connect.client_id)
        except TrustError as error:
            raise _refuse(error.message) from None
        why = self._credentials.object_to(held)
        if why is not None:
            raise _refuse(f"the capability does not hold: {why}")
        if abs(proof.time - now) > self._skew:
            raise _refuse("the proof is not of now: clocks are too far apart, or it is an old one")
        if not proof.is_proof(held, self._credentials.domain, session.user):
            raise _refuse("the proof is not by the key of the capability, or for somebody else")
        until = proof.time + self._skew
        nonce = f"{held.links[-1].holder_key}{proof.nonce}"
        if not await self._background.run_in_thread(self._nonces.spend, nonce, now, until):
            raise _refuse("the proof was used before: make one for each connection")
        session.valid_until = min(session.valid_until, (proof.time + POSSESSED) / 1000)
        session.presented = f"{held.text}~{proof}"


def _refuse(message: str) -> RefusedError:
    return RefusedError(message, ReasonCode.NOT_AUTHORIZED, "capability")
