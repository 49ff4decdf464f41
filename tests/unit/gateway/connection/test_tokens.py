from __future__ import annotations

import asyncio
import base64
import hmac
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from pydantic import ValidationError

from penstock.config.gateway import TokenSettings
from penstock.errors import UnavailableError
from penstock.gateway.connection import tokens
from penstock.gateway.connection.tokens import TOKEN_LIMIT, TokenProof, TokenVerifier
from penstock.telemetry import configure
from tests.support.gateway.tokens import TokenIssuer

ISSUER, AUDIENCE = "https://login.example", "penstock"


def settings(path: Path, **others: Any) -> TokenSettings:
    return TokenSettings(keys=path, issuer=ISSUER, audience=AUDIENCE, leeway=0, **others)


@pytest.fixture
def issuer(tmp_path: Path) -> TokenIssuer:
    return TokenIssuer(tmp_path / "keys.json", issuer=ISSUER, audience=AUDIENCE)


def verify(verifier: TokenVerifier, token: str | bytes) -> TokenProof | None:
    data = token.encode() if isinstance(token, str) else token
    return asyncio.run(verifier.verify(data))


def _encode(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def test_a_token_names_its_user_until_its_end(issuer: TokenIssuer) -> None:
    end = int(time.time()) + 60
    found = verify(TokenVerifier(settings(issuer.path)), issuer.issue("alice", exp=end))
    assert found == TokenProof("alice", end)


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": 1},
        {"exp": None},
        {"exp": 10**400},
        {"exp": float("inf")},
        {"iss": "https://other.example"},
        {"iss": None},
        {"aud": "other"},
        {"aud": None},
        {"sub": None},
        {"sub": 7},
        {"nbf": 1 << 40},
    ],
)
def test_claims_that_do_not_count(issuer: TokenIssuer, claims: dict[str, Any]) -> None:
    assert verify(TokenVerifier(settings(issuer.path)), issuer.issue("alice", **claims)) is None


def test_no_byte_of_a_token_can_be_changed(issuer: TokenIssuer) -> None:
    verifier = TokenVerifier(settings(issuer.path))
    token = issuer.issue("alice").encode()
    for place in range(len(token)):
        for other in b"A.=\xff":
            changed = token[:place] + bytes((other,)) + token[place + 1 :]
            if changed != token:
                found = verify(verifier, changed)
                # The last character of base64 has bits that stand for nothing.
                assert found is None or changed[:-1] == token[:-1] or changed[place] == token[place]


def test_a_public_key_is_no_secret_and_none_is_no_algorithm(issuer: TokenIssuer) -> None:
    verifier = TokenVerifier(settings(issuer.path, algorithms=("RS256", "ES256", "EdDSA")))
    claims = issuer.claims("alice")
    public = issuer.key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head = {"alg": "HS256", "typ": "JWT", "kid": "first"}
    said = b".".join(_encode(json.dumps(it).encode()) for it in (head, claims))
    forged = said + b"." + _encode(hmac.digest(public, said, "sha256"))
    assert verify(verifier, forged) is None
    unsigned = jwt.encode(claims, "", algorithm="none", headers={"kid": "first"})
    assert verify(verifier, unsigned) is None
    stranger = ec.generate_private_key(ec.SECP256R1())
    assert verify(verifier, jwt.encode(claims, stranger, "ES256", headers={"kid": "first"})) is None


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (ec.generate_private_key(ec.SECP256R1()), "ES256"),
        (ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
        (rsa.generate_private_key(65537, 2048), "RS256"),
    ],
)
def test_keys_of_every_kind(tmp_path: Path, key: Any, algorithm: str) -> None:
    issuer = TokenIssuer(tmp_path / "keys.json", key, algorithm, issuer=ISSUER, audience=AUDIENCE)
    allowed = TokenVerifier(settings(issuer.path, algorithms=(algorithm,)))
    assert verify(allowed, issuer.issue("alice")) is not None
    others = tuple(it for it in ("ES256", "EdDSA", "RS256") if it != algorithm)
    assert (
        verify(TokenVerifier(settings(issuer.path, algorithms=others)), issuer.issue("a")) is None
    )


