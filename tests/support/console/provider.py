"""A small identity provider, as a process of its own: codes with PKCE, signed ID tokens.

    provider.py PORT CLIENT SECRET

Whom it names is said by the query `user` of its authorization endpoint, as if that user had
signed in there; `flaw` makes it lie.
"""

from __future__ import annotations

import base64
import json
import secrets
import sys
import time
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ed25519

KEY = ed25519.Ed25519PrivateKey.generate()
OTHER = ed25519.Ed25519PrivateKey.generate()
CODES: dict[str, dict[str, str]] = {}


class Provider(BaseHTTPRequestHandler):
    """Answers what a client asks."""

    issuer = ""
    client = ""
    secret = ""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as it is called
        """Say nothing."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path == "/.well-known/openid-configuration":
            self.answer(
                {
                    "issuer": self.issuer,
                    "authorization_endpoint": f"{self.issuer}/authorize",
                    "token_endpoint": f"{self.issuer}/token",
                    "jwks_uri": f"{self.issuer}/keys",
                }
            )
        elif parts.path == "/keys":
            key = json.loads(jwt.algorithms.OKPAlgorithm.to_jwk(KEY.public_key()))
            self.answer({"keys": [{**key, "kid": "one", "use": "sig"}]})
        elif parts.path == "/authorize":
            code = secrets.token_urlsafe(16)
            CODES[code] = query
            back = urlencode({"code": code, "state": query["state"]})
            self.send_response(302)
            self.send_header("Location", f"{query['redirect_uri']}?{back}")
            self.end_headers()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = {name: values[0] for name, values in parse_qs(body).items()}
        asked = CODES.pop(form.get("code", ""), None)
        digest = sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        known = form.get("client_secret") == self.secret and form.get("client_id") == self.client
        if asked is None or asked["code_challenge"] != challenge or not known:
            self.send_error(400)
            return
        flaw = asked.get("flaw", "")
        claims = {
            "iss": "http://127.0.0.1:1" if flaw == "issuer" else self.issuer,
            "aud": "another" if flaw == "audience" else self.client,
            "exp": int(time.time()) + (-3600 if flaw == "end" else 300),
            "nonce": "another" if flaw == "nonce" else asked["nonce"],
            "preferred_username": asked.get("user", "officer"),
        }
        key = OTHER if flaw == "key" else KEY
        token = jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": "one"})
        self.answer({"id_token": token, "access_token": "x", "token_type": "Bearer"})

    def answer(self, data: dict[str, Any]) -> None:
        content = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


if __name__ == "__main__":
    port, Provider.client, Provider.secret = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    Provider.issuer = f"http://127.0.0.1:{port}"
    ThreadingHTTPServer(("127.0.0.1", port), Provider).serve_forever()
