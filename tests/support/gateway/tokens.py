"""An issuer of JSON Web Tokens, with its keys in a file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec


class TokenIssuer:
    """Signs tokens, and publishes the keys that they are checked with."""

    def __init__(
        self,
        path: Path,
        key: Any = None,
        algorithm: str = "ES256",
        *,
        issuer: str = "https://login.example",
        audience: str = "penstock",
    ) -> None:
        self.path = path
        self.key = key or ec.generate_private_key(ec.SECP256R1())
        self._algorithm = algorithm
        self._issuer = issuer
        self._audience = audience
        self._kid = "first"
        self._publish()

    @property
    def published(self) -> bytes:
        """The JWK Set."""
        known = jwt.algorithms.get_default_algorithms()[self._algorithm]
        public: dict[str, Any] = known.to_jwk(self.key.public_key(), as_dict=True)
        return json.dumps({"keys": [{**public, "kid": self._kid, "use": "sig"}]}).encode()

    def rotate(self, kid: str) -> None:
        """Sign with another key from now on."""
        self.key = ec.generate_private_key(ec.SECP256R1())
        self._algorithm = "ES256"
        self._kid = kid
        self._publish()

    def claims(self, user: str, **others: Any) -> dict[str, Any]:
        """Return what a token says; None leaves a claim out."""
        claims = {
            "sub": user,
            "iss": self._issuer,
            "aud": self._audience,
            "exp": int(time.time()) + 600,
            **others,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def issue(self, user: str, **others: Any) -> str:
        """Sign a token."""
        return jwt.PyJWT().encode(
            self.claims(user, **others),
            self.key,
            algorithm=self._algorithm,
            headers={"kid": self._kid},
        )

    def _publish(self) -> None:
        written = self.path.with_suffix(".new")
        written.write_bytes(self.published)
        written.replace(self.path)
