"""Trust between domains that share a broker which none of them trusts.

    owner ──signs──▶ event type                    owner ──grants──▶ manager ──▶ client
    (names, UUIDs, versions, managers)             (chain of signed links, each narrower)
                 │                                             │
                 └──▶ keys of its attributes ◀── who may read ─┘──▶ sealed messages

Rules that hold here:
- Pure: no sockets, no files, no clock and no randomness of its own. All are handed in.
- No cryptography of our own: AES-GCM, HKDF, HPKE and Ed25519 of the library `cryptography`, and
  Biscuit tokens.
- What is signed begins with its purpose, and has one encoding: what reads back otherwise is
  refused, so that no bit of it can be flipped.
- Whoever verifies says at which time, and which revocations are known.
- Fail closed: what does not open, verify or fit is an error that says what it was.
"""
