"""What crosses the borders of a domain: event types, capabilities, group keys, sealed messages.

    owner ──signs──▶ event type                          owner ──grants──▶ manager ──▶ client
    (names, UUIDs, versions, managers)                   (chain of signed links, each narrower)

Rules that hold here:
- Nothing here reads files, asks a clock or keeps a private key: bytes, times and nonces come in.
- Only Ed25519, SHA-256, AES-GCM, HKDF, HPKE and Biscuit tokens, from libraries. What is signed
  begins with its purpose, so that a signature never means two things.
- There is one encoding of everything that is signed. What reads back otherwise is refused, so
  that no bit of it can be flipped.
- Whoever verifies says at which time, and which revocations are known.
"""