def test_a_changed_file_counts_at_once_and_a_lost_one_opens_nothing(issuer: TokenIssuer) -> None:
    verifier = TokenVerifier(settings(issuer.path))
    old = issuer.issue("alice")
    assert verify(verifier, old)
    issuer.rotate("second")
    assert verify(verifier, old) is None
    assert verify(verifier, issuer.issue("alice"))
    issuer.path.unlink()
    with pytest.raises(UnavailableError, match=r"keys\.json"):
        verify(verifier, issuer.issue("alice"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a JWK Set"),
        ("[]", "not a JWK Set"),
        ('{"keys": [{"kty": "oct", "k": "AAAA"}]}', "no key for signatures"),
        ('{"keys": [{"kty": "EC"}]}', "no key for signatures"),
        ('{"keys": [' + '{"kty": "oct"},' * 200_000 + "{}]}", "1 MiB"),
    ],
)
def test_what_is_no_key_set_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(UnavailableError, match=said):
        asyncio.run(TokenVerifier(settings(path)).load())


def test_a_private_key_is_never_taken(issuer: TokenIssuer) -> None:
    private = jwt.algorithms.ECAlgorithm.to_jwk(issuer.key, as_dict=True)
    issuer.path.write_text(json.dumps({"keys": [private]}))
    with pytest.raises(UnavailableError, match="private key"):
        asyncio.run(TokenVerifier(settings(issuer.path)).load())


def test_a_token_that_is_too_long_is_not_looked_at(issuer: TokenIssuer) -> None:
    token = issuer.issue("alice", padding="x" * TOKEN_LIMIT)
    assert verify(TokenVerifier(settings(issuer.path)), token) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": "http://login.example/keys"}, "url"),
        ({"url": "https://login.example/keys", "issuer": None}, "issuer"),
        ({"url": "https://login.example/keys", "audience": None}, "audience"),
        ({"url": "https://login.example/keys", "keys": "a.json"}, "url"),
        ({"url": "ftp://login.example"}, "url"),
        ({"url": "https://login.example/keys", "algorithms": ["HS256"]}, "algorithms"),
        ({"url": "https://login.example/keys", "algorithms": ["none"]}, "algorithms"),
    ],
)
def test_settings_that_would_let_anybody_in(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as raised:
        TokenSettings(**({"issuer": ISSUER, "audience": AUDIENCE} | given))
    assert said in str(raised.value.errors())


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n{}",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
    ],
)
def test_no_answer_of_a_server_ends_the_fetching_of_keys(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/keys"
        fetched = TokenSettings(url=url, issuer=ISSUER, audience=AUDIENCE)
        with pytest.raises(UnavailableError):
            asyncio.run(TokenVerifier(fetched).load())


def test_keys_of_curves_that_are_not_known_are_passed_over(issuer: TokenIssuer) -> None:
    listed = json.loads(issuer.published)["keys"]
    strange = [{"kty": "EC", "crv": "P-999", "x": "AA", "y": "AA", "kid": "strange"}]
    issuer.path.write_text(json.dumps({"keys": strange + listed}))
    verifier = TokenVerifier(settings(issuer.path))
    assert verify(verifier, issuer.issue("alice"))
    issuer.path.write_text(json.dumps({"keys": strange}))
    with pytest.raises(UnavailableError):
        verify(verifier, issuer.issue("alice"))


def test_a_flood_of_tokens_does_not_flood_the_log(
    issuer: TokenIssuer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(tokens, "boot_clock", lambda: now)
    configure(level="info", style="json")
    verifier, token = TokenVerifier(settings(issuer.path)), issuer.issue("alice", aud="other")
    assert not any(verify(verifier, token) for _ in range(100))
    now = 2.0
    verify(verifier, token)
    lines = [json.loads(it) for it in capsys.readouterr().err.splitlines()]
    assert [(it["kind"], it["count"]) for it in lines] == [
        ("InvalidAudienceError", 1),
        ("InvalidAudienceError", 100),
    ]
