from __future__ import annotations

import pytest

from penstock.gateway.connection.websocket import OriginRule

PLAIN = OriginRule((), encrypted=False)
TLS = OriginRule((), encrypted=True)


@pytest.mark.parametrize("rule", [PLAIN, TLS])
def test_what_is_no_page_is_let_pass(rule: OriginRule) -> None:
    assert rule.allows([], ["anything"])


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "10.1.2.3:8080", "[::1]", "[fe80::1]:81", "LOCALHOST:1"]
)
def test_a_page_of_this_address_may_connect(host: str) -> None:
    assert PLAIN.allows([f"http://{host}"], [host])
    assert TLS.allows([f"https://{host}"], [host])
    assert not PLAIN.allows([f"https://{host}"], [host])
    assert not TLS.allows([f"http://{host}"], [host])


@pytest.mark.parametrize("host", ["ward.example", "ward.example:8080", "127.0.0.1.example", "::1"])
def test_a_name_is_proof_with_a_certificate_only(host: str) -> None:
    assert TLS.allows([f"https://{host}"], [host])
    assert not PLAIN.allows([f"http://{host}"], [host])


def test_several_headers_prove_nothing() -> None:
    own = "http://127.0.0.1"
    assert not PLAIN.allows([own, own], ["127.0.0.1"])
    assert not PLAIN.allows([own], ["127.0.0.1", "127.0.0.1"])
    assert not PLAIN.allows([own], [])


def test_listed_origins_are_compared_as_a_whole() -> None:
    rule = OriginRule(["https://ward.example", "null"], encrypted=False)
    assert rule.allows(["https://Ward.Example"], ["gateway"])
    assert rule.allows(["null"], ["gateway"])
    for other in ("https://ward.example:444", "https://ward.example.evil", "http://ward.example"):
        assert not rule.allows([other], ["gateway"])
    assert OriginRule(["*"], encrypted=False).allows(["https://evil"], [])
