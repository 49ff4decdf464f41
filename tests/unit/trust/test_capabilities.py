"""Capabilities: who may pass on what, and which tokens of the same library are none."""

from __future__ import annotations

import pytest
from biscuit_auth import Biscuit, BiscuitBuilder, BlockBuilder, KeyPair

from penstock.errors import UsageError
from penstock.trust import capabilities
from penstock.trust.capabilities import Revocations, delegate, read
from penstock.trust.keys import TrustError
from tests.support.trust.domains import NOW, chain, domain, link

PUBLISH = "type: sighting*; action: publish | subscribe"


def test_a_chain_tells_owner_holder_and_what_is_left() -> None:
    made = chain(
        "pito",
        ("met", PUBLISH),
        ("user:smith", "type: sighting; action: subscribe; attributes: numberplate = 'AB12'"),
    )
    found = read(made.text)
    assert found.owner == domain("pito").key
    assert found.issuer == domain("met").key
    assert found.holder == "user:smith"
    assert [it.holder_key for it in found.links] == [domain("met").key, None]
    assert str(found.grants[0]).endswith("attributes: numberplate = 'AB12'")
    assert found.object_to(NOW, Revocations()) is None


def test_nobody_passes_on_what_they_do_not_hold() -> None:
    held = chain("pito", ("met", PUBLISH))
    with pytest.raises(TrustError, match="more than the capability grants"):
        delegate(held, domain("met"), link("met", "ccs", "type: *; action: publish"))
    with pytest.raises(TrustError, match="is held by the key"):
        delegate(held, domain("ccs"), link("ccs", "user:eve", PUBLISH))


def test_a_user_passes_nothing_on() -> None:
    held = chain("pito", ("user:smith", PUBLISH))
    with pytest.raises(TrustError, match="a user passes nothing on"):
        delegate(held, domain("met"), link("met", "user:jones", PUBLISH))


def test_a_chain_has_an_end() -> None:
    made = chain("pito", *[("met", PUBLISH)] * 1)
    signer = "met"
    for at in range(capabilities.LINK_LIMIT - 1):
        made = delegate(made, domain(signer), link(signer, f"domain-{at}", PUBLISH))
        signer = f"domain-{at}"
    with pytest.raises(TrustError, match="at most 8 links"):
        delegate(made, domain(signer), link(signer, "user:smith", PUBLISH))


def biscuit(source: str, *blocks: tuple[str, KeyPair | None]) -> str:
    """Return a token of the library as capabilities are written, whatever it says."""
    owner = domain("pito")
    token = BiscuitBuilder(source).build(capabilities._private(owner))
    for text, signer in blocks:
        if signer is None:
            token = token.append(BlockBuilder(text))
        else:
            made = token.third_party_request().create_block(signer.private_key, BlockBuilder(text))
            token = token.append_third_party(signer.public_key, made)
    assert isinstance(token, Biscuit)
    return capabilities._pack(owner.key, token)


def block(signer: str, holder: str, *texts: str) -> str:
    return capabilities._write_block(link(signer, holder, *texts))


FIRST = block("pito", "met", PUBLISH)


def test_what_the_library_makes_of_our_own_text_is_read() -> None:
    assert len(read(biscuit(FIRST)).links) == 1


@pytest.mark.parametrize(
    "source",
    [
        "",
        'right("everything");',
        FIRST + 'grant("type: *; action: *") <- valid($a, $b);',
        FIRST.replace("check if", "check all"),
        FIRST.replace("holder", "owner"),
        FIRST.replace("action: publish | subscribe", "action: subscribe | publish"),
        "".join(reversed(FIRST.splitlines(keepends=True))),
    ],
)
def test_an_authority_block_that_says_anything_else_is_refused(source: str) -> None:
    with pytest.raises(TrustError):
        read(biscuit(source))


def test_a_block_that_nobody_signed_is_refused_even_if_it_only_narrows() -> None:
    # Whoever carries a Biscuit can append one.
    for text in (block("met", "ccs", PUBLISH), "check if false;"):
        with pytest.raises(TrustError, match="not signed by who held it"):
            read(biscuit(FIRST, (text, None)))


def test_a_block_of_somebody_else_than_the_holder_is_refused() -> None:
    with pytest.raises(TrustError, match="not signed by who held it"):
        read(biscuit(FIRST, (block("met", "ccs", PUBLISH), KeyPair())))


def test_a_block_that_grants_more_is_refused_although_the_holder_signed_it() -> None:
    met = KeyPair.from_private_key(capabilities._private(domain("met")))
    with pytest.raises(TrustError, match="grants more than was held"):
        read(biscuit(FIRST, (block("met", "ccs", "type: *; action: publish"), met)))


def test_a_capability_of_one_owner_is_none_of_another() -> None:
    text = chain("pito", ("met", PUBLISH)).text
    mark, owner, rest = text.split(":")
    assert owner == domain("pito").key
    with pytest.raises(TrustError, match="not signed as it should be"):
        read(f"{mark}:{domain('met').key}:{rest}")


@pytest.mark.parametrize(
    ("holder", "refresh", "start", "until"),
    [
        ("group:all", 0, NOW, NOW + 1),
        ("user:", 0, NOW, NOW + 1),
        ('user:a", "b', 0, NOW, NOW + 1),
        ("key:00", 0, NOW, NOW + 1),
        ("user:a", -1, NOW, NOW + 1),
        ("user:a", 0, NOW, NOW),
    ],
)
def test_what_cannot_be_written_is_refused(
    holder: str, refresh: int, start: int, until: int
) -> None:
    wrong = capabilities.Link(
        domain("pito").key, holder, link("pito", "met", PUBLISH).grants, start, until, refresh
    )
    with pytest.raises(UsageError):
        capabilities.issue(domain("pito"), wrong)
